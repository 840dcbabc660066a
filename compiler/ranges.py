"""The sizes of an open dimension as users write them: `7`, `1..512`, `32..640:32`, `1..`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from operator import index
from typing import TypeAlias

from compiler.errors import InvalidArgumentError
from compiler.sizes import Dimension

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


def default_range(name: str) -> Dimension:
    """The sizes of an open dimension that nobody gives a range.

    Raises:
        InvalidArgumentError: if nothing can have this name.
    """
    return _of(name, 1, DEFAULT_LAST)


def default_ranges_text(names: Iterable[str]) -> str:
    """One sentence about dimensions that nobody gave a range; empty where there are none."""
    listed = [f"'{name}'" for name in names]
    if not listed:
        return ""
    named = " and ".join(filter(None, (", ".join(listed[:-1]), listed[-1])))
    what = "dimension" if len(listed) == 1 else "dimensions"
    example = listed[0].strip("'")
    return (
        f"{what} {named} may be from 1 to {DEFAULT_LAST}; "
        f"--dim {example}=FIRST..LAST says otherwise"
    )


def _of(name: str, first: int, last: int | None, step: int = 1) -> Dimension:
    for end in (first, last):
        if end is not None and (step < 1 or end % step):
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
