"""The sizes at which a model with ranges is explained and profiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from compiler import costs
from compiler.ranges import Shares
from compiler.sizes import Dimension, open_size, typical
from service.jobs.planning import Planned
from service.jobs.verified_sizes import affordable, end_of
from tuner.drawn_sizes import draw_sizes

LONG_RUN = 10**11
"""What a run may cost (`compiler.costs.cost`) that nobody minds waiting for: a second or two of one
core."""

TIMES = 8
"""How many times the cost of typical sizes the largest sizes may have, if that is more."""


def shown_sizes(planned: Planned, stated: Shares | None = None) -> list[dict[str, int]]:
    """Sizes of a model's open dimensions: those that are stated, or else typical ones and the
    largest, or as near to these as a run stays short. One without a name if nothing is open.

    Raises:
        InvalidArgumentError: naming a dimension that is not open, or a size that it cannot have.
    """
    found = planned.open
    if found is None:
        return sizes_of_ranges((), stated)

    def near(wanted: dict[str, int], first: Mapping[str, int]) -> dict[str, int]:
        most = max(TIMES * cost(first), LONG_RUN)
        return affordable(known, wanted, first, most, cost)

    def cost(sizes: Mapping[str, int]) -> int:
        return round(sum(costs.cost(w) * count for w, count in found.plan.at(sizes).tasks()))

    known = {d.name: d for d in found.ranges}
    return sizes_of_ranges(found.ranges, stated, near)


def sizes_of_ranges(
    ranges: Sequence[Dimension],
    stated: Shares | None = None,
    near: Callable[[dict[str, int], Mapping[str, int]], dict[str, int]] = lambda wanted, _: wanted,
) -> list[dict[str, int]]:
    """Sizes of these dimensions, as of `shown_sizes`; `near` gives for the largest sizes and the
    typical ones which are shown.

    Raises:
        InvalidArgumentError: as `shown_sizes` does.
    """
    if stated or not ranges:
        return [dict(each.sizes) for each in draw_sizes(ranges, stated)] or [{}]
    first = {d.name: typical(open_size(d)) for d in ranges}
    last = near({d.name: end_of(d, last=True) for d in ranges}, first)
    return [first] if last == first else [first, last]
