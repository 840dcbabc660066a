"""Selects the sizes at which a program with dynamic dimensions is verified.

The sizes are the program's size hints (expected sizes), both ends of the ranges, and random sizes.
NumPy computes the reference slowly. So if a size needs many times as many operations as the size
hints, a size nearer to the hints is verified instead. A node that only moves data or reads shapes
counts as one operation per element.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import isqrt
from random import Random

from tilewright.compiler.graph.ir import Graph
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.ops.attributes import integer
from tilewright.compiler.plan import costs
from tilewright.compiler.sizes import Dimension, at, dynamic_size, typical
from tilewright.service.jobs.plan.planning import DynamicPlan, Planned

DRAWN = 2
"""Number of random size vectors that are verified in addition to the ends of the ranges and the
size hints."""

MOST = 8
"""Limit of the operations at sizes other than the hints, as a multiple of the operations at the
hints."""

MANY = 50_000_000
"""If a model's values have at least this number of elements, other sizes may need at most as many
operations as the hints, because NumPy takes seconds for each operator."""

FEW = 10_000_000
"""Number of operations that are always permitted at sizes other than the hints, because the
reference computes them in negligible time."""

STEPS_ELEMENTS = 32_000_000
"""Number of elements of a model's values up to which the model is always verified step by step.
This takes two to five seconds."""

STEPS_OPERATIONS = 8_000_000_000
"""Number of operations up to which a model is always verified step by step."""


def costs_little(planned: Planned) -> bool:
    """Whether a model is so small that it is always verified step by step.

    Its values must have at most STEPS_ELEMENTS elements, and a run at most STEPS_OPERATIONS
    operations.
    """
    graph, plan = planned.graph, planned.plan
    made = [kind for name, kind in graph.types.items() if name not in graph.constants]
    computed = sum(costs.flops(w) * count for w, count in plan.tasks())
    return elements(made, {}) <= STEPS_ELEMENTS and computed <= STEPS_OPERATIONS


def at_hints(planned: Planned) -> tuple[Planned, ...]:
    """Return the plan at each of its size hints (expected sizes), with fixed sizes.

    A plan without dynamic dimensions is returned unchanged, as the only element.
    """
    found = planned.open
    if found is None:
        return (planned,)
    return tuple(_at(planned, found, sizes) for sizes in _hints(planned, found))


def at_other_sizes(
    planned: Planned, share: Callable[[], float] = lambda: MOST
) -> Iterator[Planned]:
    """Yield the plan, with fixed sizes, at both ends of its ranges and then at random sizes.

    A size with too many operations is replaced by a size nearer to the first size hint (an expected
    size).

    Args:
        planned: the plan; nothing is yielded if it has no dynamic dimensions.
        share: returns the largest number of operations at the next size, relative to the operations
            at the first size hint. Values above MOST count as MOST.
    """
    found = planned.open
    if found is None:
        return
    known = {d.name: d for d in found.ranges}
    draw = Random(0)
    ends = ({n: end_of(d, last=last) for n, d in known.items()} for last in (False, True))
    drawn = ({n: _drawn(d, draw) for n, d in known.items()} for _ in range(DRAWN))
    for sizes in _different(planned, found, (*ends, *drawn), _hints(planned, found), share):
        yield _at(planned, found, sizes)


def at_verified_sizes(planned: Planned) -> tuple[Planned, ...]:
    """Return the plan, with fixed sizes, at all sizes at which its program is verified.

    The first sizes are the size hints (expected sizes).
    """
    return (*at_hints(planned), *at_other_sizes(planned))


def _hints(planned: Planned, found: DynamicPlan) -> list[dict[str, int]]:
    """Return the combinations of sizes that are verified first, each as a size by dimension.

    The first combination has the sizes of `planned`. Then follow the sizes that a user states or
    that the samples of inputs have.

    Args:
        planned: the plan at fixed sizes.
        found: the plan with dynamic dimensions.
    """
    sizes_of = dict(planned.sizes)
    first = {d.name: sizes_of[d.name] for d in found.ranges}
    if not found.stated:
        return [first]
    stated = [dict(each.sizes) for each in found.drawn]
    return [first, *_different(planned, found, stated, [first])]


def _different(
    planned: Planned,
    found: DynamicPlan,
    wanted: Iterable[dict[str, int]],
    seen: Sequence[dict[str, int]],
    share: Callable[[], float] = lambda: MOST,
) -> Iterator[dict[str, int]]:
    """Yield combinations of sizes, without duplicates and without the combinations in `seen`.

    If a combination needs too many operations, its sizes are moved towards those of `seen[0]`.

    Args:
        planned: the plan at fixed sizes.
        found: the plan with dynamic dimensions.
        wanted: the combinations, each with a size per dimension.
        seen: combinations that were verified before; not empty.
        share: returns the largest number of operations at the next combination, relative to the
            operations at `seen[0]`.
    """
    known = {d.name: d for d in found.ranges}
    made = [kind for name, kind in found.graph.types.items() if name not in found.graph.constants]
    compared = sum(_comparisons(graph) for graph in found.graph.walk())

    def operations(sizes: Mapping[str, int]) -> int:
        computed = sum(costs.flops(w) * count for w, count in found.plan.at(sizes).tasks())
        return max(computed + at(compared, sizes), elements(made, sizes))

    known_sizes = [*seen]
    first = known_sizes[0]
    more = MOST if elements(made, first) < MANY else 1
    for sizes in wanted:
        most = max(int(min(more, share()) * operations(first)), FEW)
        near = affordable(known, sizes, first, most, operations)
        if near not in known_sizes:
            known_sizes.append(near)
            yield near


def _at(planned: Planned, found: DynamicPlan, sizes: Mapping[str, int]) -> Planned:
    return replace(
        planned,
        graph=found.graph.at(sizes),
        plan=found.plan.at(sizes),
        sizes=tuple(sorted(sizes.items())),
    )


def _comparisons(graph: Graph) -> int:
    """Return the number of box pairs that the non-maximum suppressions of a graph compare.

    The function `costs.flops` does not count these comparisons. If the number depends on dynamic
    dimensions, the returned integer encodes a formula in the dimensions (`compiler.sizes`).
    """
    return sum(
        integer(node.attrs, "room") * graph.types[node.inputs[1]].elements
        for node in graph.nodes
        if node.op == "non_max_suppression"
    )


def elements(types: Iterable[TensorType], sizes: Mapping[str, int]) -> int:
    """Return the total number of elements of values with these types.

    Args:
        types: the types, which may have dynamic dimensions.
        sizes: the size of each dynamic dimension.
    """
    return sum(at(each.elements, sizes) for each in types)


def end_of(dimension: Dimension, *, last: bool) -> int:
    """Return the largest size in a dimension's range if `last`, otherwise the smallest.

    A range without an upper end has no largest size. MOST times its typical size is returned
    instead; the typical size is usually at most 128 (`compiler.sizes.values.typical`).
    """
    if not last:
        return dimension.low * dimension.multiple
    if dimension.high is None:
        return MOST * typical(dynamic_size(dimension))
    return dimension.high * dimension.multiple


def _drawn(dimension: Dimension, draw: Random) -> int:
    """Return a random size in a dimension's range, uniform on a logarithmic scale."""
    low, high = dimension.low, end_of(dimension, last=True) // dimension.multiple
    share = draw.random()
    number: int = round(max(low, 1) ** (1 - share) * max(high, 1) ** share)
    return min(max(number, low), high) * dimension.multiple


def affordable(
    known: Mapping[str, Dimension],
    wanted: dict[str, int],
    near: Mapping[str, int],
    most: int,
    cost: Callable[[Mapping[str, int]], int],
) -> dict[str, int]:
    """Move the wanted sizes towards `near` until the model costs at most `most` at these sizes.

    Args:
        known: the dimensions by name.
        wanted: the wanted sizes, by dimension.
        near: the sizes that are returned if all sizes between `wanted` and `near` cost too much.
        most: the limit of the cost, in the unit of `cost`.
        cost: returns the cost of the model at some sizes.
    """
    while wanted != near and cost(wanted) > most:
        wanted = {
            name: size
            if size <= near[name]
            else max(isqrt(size * near[name]) // known[name].multiple, 1) * known[name].multiple
            for name, size in wanted.items()
        }
        if all(size <= near[name] + known[name].multiple for name, size in wanted.items()):
            return dict(near)
    return wanted
