"""Selects the sizes at which a model with dynamic dimensions is explained and profiled."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tilewright.compiler.plan import costs
from tilewright.compiler.profile import profile_text, size_hints
from tilewright.compiler.runtime.ports import ModelPorts, ranges_text
from tilewright.compiler.sizes import Dimension
from tilewright.compiler.sizes.hinted_ranges import Shares
from tilewright.service.jobs.evidence.verified_sizes import affordable, elements, end_of
from tilewright.service.jobs.plan.planning import Planned
from tilewright.tuner.random_sizes import sample_sizes

LONG_RUN = 10**11
"""Cost of a run (`compiler.plan.costs.cost`) for which a user can wait: a second or two on one
core."""

TIMES = 8
"""Limit of the cost of the largest sizes, as a multiple of the cost at the size hints. A cost up to
`LONG_RUN` is always permitted."""

FIRST_STAGE = "the data decide sizes; the figures are those of the first stage"
"""Remark for the user if only the first stage of a model with data-dependent sizes is shown."""


def shown_sizes(planned: Planned) -> list[dict[str, int]]:
    """Return the combinations of sizes of a model's dynamic dimensions at which it is explained.

    These are the expected sizes that the user states or samples have. Without such sizes, there are
    two combinations: the default sizes, and the largest sizes at which a run is still short. A run
    is short if its estimated cost is at most a second or two of one core, or at most TIMES the cost
    at the default sizes. For a model without dynamic dimensions, the result is a single empty
    mapping.
    """
    found = planned.open
    if found is None:
        return [{}]
    if found.stated:
        return [dict(each.sizes) for each in found.drawn]

    inputs = [found.graph.types[name] for name in found.graph.inputs]

    def cost(sizes: Mapping[str, int]) -> int:
        run = round(sum(costs.cost(w) * count for w, count in found.plan.at(sizes).tasks()))
        # inputs of which only the shape is read are allocated, too
        return max(run, round(costs.FLOPS_PER_BYTE) * elements(inputs, sizes))

    known = {d.name: d for d in found.ranges}
    first = {name: size for name, size in planned.sizes if name in known}
    largest = {d.name: end_of(d, last=True) for d in found.ranges}
    last = affordable(known, largest, first, max(TIMES * cost(first), LONG_RUN), cost)
    return [first] if last == first else [first, last]


def hinted_sizes(
    ports: ModelPorts,
    ranges: Sequence[Dimension],
    stated: Shares | None = None,
    given: Collection[str] = (),
) -> list[dict[str, int]]:
    """Return the combinations of sizes at which to run a compiled program.

    The sizes of a dimension are the size hints (expected sizes) that the user states. Without
    stated hints, sizes are spread over the range that the user has given. Without a given range,
    the sizes are the hints that the artifact stores, or default hints that the compiler selects.

    Args:
        ports: the program's inputs and outputs, with the hints of an artifact.
        ranges: the ranges of the dynamic dimensions.
        stated: the hints that the user states; each has the fraction of runs with this size.
        given: the names of the dimensions whose range the user has given.

    Raises:
        InvalidArgumentError: if a hint names a dimension that is not dynamic, or a size that the
            dimension cannot have.
    """
    free = [d for d in ranges if d.name not in given]
    hints = {name: (size,) for name, size in size_hints(ports, free).items()} | {
        d.name: ports.hints[d.name] for d in free if d.name in ports.hints
    }
    own = {name: dict.fromkeys(sizes, 1.0) for name, sizes in hints.items()}
    return stated_sizes(ranges, {**own, **(stated or {})})


def stated_sizes(ranges: Sequence[Dimension], stated: Shares | None) -> list[dict[str, int]]:
    """Return the combinations of sizes at which to run a model.

    The sizes of a dimension are the size hints (expected sizes) in `stated`. Without hints, sizes
    are spread over the range of the dimension. If `ranges` is empty, the result is a single empty
    mapping.

    Args:
        ranges: the ranges of the dynamic dimensions.
        stated: the size hints by dimension; each has the fraction of runs with this size.

    Raises:
        InvalidArgumentError: if a hint names a dimension that is not dynamic, or a size that the
            dimension cannot have.
    """
    return [dict(each.sizes) for each in sample_sizes(ranges, stated)] or [{}]


def range_lines(planned: Sequence[Planned]) -> list[str]:
    """Return lines of text for the user: the ranges of sizes that an artifact supports.

    The text says which ranges are defaults, and which dimensions had to be fixed to a size.
    """
    if planned[0].stages is not None:
        return [f"the data decide sizes: {len(planned)} programs, run in stages"]
    lines = []
    for each in planned:
        if each.open is not None:
            lines.append(f"one program for {ranges_text(each.open.ranges)}")
            open_plan = each.open
            lines.append(profile_text(open_plan.ranges, open_plan.hinted, open_plan.defaults))
        lines += each.notes
    return [line for line in lines if line]
