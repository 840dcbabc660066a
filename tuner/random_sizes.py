"""Selection of the sizes at which a workload with open dimensions is measured, and their weights.

A user may state the sizes of a dimension with their frequencies. Otherwise the sizes are quantiles
of a log-uniform distribution over the dimension's range: for 1..512, sizes from 1 to 22 are assumed
to be as frequent as sizes from 22 to 512. The sizes are deterministic, so that the measurements of
different jobs can be compared.

A candidate's time is a weighted sum of its times at these sizes. The weight of a size is its
frequency divided by the workload's cost at this size. So an increase of the time by a tenth has the
same effect at a small size and at a large one. With unweighted seconds, the largest size would
dominate: of four quantiles of 1..512, the largest takes four fifths of the sum. The weights are
scaled such that, for a kernel whose times are proportional to the costs, the sum is the mean of its
times.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.compiler.errors import InvalidArgumentError
from tilewright.compiler.plan import costs
from tilewright.compiler.plan.intervals import RangePiece, intervals, pieces
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.sizes import Dimension, check_values
from tilewright.compiler.sizes.hinted_ranges import Shares
from tilewright.tuner.lower_bound import least_seconds
from tilewright.tuner.measure.points import SizePoint
from tilewright.tuner.measure.reference_cost import ReferenceLimit, affordable
from tilewright.tuner.protocol.measurement import Sizes, SizeWeights

DRAWN = 4
"""Number of sampled sizes of a dimension whose sizes the user did not state, if its range is not
divided into intervals."""

DRAWN_OF_INTERVAL = 3
"""Largest number of sampled sizes in an interval of a divided range (`compiler.plan.intervals`):
one for each doubling within the interval. Each small number of rows has its own best tile."""

LONG = 512
"""Largest sampled size of a range without an upper end."""


@dataclass(frozen=True, slots=True)
class SampledSizes:
    """A combination of sizes, one for each dynamic dimension of a model or workload.

    `share` is the fraction of all runs that are assumed to have these sizes.
    """

    sizes: Sizes
    share: float


def sample_sizes(
    dimensions: Sequence[Dimension], stated: Shares | None = None
) -> list[SampledSizes]:
    """Select combinations of sizes at which to measure, each with its fraction of all runs.

    The fractions add up to 1. If there are several dimensions, small sizes of one dimension are
    combined with small and with large sizes of another, in an order that is always the same.

    Args:
        dimensions: the open (dynamic) dimensions.
        stated: the size hints of a user with their frequencies, by dimension name.

    Raises:
        InvalidArgumentError: if `stated` names a dimension that is not open, or a size that the
            dimension cannot have.
    """
    stated = stated or {}
    known = {dimension.name: dimension for dimension in dimensions}
    check_hinted(stated, known)
    for name, shares in stated.items():
        _check(known[name], shares)
    if not dimensions:
        return []
    first = max(dimensions, key=lambda d: (len(stated.get(d.name, ())), _ratio(d)))
    leading = stated.get(first.name) or _spread(first)
    total = sum(leading.values())
    count = len(leading)
    others = [dimension for dimension in dimensions if dimension is not first]
    columns = {
        first.name: list(leading),
        **{
            dimension.name: _shuffled(_column(dimension, stated.get(dimension.name), count), place)
            for place, dimension in enumerate(others)
        },
    }
    return [
        SampledSizes(tuple((d.name, columns[d.name][row]) for d in dimensions), share / total)
        for row, share in enumerate(leading.values())
    ]


def check_hinted(stated: Shares, open_names: Collection[str]) -> None:
    """Check that all dimensions for which a user stated size hints are open.

    `open_names` are the names of the open dimensions.

    Raises:
        InvalidArgumentError: if a dimension in `stated` is not open.
    """
    for name in stated:
        if name not in open_names:
            listed = ", ".join(f"'{each}'" for each in open_names) or "none"
            raise InvalidArgumentError(
                f"hints are stated of dimension '{name}', which has no range; those that have: "
                f"{listed}"
            )


def points_of(
    workload: Workload,
    sampled: Sequence[SampledSizes] = (),
    names: Sequence[str] = (),
    threads: int = 1,
) -> tuple[SizePoint, ...]:
    """Return the size points at which candidates of a workload are measured, cheapest first.

    A size point is a combination of sizes with a weight. If the expected output at some sizes is
    too expensive to compute on this machine, smaller sizes are used instead.

    Args:
        workload: a workload with open or fixed sizes.
        sampled: combinations of sizes of the model's dimensions; by default, they are selected from
            the ranges of the workload's own dimensions.
        names: for each dimension of the workload, the name of this dimension in `sampled`; by
            default, the same name.
        threads: the number of threads of a run.
    """
    dimensions = workload.dimensions
    if not dimensions:
        return (SizePoint(least_seconds=least_seconds(workload, threads)),)
    own = [dimension.name for dimension in dimensions]
    shares: dict[Sizes, float] = {}
    limit = ReferenceLimit()
    for each in sampled or sample_sizes(dimensions):
        known = dict(each.sizes)
        asked = tuple((mine, known[name]) for mine, name in zip(own, names or own, strict=True))
        sizes = affordable(workload, asked, limit)
        shares[sizes] = shares.get(sizes, 0.0) + each.share
    fixed = {sizes: workload.at(dict(sizes)) for sizes in shares}
    cost = {sizes: max(costs.cost(at), 1.0) for sizes, at in fixed.items()}
    mean = sum(share * cost[sizes] for sizes, share in shares.items())
    return tuple(
        SizePoint(sizes, share * mean / cost[sizes], least_seconds(fixed[sizes], threads), share)
        for sizes, share in sorted(shares.items(), key=lambda pair: cost[pair[0]])
    )


def points_within(
    piece: RangePiece,
    whole: Workload,
    sampled: Sequence[SampledSizes],
    names: Sequence[str],
    threads: int = 1,
    *,
    stated: bool = False,
) -> tuple[tuple[SizePoint, ...], float]:
    """Return the size points at which to measure one part of a workload's range, and a time factor.

    The range of a workload's dynamic dimensions may be divided into pieces, which are tuned
    separately. The sum of the pieces' times, each multiplied by its factor, equals the weighted sum
    of times over the sizes of the whole range. If no combination in `sampled` lies within the
    piece, there are two cases. If a user stated the sizes, the result is () and 0. Otherwise, sizes
    within the piece are selected.

    Args:
        piece: a piece of the range of `whole`.
        whole: the workload with its full range.
        sampled: combinations of sizes of the model's dimensions.
        names: for each dimension of `whole`, the name of this dimension in `sampled`.
        threads: the number of threads of a run.
        stated: whether a user stated the sizes in `sampled`.
    """
    known = dict(zip(names, piece.box, strict=True))
    inside = [each for each in sampled if all(n in known[d] for d, n in each.sizes if d in known)]
    if stated and not inside:
        return (), 0.0
    share = sum(each.share for each in inside) or 1 / len(pieces(whole))
    scaled = [SampledSizes(each.sizes, each.share / share) for each in inside]
    own = [names[position] for position in piece.positions] if inside else []
    points = points_of(piece.workload, scaled, own, threads)
    mean = _mean_cost(whole, points_of(whole, sampled, names, threads))
    return points, share * mean / _mean_cost(piece.workload, points)


def _mean_cost(workload: Workload, points: Sequence[SizePoint]) -> float:
    return sum(
        point.share * max(costs.cost(workload.at(dict(point.sizes))), 1.0) for point in points
    )


def points_at(
    workload: Workload, distribution: SizeWeights, threads: int = 1
) -> tuple[SizePoint, ...]:
    """Return the size points at which a workload was measured, from the stored measurement.

    `distribution` has the sizes and weights of the stored measurement (`Measurement.distribution`).
    A size point is a combination of sizes with a weight. Return () if `distribution` is empty, or
    if it has sizes that the workload cannot have. The attribute `share` of the points is not set.
    """
    points = []
    names = {dimension.name for dimension in workload.dimensions}
    for sizes, weight in distribution:
        if dict(sizes).keys() != names:
            return ()
        try:
            check_values(workload.dimensions, dict(sizes))
        except (KeyError, ValueError):
            return ()
        points.append(SizePoint(sizes, weight, least_seconds(workload.at(dict(sizes)), threads)))
    return tuple(points)


def _check(dimension: Dimension, shares: Mapping[int, float]) -> None:
    for size in shares:
        if size not in dimension:
            raise InvalidArgumentError(
                f"dimension '{dimension.name}': hint {size} is not a size of "
                f"{dimension.range_text}, the range that it has; state hints within it, such as "
                f"--dim '{dimension.name}=@{dimension.low * dimension.multiple}'"
            )


def _spread(dimension: Dimension) -> dict[int, float]:
    """Select sizes from each interval of a dimension; return their relative frequencies, by size.

    The frequency of an interval is proportional to its length on a logarithmic scale.
    """
    parts = intervals(_ended(dimension))
    found: dict[int, float] = {}
    for part in parts:
        sizes = _quantiles(part, DRAWN if len(parts) == 1 else _count(part))
        found |= dict.fromkeys(sizes, _ratio(part) / len(sizes))
    return found


def _count(interval: Dimension) -> int:
    """Return how many sizes to select from an interval.

    Select one size per doubling: log2(upper end / lower end), rounded up. Select at least 1 and at
    most DRAWN_OF_INTERVAL.
    """
    doubled = math.log2((interval.high or 1) / max(interval.low, 1))
    return min(max(math.ceil(doubled), 1), DRAWN_OF_INTERVAL)


def _ratio(dimension: Dimension) -> float:
    """Return the length of an interval on a logarithmic scale, log((largest + 1) / smallest)."""
    ended = _ended(dimension)
    return math.log(((ended.high or 0) + 1) / max(ended.low, 1))


def _ended(dimension: Dimension) -> Dimension:
    """Return the dimension; if its range has no upper end, limit the range to LONG."""
    if dimension.high is not None:
        return dimension
    return replace(dimension, high=max(LONG // dimension.multiple, dimension.low, 1))


def _quantiles(dimension: Dimension, count: int) -> list[int]:
    """Divide the range of a dimension into `count` equal parts on a logarithmic scale.

    Return the size in the middle of each part, without duplicates.
    """
    return list(dict.fromkeys(_quantile(dimension, (n + 0.5) / count) for n in range(count)))


def _quantile(dimension: Dimension, share: float) -> int:
    low, last = max(dimension.low, 1), _ended(dimension).high
    high = max(last or 0, low)
    number = round(low * math.pow(high / low, share))
    return min(max(number, dimension.low), high) * dimension.multiple


def _column(dimension: Dimension, stated: Mapping[int, float] | None, count: int) -> list[int]:
    """Return `count` sizes of a dimension, of which each represents an equal fraction of all runs.

    Without size hints, they are quantiles of the range. Otherwise, each size hint is repeated in
    proportion to its frequency.
    """
    if not stated:
        return [_quantile(dimension, (n + 0.5) / count) for n in range(count)]
    total, column = sum(stated.values()), []
    for n in range(count):
        left = (n + 0.5) / count * total
        for size in sorted(stated):
            left -= stated[size]
            if left <= 0:
                break
        column.append(size)
    return column


def _shuffled(column: Sequence[int], place: int) -> list[int]:
    """Return the sizes in `column` in a fixed order that looks random.

    The order follows multiples of the golden ratio modulo 1. Each value of `place` gives another
    order, so that the columns of several dimensions are shuffled differently.
    """
    count = len(column)
    golden = (math.sqrt(5) - 1) / 2
    order = sorted(range(count), key=lambda n: ((n + 0.5) * golden * (place + 1)) % 1.0)
    return [column[order.index(n)] for n in range(count)]
