"""Questions that the ranges decide for all sizes at once, or not at all."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.compiler.sizes.atoms import Dimension
from tilewright.compiler.sizes.bounds import bounds
from tilewright.compiler.sizes.errors import OpenSizeError, SizesDifferError
from tilewright.compiler.sizes.size import Size, dimensions, is_open, open_size


def equal(first: int, second: int) -> bool:
    """Whether two sizes are equal, whatever they are.

    Raises:
        SizesDifferError: if that depends on the run.
    """
    if first == second:
        return True
    low, high = bounds(first - second)
    if low > 0 or high < 0 or not (is_open(first) or is_open(second)):
        return False
    ranges = ", ".join(f"{d} {d.range_text}" for d in dimensions(first, second))
    what = f"whether {first} is {second} is known at run time only ({ranges})"
    raise SizesDifferError(what, first, second)


def same_extents(first: Sequence[int], second: Sequence[int]) -> bool:
    """Whether two shapes are equal, whatever their sizes are.

    Raises:
        SizesDifferError: if that depends on the run.
    """
    if tuple(first) == tuple(second):
        return True
    return len(first) == len(second) and all(map(equal, first, second))


def larger(first: int, second: int) -> int:
    """The larger of two sizes; raises OpenSizeError if which one that is depends on the run.

    `max` compares with `<`, which is not decided where two sizes may be equal.
    """
    if not isinstance(first, Size) and not isinstance(second, Size):
        return max(first, second)
    if bounds(second - first)[0] >= 0:
        return second
    return first if first >= second else second


def smaller(first: int, second: int) -> int:
    """The smaller of two sizes; raises OpenSizeError if which one that is depends on the run."""
    if not isinstance(first, Size) and not isinstance(second, Size):
        return min(first, second)
    if bounds(second - first)[0] >= 0:
        return first
    if bounds(first - second)[0] >= 0:
        return second
    return first if first <= second else second


def solved(first: int, second: int) -> tuple[Dimension, int] | None:
    """A dimension and the size that it must be for two sizes to be equal; None if none is found.

    The size is of other dimensions, and never below the dimension's range; of several that will
    do, one never above it either, if there is one.
    """
    difference = first - second
    if not isinstance(difference, Size):
        return None
    found: list[tuple[Dimension, int]] = []
    for monomial, coefficient in difference.terms:
        match monomial:
            case (Dimension(multiple=1) as dimension,) if abs(coefficient) == 1:
                value = open_size(dimension) - difference * coefficient
                if is_open(value) and dimension not in dimensions(value):
                    found.append((dimension, value))
    found = [(d, value) for d, value in found if bounds(value)[0] >= d.low]
    found.sort(key=lambda pair: pair[0].high is not None and bounds(pair[1])[1] > pair[0].high)
    return found[0] if found else None


def always_less(a: int, b: int) -> bool:
    """Whether a < b holds for every size of the ranges; where it is not known, it does not."""
    difference = a - b
    return (bounds(difference)[1] if isinstance(difference, Size) else difference) < 0


def exact_quotient(size: int, divisor: int) -> int | None:
    """`size / divisor` where that is whole for all sizes; None where it is not known to be."""
    try:
        quotient = size // divisor if size != 0 else 0
    except OpenSizeError:
        return None
    return quotient if quotient * divisor == size else None
