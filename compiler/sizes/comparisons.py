"""Comparisons of dynamic sizes, with results that hold for all sizes of the ranges."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.compiler.sizes.atoms import Dimension
from tilewright.compiler.sizes.bounds import bounds
from tilewright.compiler.sizes.errors import SizesDifferError
from tilewright.compiler.sizes.size import Size, dimensions, divided, dynamic_size, is_dynamic


def equal(first: int, second: int) -> bool:
    """Whether two sizes are equal.

    The result is True if they are equal in every run, and False if they differ in every run.

    Raises:
        SizesDifferError: if the ranges of the dimensions prove neither.
    """
    if first == second:
        return True
    low, high = bounds(first - second)
    if low > 0 or high < 0 or not (is_dynamic(first) or is_dynamic(second)):
        return False
    ranges = ", ".join(f"{d} {d.range_text}" for d in dimensions(first, second))
    what = f"whether {first} is {second} is known at run time only ({ranges})"
    raise SizesDifferError(what, first, second)


def same_extents(first: Sequence[int], second: Sequence[int]) -> bool:
    """Whether two shapes are equal.

    The result is True if they are equal in every run, and False if they differ in every run.

    Raises:
        SizesDifferError: if the ranges of the dimensions prove neither.
    """
    if tuple(first) == tuple(second):
        return True
    return len(first) == len(second) and all(map(equal, first, second))


def larger(first: int, second: int) -> int:
    """Return the size that is the larger one in every run.

    Unlike `max`, which compares with `<`, this function does not raise if the sizes may be equal.

    Raises:
        DynamicSizeError: if either size may be the larger one, depending on the run.
    """
    found = always_larger(first, second)
    return found if found is not None else first if first >= second else second


def smaller(first: int, second: int) -> int:
    """Return the size that is the smaller one in every run.

    Raises:
        DynamicSizeError: if either size may be the smaller one, depending on the run.
    """
    found = always_smaller(first, second)
    return found if found is not None else first if first <= second else second


def always_larger(first: int, second: int) -> int | None:
    """Return the size that is the larger one in every run.

    The result is None if the ranges do not prove this of either size.
    """
    if always_at_most(first, second):
        return second
    return first if always_at_most(second, first) else None


def always_smaller(first: int, second: int) -> int | None:
    """Return the size that is the smaller one in every run.

    The result is None if the ranges do not prove this of either size.
    """
    if always_at_most(first, second):
        return first
    return second if always_at_most(second, first) else None


def solved(first: int, second: int) -> tuple[Dimension, int] | None:
    """Solve `first == second` for one dimension; return the dimension and its size.

    The dimension must occur linearly, with a coefficient of 1 or -1. Its size is an expression of
    other dimensions that is at least the start of its range in every run. A solution that also
    never exceeds the end of the range is preferred. The result is None if no solution is found.
    """
    difference = first - second
    if not isinstance(difference, Size):
        return None
    found: list[tuple[Dimension, int]] = []
    for monomial, coefficient in difference.terms:
        match monomial:
            case (Dimension(multiple=1) as dimension,) if abs(coefficient) == 1:
                value = dynamic_size(dimension) - difference * coefficient
                if is_dynamic(value) and dimension not in dimensions(value):
                    found.append((dimension, value))
    found = [(d, value) for d, value in found if bounds(value)[0] >= d.low]
    found.sort(key=lambda pair: pair[0].high is not None and bounds(pair[1])[1] > pair[0].high)
    return found[0] if found else None


def always_less(first: int, second: int) -> bool:
    """Whether the ranges of the dimensions prove first < second in every run."""
    difference = first - second
    return (bounds(difference)[1] if isinstance(difference, Size) else difference) < 0


def always_at_most(first: int, second: int) -> bool:
    """Whether the ranges of the dimensions prove first <= second in every run."""
    return always_less(first - 1, second)


def disjoint(first: tuple[int, int], second: tuple[int, int]) -> bool:
    """Whether two spans (start, exclusive end) provably do not overlap in any run."""
    return always_at_most(first[1], second[0]) or always_at_most(second[1], first[0])


def exact_quotient(size: int, divisor: int) -> int | None:
    """Return `size / divisor` if it is provably an integer in every run, else None."""
    if size == 0:
        return 0
    if isinstance(divisor, Size):
        return divided(size, divisor) if isinstance(size, Size) else None
    quotient = size // divisor
    return quotient if quotient * divisor == size else None
