"""Names of values that a graph does not have yet."""

from __future__ import annotations

from collections.abc import Container, Iterator

from tilewright.compiler.dtypes import DType


def fresh(base: str, taken: Container[str]) -> str:
    """The name, or the name with a number where it is taken."""
    name, number = base, 1
    while name in taken:
        number += 1
        name = f"{base}.{number}"
    return name


def in_type(value: str, dtype: DType, taken: Container[str]) -> str:
    """A new name for a value that is stored in another type: "y.bfloat16" stands for "y"."""
    return fresh(f"{value}.{dtype}", taken)


def stands_for(name: str) -> Iterator[str]:
    """The name, and what it stands for if passes changed the value's type (`in_type`)."""
    yield name
    while True:
        name, _, last = name.rpartition(".")
        if not name or last not in _TYPES:
            return
        yield name


_TYPES = frozenset(each.value for each in DType if each.is_float)
