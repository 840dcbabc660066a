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
    """The ranges with a lower end so that a difference is never above 0: of one of them, or of all
    together where that does not do."""
    asked = {name: d for name, d in ranges.items() if d in dimensions(difference)}
    for chosen in (*({name: d} for name, d in asked.items()), asked):

        def shorter(last: int, chosen: Mapping[str, Dimension] = chosen) -> dict[str, Dimension]:
            return {
                name: replace(d, high=max(d.low, min(d.high or last, last)))
                for name, d in chosen.items()
            }

        def below(last: int, chosen: Mapping[str, Dimension] = chosen) -> bool:
            changed = {chosen[name]: d for name, d in shorter(last, chosen).items()}
            lower = substituted(difference, lambda d: open_size(changed.get(d, d)))
            return bounds(lower)[1] <= 0

        # the sought one is in [low - 1, high)
        least = min((d.low for d in chosen.values()), default=0)
        low, high = least + 1, max((d.high or 0 for d in chosen.values()), default=0)
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if below(middle) else (low, middle)
        if low - 1 > least:
            return {**ranges, **shorter(low - 1)}
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
