"""Detection of models that are invalid at every size of their ranges."""

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
"""Maximum number of combinations of sizes at which a model is imported to prove that it is always
invalid."""

MOST_SOLUTIONS = 1 << 16
"""Maximum number of sizes of a dimension for which an equality is evaluated."""

Sizes = Mapping[str, int | Dimension]


def invalid_everywhere(
    ranges: Mapping[str, Dimension], attempt: Callable[[Sizes], object]
) -> InvalidModelError | None:
    """Return an error if a model is invalid at every size of its ranges, else None.

    The model is first imported with the ranges. If the ranges leave a condition undecided, the
    model is imported again with fixed sizes, until an import succeeds:

    - If the ranges have at most `MOST_SIZES` combinations of sizes, all combinations are tried.
    - If there are more, and the undecided condition is an equality that holds at no size of its
      only dimension, evenly spaced sizes of this dimension are tried.
    - Otherwise, no sizes are tried, and the result is None.

    Args:
        ranges: the range of each dynamic dimension, by name.
        attempt: imports the model; its argument has a size or a range for each dimension, by name.

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
    """Return an error that reports ranges without a valid size.

    Args:
        ranges: the ranges.
        error: the error of the import, which names the node.
        sizes: the sizes at which the import failed; None if it fails for all sizes of the ranges.
        count: the number of combinations of sizes that were tried, if `sizes` is given.

    Returns:
        A new error that names the ranges. If `sizes` is None and `error` mentions no dimension, as
        for a wrong attribute, the result is `error`.
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
    """Whether the message of an error contains the name of a dimension as a separate word."""
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
    """Yield the sizes by dimension name at which `invalid_everywhere` imports the model.

    - If the ranges have at most `MOST_SIZES` combinations of sizes, all combinations are yielded.
    - If there are more, and the undecided condition is an equality that holds at no size of its
      only dimension, evenly spaced sizes of this dimension are yielded.
    - Otherwise, nothing is yielded, because imports at a few sizes cannot prove that the model is
      invalid at every size.

    Args:
        ranges: the range of each dynamic dimension, by name.
        question: the error of the import with the ranges, which states the undecided condition.
    """
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
