"""Typed access to the attributes of graph nodes, for operators and passes."""

from __future__ import annotations

from operator import index

from tilewright.compiler.errors import InvalidModelError
from tilewright.compiler.graph.ir import Attrs, attr
from tilewright.compiler.sizes import is_dynamic


def ints(attrs: Attrs, key: str, default: tuple[int, ...] | None = None) -> tuple[int, ...]:
    """Return the attribute `key` as a tuple of integers, or `default` if it is missing.

    Raises InvalidModelError if it has another type, or is missing without a default.
    """
    value = attr(attrs, key)
    if value is None and default is not None:
        return default
    if not isinstance(value, tuple):
        raise InvalidModelError(f"attribute '{key}' is not a tuple of integers")
    return tuple(item if is_dynamic(item) else int(item) for item in value)


def integer(attrs: Attrs, key: str, default: int | None = None) -> int:
    """Return the integer attribute `key`, or `default` if it is missing.

    Raises InvalidModelError if it has another type, or is missing without a default.
    """
    value = attr(attrs, key, default)
    if is_dynamic(value):
        return value
    if not isinstance(value, int):
        raise InvalidModelError(f"attribute '{key}' is not an integer")
    return int(value)


def number(attrs: Attrs, key: str, default: float | None = None) -> float:
    """Return the attribute `key` as a float, or `default` if it is missing.

    Raises InvalidModelError if it is not a number, or is missing without a default.
    """
    value = attr(attrs, key, default)
    if not isinstance(value, int | float):
        raise InvalidModelError(f"attribute '{key}' is not a number")
    return float(value)


def optional(attrs: Attrs, key: str) -> float | None:
    """Return the numeric attribute `key`, or None if it is missing.

    An integer is returned as an int, so that large values stay exact.
    """
    value = attr(attrs, key)
    if value is not None and not isinstance(value, int | float):
        raise InvalidModelError(f"attribute '{key}' is not a number")
    return value


def word(attrs: Attrs, key: str, default: str | None = None) -> str:
    """Return the string attribute `key`, or `default` if it is missing.

    Raises InvalidModelError if it has another type, or is missing without a default.
    """
    value = attr(attrs, key, default)
    if not isinstance(value, str):
        raise InvalidModelError(f"attribute '{key}' is not a string")
    return value


def axis_of(attrs: Attrs, rank: int, default: int | None = None) -> int:
    """Return the attribute `axis`, converted to a dimension in [0, rank).

    A negative axis counts from the end. Without the attribute, `default` is used.

    Raises:
        InvalidModelError: if the axis is out of range, or missing without a default.
    """
    return dimension(integer(attrs, "axis", default), rank)


def dimension(axis: int, rank: int) -> int:
    """Convert an axis to a dimension in [0, rank); a negative axis counts from the end.

    Raises:
        InvalidModelError: if the axis is out of range.
        DynamicSizeError: if the axis is a dynamic size.
    """
    if not -rank <= axis < rank:
        raise InvalidModelError(f"axis {axis} is out of range for rank {rank}")
    return index(axis) % rank


def dimensions(axes: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """Convert axes to distinct dimensions in [0, rank), sorted.

    Raises:
        InvalidModelError: if an axis is out of range or occurs twice.
    """
    found = sorted(dimension(axis, rank) for axis in axes)
    if len(set(found)) != len(found):
        raise InvalidModelError(f"axes {axes} name a dimension twice")
    return tuple(found)
