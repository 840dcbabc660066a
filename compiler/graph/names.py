"""Unused names for new values of a graph."""

from __future__ import annotations

from collections.abc import Container, Iterator

from tilewright.compiler.dtypes import DType


def fresh(base: str, *taken: Container[str], last: dict[str, int] | None = None) -> str:
    """Return `base`, with a number appended (`base.2`) if the name is taken.

    Args:
        base: the preferred name.
        taken: containers of the names in use.
        last: a cache across calls: the last number appended to each base. It avoids quadratic time
            for many equal bases, and requires that names are never freed.
    """
    numbers = {} if last is None else last
    name = base
    while any(name in names for names in taken):
        numbers[base] = numbers.get(base, 1) + 1
        name = f"{base}.{numbers[base]}"
    return name


def in_type(value: str, dtype: DType, *taken: Container[str]) -> str:
    """Return an unused name for a copy of `value` in another element type: "y.bfloat16" for "y"."""
    return fresh(f"{value}.{dtype}", *taken)


def stands_for(name: str) -> Iterator[str]:
    """Yield the name, then each shorter name that results from removing one more dtype suffix.

    Passes append such suffixes when they copy a value to another element type (`in_type`). For
    "y.bfloat16", the results are "y.bfloat16" and "y".
    """
    yield name
    while True:
        name, _, last = name.rpartition(".")
        if not name or last not in _TYPES:
            return
        yield name


_TYPES = frozenset(each.value for each in DType if each.is_float)
