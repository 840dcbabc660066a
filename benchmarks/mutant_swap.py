"""Turns imported code into a mutant: the functions that differ get other code objects.

Importing a package again for each mutant would take longer than its tests. Most mistakes are in the
body of a function. Its code object can be replaced, no matter where the function object is
referenced: in a module, a table or a closure. Code that runs at import (defaults, constants,
fields) cannot be replaced.
"""

from __future__ import annotations

import gc
import inspect
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

Pair = tuple[CodeType, CodeType]


def differing_functions(before: str, after: str, filename: str) -> list[list[Pair]] | None:
    """Code objects, before and after, of the functions in which two versions of a module differ.

    Each list starts with the pair of a function, followed by the pairs of its nested functions.
    None if the versions also differ in code that runs at import.
    """
    old, new = (compile(text, filename, "exec", dont_inherit=True) for text in (before, after))
    return _differing(old, new)


class Functions:
    """All function objects of this process, by file, line and qualified name of their code."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, int, str], list[FunctionType]] = {}
        for one in gc.get_objects():
            if type(one) is FunctionType:
                self._found.setdefault(_place(one.__code__), []).append(one)

    def has(self, pairs: list[Pair]) -> bool:
        """Whether this process has the function that the first pair describes.

        A pair has the old and the new code object of a function. The other pairs are of nested
        functions; replacing only these would have no effect.
        """
        return any(True for _ in self._of(pairs[0][0]))

    def swap(self, pairs: list[Pair]) -> None:
        """Replace old code objects by new ones in all functions of this process.

        `pairs` has the old and new code objects of a function and of its nested functions. Closures
        that the function created earlier are changed, too.
        """
        for old, new in pairs:
            for function in list(self._of(old)):
                function.__code__ = new

    def _of(self, code: CodeType) -> Iterator[FunctionType]:
        # Lambdas may share a line: they differ in their columns.
        positions = list(code.co_positions())
        for function in self._found.get(_place(code), ()):
            if list(function.__code__.co_positions()) == positions:
                yield function


def _place(code: CodeType) -> tuple[str, int, str]:
    return code.co_filename, code.co_firstlineno, code.co_qualname


def _differing(old: CodeType, new: CodeType) -> list[list[Pair]] | None:
    """Compare the code objects of two versions of a module or a class.

    Returns the differing functions in the format of `differing_functions`. The result is None if
    the versions also differ in code that runs at import.
    """
    if _shell(old) != _shell(new):
        return None
    found: list[list[Pair]] = []
    for a, b in zip(_inner(old), _inner(new), strict=True):
        if not a.co_flags & inspect.CO_OPTIMIZED:  # the body of a class runs at import
            differing = _differing(a, b)
            if differing is None:
                return None
            found += differing
        elif not _same(a, b):
            if a.co_freevars != b.co_freevars or not _alike(a, b):
                return None
            found.append(list(_pairs(a, b)))
    return found


def _inner(code: CodeType) -> list[CodeType]:
    return [constant for constant in code.co_consts if isinstance(constant, CodeType)]


def _shell(code: CodeType) -> tuple[Any, ...]:
    """Comparable contents of a code object, without its line numbers and nested code objects."""
    return (
        *(code.co_name, code.co_code, code.co_flags, code.co_names, code.co_exceptiontable),
        *(code.co_varnames, code.co_freevars, code.co_cellvars),
        *(code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount),
        [_constant(each) for each in code.co_consts],
    )


def _constant(value: object) -> object:
    """A comparable form of a constant, in which 1, 1.0 and True differ, and 0.0 and -0.0 too."""
    match value:
        case CodeType():
            return CodeType
        case tuple():
            return [_constant(each) for each in value]
        case frozenset():
            return {repr(each) for each in value}
        case _:
            return repr(value)


def _same(a: CodeType, b: CodeType) -> bool:
    return _shell(a) == _shell(b) and all(
        _same(x, y) for x, y in zip(_inner(a), _inner(b), strict=True)
    )


def _alike(a: CodeType, b: CodeType) -> bool:
    """Whether two code objects have corresponding nested functions with equal free variables."""
    inner = _inner(a), _inner(b)
    return len(inner[0]) == len(inner[1]) and all(
        x.co_freevars == y.co_freevars and _alike(x, y) for x, y in zip(*inner, strict=True)
    )


def _pairs(a: CodeType, b: CodeType) -> Iterator[Pair]:
    yield a, b
    for x, y in zip(_inner(a), _inner(b), strict=True):
        yield from _pairs(x, y)
