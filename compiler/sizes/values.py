"""Evaluation of dynamic sizes at the sizes of a run, or at typical sizes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from math import isqrt, prod
from operator import is_
from typing import Any, TypeVar, cast

from tilewright.compiler.sizes.atoms import Dimension
from tilewright.compiler.sizes.size import Size, dimensions, dynamic_size

_T = TypeVar("_T")


_TYPICAL = 128
"""Maximum size that is assumed as typical for a dimension with a long range."""


_LONG = 64
"""Ratio of the largest to the smallest size beyond which a range is long."""


def at(size: int, values: Mapping[str, int]) -> int:
    """Evaluate a dynamic size; `values` has the size of each dimension by name.

    Raises:
        KeyError: if a dimension has no value.
    """
    return substituted(size, lambda dimension: values[dimension.name] // dimension.multiple)


def substituted(size: int, value: Callable[[Dimension], int]) -> int:
    """Replace each dimension in a size, for example to evaluate it.

    `value` returns the replacement, in units of `dimension.multiple`: 3 stands for the size 96 of a
    dimension of multiples of 32. The replacement may be a `Size`. If `size` is an `int`, it is
    returned unchanged.
    """
    if not isinstance(size, Size):
        return size
    total = size.constant
    for monomial, coefficient in size.terms:
        total += coefficient * prod(
            value(atom)
            if isinstance(atom, Dimension)
            else substituted(atom.dividend, value) // atom.divisor
            for atom in monomial
        )
    return total


_PLAIN = (int, str, bool, float, type(None))
"""Common types of values in which `replaced` need not search for sizes."""


def replaced(value: _T, change: Callable[[Any], Any], kind: type | tuple[type, ...] = Size) -> _T:
    """Return a frozen dataclass, such as a workload, with `change` applied to every size in it.

    If `kind` is another type, or several types, `change` is applied to their instances instead of
    to sizes; the fields of these instances are not searched. Tuples, mappings and dataclasses that
    contain no change are returned unchanged. A dataclass that occurs several times is rebuilt once.
    """
    done: dict[int, tuple[Any, Any]] = {}  # the object is stored too, so that its id is not reused
    # calling the function for each of these values would take most of the time
    plain: set[type] = {*_PLAIN}

    def visit(item: Any) -> Any:
        if isinstance(item, kind):
            return change(item)
        if isinstance(item, tuple):
            parts = tuple([part if type(part) in plain else visit(part) for part in item])
            return item if all(map(is_, item, parts)) else parts
        names = _names(cast(Hashable, type(item)))  # mypy does not see that classes are
        if names is None:
            plain.add(type(item))
            return item
        if not names:
            found = {key: visit(part) for key, part in item.items()}
            return item if all(map(is_, found.values(), item.values())) else found
        if id(item) not in done:
            new: dict[str, Any] = {}
            same = True
            for name in names:
                part = getattr(item, name)
                if type(part) not in plain:
                    changed = visit(part)
                    same = same and changed is part
                    part = changed
                new[name] = part
            done[id(item)] = item, item if same else type(item)(**new)
        return done[id(item)][1]

    return cast(_T, visit(value))


@cache
def _names(kind: type[Any]) -> tuple[str, ...] | None:
    """Return the names of the fields in which `replaced` searches instances of a class.

    The result is empty for a mapping, which is searched separately, and None for any other class
    that is not a dataclass; instances of such a class are not searched.
    """
    if issubclass(kind, Mapping):
        return ()
    return (tuple(f.name for f in fields(kind) if f.init) or None) if is_dataclass(kind) else None


def with_dimensions(value: _T, others: Mapping[Dimension, Dimension]) -> _T:
    """Replace dimensions in a frozen dataclass, such as a workload.

    `others` maps a dimension to its replacement. Dimensions without an entry are not replaced.
    """

    def unit(dimension: Dimension) -> int:
        new = others.get(dimension, dimension)
        return dynamic_size(new) // new.multiple

    return replaced(value, lambda size: substituted(size, unit))


def dynamic_sizes(value: object) -> tuple[int, ...]:
    """Return the distinct dynamic sizes in a frozen dataclass or a tuple, such as a workload."""
    found: dict[int, int] = {}
    replaced(value, lambda size: found.setdefault(size, size))
    return tuple(found)


def typical(size: int) -> int:
    """Evaluate a size at the middle of its dimensions' ranges, for decisions about speed only.

    The middle of a range is the geometric mean of its ends, but at most 128 if the range is
    unbounded or long. It is not 1 unless 1 is the only size, because kernels for one row or one
    pixel differ from all others.
    """
    return substituted(size, _middle)


def typical_sizes(*sizes: int) -> dict[str, int]:
    """Return the typical size of each dimension that occurs in the sizes, by name.

    A dimension's typical size lies near the middle of its range (`typical`).
    """
    return {d.name: _middle(d) * d.multiple for d in dimensions(*sizes)}


def upper_hints(*sizes: int) -> dict[str, int]:
    """Return a large size of each dimension that occurs in the sizes, by name.

    The size is the end of the dimension's range, but at most about 128: 64 for 1 to 64, and 128 for
    1 to 4096. If the sizes of a dimension must be multiples of a number, 128 is rounded up to such
    a multiple. If a size near the middle of the range (`typical`) is larger than this limit, that
    middle size is returned.
    """
    return {d.name: _largest(d) * d.multiple for d in dimensions(*sizes)}


def _largest(dimension: Dimension) -> int:
    most = -(-_TYPICAL // dimension.multiple)
    high = most if dimension.high is None else min(dimension.high, most)
    return max(high, _middle(dimension))


def _middle(dimension: Dimension) -> int:
    low, high = dimension.low, dimension.high
    most = max(low, -(-_TYPICAL // dimension.multiple))
    if high is None:
        return most
    middle = isqrt(max(low, 1) * high)
    least = min(2, high) if dimension.multiple == 1 else 1
    return max(min(middle, most) if high > _LONG * low else middle, least)


def check_values(dimensions: Iterable[Dimension], values: Mapping[str, int]) -> None:
    """Check that `values` has a size within the range of each dimension, by name.

    Raises:
        ValueError: if a size is outside its range; the message names the dimension.
        KeyError: if a dimension has no value.
    """
    for dimension in dimensions:
        value = values[dimension.name]
        number, rest = divmod(value, dimension.multiple)
        high = number if dimension.high is None else dimension.high
        if rest or not dimension.low <= number <= high:
            raise ValueError(f"dimension {dimension} is {value}, not of {dimension.range_text}")
