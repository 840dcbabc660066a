"""The sizes of an open dimension as users write them: `7`, `1..512`, `32..640:32`, `1..`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from operator import index
from typing import TypeAlias, TypeVar

from compiler.errors import InvalidArgumentError
from compiler.sizes import (
    Dimension,
    OpenSizeError,
    bounds,
    dimensions,
    open_size,
    substituted,
)

T = TypeVar("T")

SizeRange: TypeAlias = "int | str | range | Dimension"
"""One size, or a range of them: as text, as Python's `range` (without its end), or as it is."""

LARGEST_SIZE = 1 << 40
"""No dimension is larger."""

DEFAULT_LAST = 4096
"""An open dimension that nobody gives a range has the sizes from 1 to this."""

_RANGE = re.compile(r"(\d{1,19})(?:(\.\.)(\d{1,19})?(?::(\d{1,19}))?)?", re.ASCII)


def as_range(name: str, given: SizeRange) -> Dimension:
    """The sizes that a dimension may have.

    Raises:
        InvalidArgumentError: if that is no range, naming the dimension.
    """
    match given:
        case str():
            return parse_range(name, given)
        case Dimension():
            return _within(Dimension(name, given.low, given.high, given.multiple))
        case range(start=start, step=step):
            if not given:
                raise InvalidArgumentError(f"dimension '{name}': {given} has no sizes")
            if step < 1 or start % step:
                raise InvalidArgumentError(
                    f"dimension '{name}': {given} does not begin with a multiple of its step"
                )
            return _of(name, start, given[-1], step)
    try:
        size = index(given)
    except TypeError as error:
        raise InvalidArgumentError(f"dimension '{name}': {given!r} is no integer") from error
    if size < 0:
        raise InvalidArgumentError(f"dimension '{name}' is {size}, less than nought")
    return _of(name, size, size)


def parse_range(name: str, text: str) -> Dimension:
    """Read `7` (one size), `1..512`, `32..640:32` (multiples of 32) or `1..` (no bound).

    Raises:
        InvalidArgumentError: if the text is none of these, naming the dimension.
    """
    match = _RANGE.fullmatch(text.strip())
    if match is None:
        raise InvalidArgumentError(
            f"dimension '{name}': '{text[:80]}' is no size; write 7, 1..512, 32..640:32 or 1.."
        )
    first, dots, last, step = match.groups()
    if not dots:
        return _of(name, int(first), int(first))
    return _of(name, int(first), int(last) if last else None, int(step) if step else 1)


def size_choices(name: str, listed: Iterable[int | str]) -> tuple[int | str, ...]:
    """Sizes of one dimension, of which one may be a range: each once, a range as text.

    A range of one number is that number.

    Raises:
        InvalidArgumentError: if one is no range or 0, or there are two ranges, naming the
            dimension.
    """
    ranges = [as_range(name, given) for given in listed]
    if any(each.high == 0 for each in ranges):
        raise InvalidArgumentError(f"dimension '{name}' is 0, expected a size from 1")
    chosen: dict[int | str, None] = dict.fromkeys(
        each.low * each.multiple if each.low == each.high else each.range_text for each in ranges
    )
    if sum(isinstance(size, str) for size in chosen) > 1:
        raise InvalidArgumentError(f"dimension '{name}' has two ranges, give it one")
    return tuple(chosen)


def default_range(name: str) -> Dimension:
    """The sizes of an open dimension that nobody gives a range.

    Raises:
        InvalidArgumentError: if nothing can have this name.
    """
    return _of(name, 1, DEFAULT_LAST)


def within_defaults(names: Iterable[str], attempt: Callable[[Mapping[str, Dimension]], T]) -> T:
    """What `attempt` gives for the default ranges of dimensions, narrowed to what it can decide.

    A model whose table has 512 positions asks whether a sequence is longer: then it is not.

    Raises:
        OpenSizeError: if no narrower ranges decide what is asked.
    """
    ranges = {name: default_range(name) for name in names}
    while True:
        try:
            return attempt(ranges)
        except OpenSizeError as error:
            narrower = _narrowed(ranges, error.undecided)
            if narrower is None:
                raise
            ranges = narrower


def _narrowed(ranges: Mapping[str, Dimension], difference: int) -> dict[str, Dimension] | None:
    """The ranges, one of them with a lower end, so that a difference is never above 0."""
    for name, dimension in ranges.items():
        if dimension not in dimensions(difference):
            continue

        def below(last: int, asked: Dimension = dimension) -> bool:
            shorter = replace(asked, high=last)
            changed = substituted(difference, lambda d: open_size(shorter if d == asked else d))
            return bounds(changed)[1] <= 0

        low, high = dimension.low + 1, dimension.high or 0  # the sought one is in [low - 1, high)
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if below(middle) else (low, middle)
        if low - 1 > dimension.low:
            return {**ranges, name: replace(dimension, high=low - 1)}
    return None


def default_ranges_text(defaults: Iterable[Dimension]) -> str:
    """One sentence about dimensions that nobody gave a range; empty where there are none."""
    listed = [f"'{d.name}' may be {d.range_text}" for d in defaults]
    if not listed:
        return ""
    named = " and ".join(filter(None, (", ".join(listed[:-1]), listed[-1])))
    return f"nobody gave a range: {named}; --dim NAME=FIRST..LAST does"


def _of(name: str, first: int, last: int | None, step: int = 1) -> Dimension:
    if step < 1:
        raise InvalidArgumentError(f"dimension '{name}': a multiple is at least 1, not {step}")
    for end in (first, last):
        if end is not None and end % step:
            raise InvalidArgumentError(f"dimension '{name}': {end} is no multiple of {step}")
    if last is not None and last < first:
        raise InvalidArgumentError(f"dimension '{name}': {first}..{last} has no sizes")
    try:
        return _within(Dimension(name, first // step, None if last is None else last // step, step))
    except ValueError as error:
        raise InvalidArgumentError(str(error)) from error


def _within(dimension: Dimension) -> Dimension:
    ends = (dimension.low, dimension.high or 0, 1)
    if max(ends) * dimension.multiple > LARGEST_SIZE:
        raise InvalidArgumentError(
            f"dimension '{dimension.name}': {dimension.range_text} has sizes above {LARGEST_SIZE}"
        )
    return dimension
