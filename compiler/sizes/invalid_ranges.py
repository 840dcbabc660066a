"""Ranges of sizes in which a model is invalid at every size."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import product
from math import prod

from tilewright.compiler.errors import CompilerError, InvalidModelError
from tilewright.compiler.sizes.atoms import Dimension
from tilewright.compiler.sizes.errors import DynamicSizeError
from tilewright.compiler.sizes.ranges import attempted
from tilewright.compiler.sizes.size import dimensions, is_dynamic
from tilewright.compiler.sizes.values import at

MOST_SIZES = 64
"""Maximum number of combinations of sizes at which the model is imported."""

MOST_SOLUTIONS = 1 << 16
"""Maximum number of sizes of one dimension for which an equality is evaluated."""

Sizes = Mapping[str, int | Dimension]


def invalid_everywhere(
    ranges: Mapping[str, Dimension], attempt: Callable[[Sizes], object]
) -> InvalidModelError | None:
    """Return the error of a model that is invalid at every size of its ranges.

    The model is imported with the ranges. If the ranges leave a condition undecided, the model is
    imported at each combination of sizes. Of more than `MOST_SIZES` combinations, evenly spaced
    sizes of one dimension are imported, provided that the condition is an equality that holds for
    no size of this dimension.

    Args:
        ranges: the range of each dynamic dimension, by name.
        attempt: imports the model at sizes and at ranges.

    Returns:
        An error that names the ranges, the node and the reason; None if the model may be valid at
        some size.
    """
    try:
        found = attempted(partial(attempt, ranges))
        if isinstance(found, InvalidModelError):
            return refused_ranges(ranges.values(), found)
        first: tuple[Mapping[str, int], InvalidModelError] | None = None
        count = 0
        for sizes in _sizes(ranges, found) if isinstance(found, DynamicSizeError) else ():
            refusal = attempted(partial(attempt, {**ranges, **sizes}))
            if not isinstance(refusal, InvalidModelError):
                return None
            first = first or (sizes, refusal)
            count += 1
    except CompilerError:  # such as an operator that is not implemented
        return None
    return None if first is None else refused_ranges(ranges.values(), first[1], first[0], count)


def refused_ranges(
    ranges: Iterable[Dimension],
    error: InvalidModelError,
    sizes: Mapping[str, int] | None = None,
    count: int = 0,
) -> InvalidModelError:
    """Return the error for ranges without a valid size.

    Args:
        ranges: the ranges.
        error: the contradiction, which names the node.
        sizes: the sizes at which it was found; None if it holds for all sizes of the ranges.
        count: the number of combinations of sizes that were tried, if `sizes` is given.

    Returns:
        An error that names the ranges; `error` itself if it holds for all sizes and mentions none
        of the dimensions, such as a wrong attribute.
    """
    known = sorted(ranges, key=lambda d: d.name)
    if sizes is None and not any(_names(error, d.name) for d in known):
        return error  # no size would change it
    text = " and ".join(f"{d.name}={d.range_text}" for d in known)
    where = f"every size of {text}"
    if sizes is not None:
        if count != combinations(known):
            where = f"the {count} sizes of {text} that were tried"
        where += ", such as " + ", ".join(f"{name}={size}" for name, size in sizes.items())
    return InvalidModelError(f"the model is invalid at {where}: {error}; give other sizes")


def _names(error: InvalidModelError, dimension: str) -> bool:
    """Whether an error mentions a dimension, as a word of its own."""
    return re.search(rf"(?<!\w){re.escape(dimension)}(?!\w)", str(error)) is not None


def combinations(ranges: Iterable[Dimension]) -> float:
    """Return the number of combinations of sizes, which is infinite for an unbounded range."""
    return prod(float("inf") if d.high is None else d.high - d.low + 1 for d in ranges)


def sizes_of(dimension: Dimension) -> range:
    """Return the sizes of a bounded range, in ascending order."""
    assert dimension.high is not None
    first, step = dimension.low * dimension.multiple, dimension.multiple
    return range(first, dimension.high * step + 1, step)


def _sizes(ranges: Mapping[str, Dimension], question: DynamicSizeError) -> Iterator[dict[str, int]]:
    """Yield the sizes at which the model must be invalid; none if that would prove nothing."""
    if combinations(ranges.values()) <= MOST_SIZES:
        for sizes in product(*map(sizes_of, ranges.values())):
            yield dict(zip(ranges, sizes, strict=True))
        return
    asked = dimensions(question.unequal) if is_dynamic(question.unequal) else ()
    if len(asked) != 1 or question.may_differ or ranges.get(asked[0].name) != asked[0]:
        return
    (dimension,) = asked
    if combinations(asked) > MOST_SOLUTIONS:
        return
    every = sizes_of(dimension)
    if any(at(question.unequal, {dimension.name: size}) == 0 for size in every):
        return
    spaced = every[:: -(-len(every) // (MOST_SIZES - 1))]
    for size in dict.fromkeys([*spaced, every[-1]]):
        yield {dimension.name: size}
