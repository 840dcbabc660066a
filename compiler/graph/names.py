"""Names of values that a graph does not have yet."""

from __future__ import annotations

from collections.abc import Container, Iterator

from tilewright.compiler.dtypes import DType


def fresh(base: str, *taken: Container[str], last: dict[str, int] | None = None) -> str:
    """Return `base`, with a number appended if the name is taken.

    Args:
        base: the preferred name.
        taken: containers of the names in use.
        last: the last number that each base got. If names are never freed, it avoids the quadratic
            time of a search for many similar names.
    """
    numbers = {} if last is None else last
    name = base
    while any(name in names for names in taken):
        numbers[base] = numbers.get(base, 1) + 1
        name = f"{base}.{numbers[base]}"
    return name


def in_type(value: str, dtype: DType, *taken: Container[str]) -> str:
    """Return a new name for a value that is stored in another type: "y.bfloat16" for "y"."""
    return fresh(f"{value}.{dtype}", *taken)


def stands_for(name: str) -> Iterator[str]:
    """Yield the name, and then the original names without the types that passes appended
    (`in_type`)."""
    yield name
    while True:
        name, _, last = name.rpartition(".")
        if not name or last not in _TYPES:
            return
        yield name


_TYPES = frozenset(each.value for each in DType if each.is_float)
