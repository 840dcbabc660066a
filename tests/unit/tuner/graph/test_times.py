"""What kernels are known to take, and layouts by what was measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.tuner.graph.rig import Rig, branches, layers
from tilewright.compiler.loops.layout import ROW_MAJOR, Layout, blocked
from tilewright.compiler.mode import Mode
from tilewright.compiler.plan.choices import RULE
from tilewright.compiler.plan.layouts.assignment import Assignment
from tilewright.compiler.plan.layouts.options import ESTIMATES
from tilewright.compiler.plan.placement import Placement
from tilewright.compiler.plan.workload import Workload
from tilewright.tuner.graph.planner import Planner, operations
from tilewright.tuner.graph.times import MeasuredCosts, kind_of, relayout, without_halos


def products(rig: Rig) -> list[Workload]:
    return [workload for workload, _ in Planner(layers(1), Mode(rig.target)).plan().tasks()]


def test_a_record_counts_before_the_default_and_both_before_an_estimate() -> None:
    rig = Rig()
    first, second = products(rig)
    times = rig.times()
    assert not times.is_known(first) and times.measured(first) is None
    rig.trial(first, 4.0)
    times.load([first], again=True)
    assert times.seconds(first) == 4.0
    # the other one is estimated at the rate of its kind
    assert times.seconds(second) == pytest.approx(4.0 * operations(second) / operations(first))
    rig.record(first, 3.0)
    assert rig.times().seconds(first) == 3.0


def test_a_default_counts_as_what_tuning_would_leave_of_it() -> None:
    rig = Rig()
    first, second = products(rig)
    rig.trial(first, 4.0)
    rig.record(first, 3.0)
    rig.trial(second, 8.0)
    times = rig.times()
    times.load([first, second])
    assert kind_of(first) == kind_of(second) == "matmul"
    assert times.seconds(second) == pytest.approx(6.0)
    assert times.total({first: 2, second: 1}) == pytest.approx(12.0)


def test_what_another_version_measured_is_not_known() -> None:
    rig = Rig()
    first, second = products(rig)
    rig.trial(first, 4.0, "v0")
    rig.record(second, 3.0, "v0")
    times = rig.times()
    assert not times.is_known(first) and not times.is_known(second)


NCHW16 = blocked(4, 1, 16)


def layouts(factor: float) -> dict[str, Layout]:
    """How the values between two convolutions lie where kernels on blocks take `factor` times what
    their operations say; kernels on rows and relayouts take just that."""
    rig = Rig()
    planner = Planner(branches(), Mode(rig.target))
    graph, groups = planner.groups()
    made = Assignment(graph, groups, planner.lanes)
    costs = MeasuredCosts(graph, groups, planner.lanes, RULE, {})
    known: dict[Workload, float] = {}
    for group, options in zip(groups, made.options, strict=True):
        for option in options:
            workload = costs.cut(group, option)
            slow = factor if option.choice.output == NCHW16 else 1.0
            known[workload] = slow * operations(workload)
    measured = MeasuredCosts(graph, groups, planner.lanes, RULE, known)
    best = Assignment(graph, groups, planner.lanes, RULE, measured)
    choices = best.choices(best.solve())
    return {group.output: c.output for group, c in zip(groups, choices, strict=True)}


def test_layouts_follow_what_was_measured() -> None:
    assert layouts(0.2)["early"] == NCHW16
    assert set(layouts(5.0).values()) == {ROW_MAJOR}


def test_options_that_were_not_measured_cost_their_estimate_at_the_rate_of_others() -> None:
    rig = Rig()
    planner = Planner(branches(), Mode(rig.target))
    graph, groups = planner.groups()
    made = Assignment(graph, groups, planner.lanes)
    group = next(group for group in groups if group.output == "early")
    one, other = made.options[groups.index(group)][:2]
    nothing = MeasuredCosts(graph, groups, planner.lanes, RULE, {})
    assert nothing.kernel(group, one) == one.cost
    known = {nothing.cut(group, one): 3 * one.cost}
    measured = MeasuredCosts(graph, groups, planner.lanes, RULE, known)
    assert measured.kernel(group, one) == 3 * one.cost
    assert measured.kernel(group, other) == pytest.approx(3 * other.cost)


def test_relayouts_are_measured_kernels() -> None:
    rig = Rig()
    planner = Planner(branches(), Mode(rig.target))
    graph, groups = planner.groups()
    kind = graph.types["x"]
    rows, blocks = Placement(), Placement(NCHW16)
    known = {relayout(kind, rows, blocks): 7.0}
    costs = MeasuredCosts(graph, groups, planner.lanes, RULE, known)
    assert costs.copy(kind, rows, blocks) == 7.0
    assert costs.copy(kind, rows, rows) == 0.0
    halo = ((0, 0), (0, 0), (1, 1), (1, 1))
    padded = relayout(kind, rows, Placement(NCHW16, halo))
    assert without_halos(padded) == relayout(kind, rows, blocks)


def test_relayouts_that_were_not_measured_take_the_ratio_of_those_that_were() -> None:
    planner = Planner(branches(), Mode(Rig().target))
    graph, groups = planner.groups()
    kind = graph.types["x"]
    other = replace(kind, shape=(1, 64, 14, 14))
    rows, blocks = Placement(), Placement(NCHW16)
    nothing = MeasuredCosts(graph, groups, planner.lanes, RULE, {})
    options = Assignment(graph, groups, planner.lanes).options
    group, kernel = next((g, o[0]) for g, o in zip(groups, options, strict=True) if o[0].cost)
    known = {
        nothing.cut(group, kernel): 1000 * kernel.cost,
        relayout(kind, rows, blocks): 2 * ESTIMATES.copy(kind, rows, blocks),
    }
    costs = MeasuredCosts(graph, groups, planner.lanes, RULE, known)
    assert costs.copy(other, rows, blocks) == 2 * ESTIMATES.copy(other, rows, blocks)
    assert costs.kernel(group, kernel) == 1000 * kernel.cost
