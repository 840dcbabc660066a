"""Plans against each other, with made-up times: what is tried, and who decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from tests.graphs import Maker
from tests.unit.tuner.graph.rig import Rig, branches, layers
from tilewright.compiler.dtypes import DType
from tilewright.compiler.mode import Mode
from tilewright.compiler.passes.pipeline import optimise
from tilewright.compiler.plan.choices import RULE, GraphChoice, LayoutNames
from tilewright.compiler.plan.layouts.assignment import Assignment
from tilewright.compiler.plan.plan import GraphPlan
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.targets.host import resolve_target
from tilewright.tuner.graph.alternatives import alternatives
from tilewright.tuner.graph.planner import Planner, difference
from tilewright.tuner.graph.search import Compare, Decision, Race, search_graph
from tilewright.tuner.measure.statistics import Comparison

CONV: dict[str, tuple[int, ...] | int] = {
    "strides": (1, 1),
    "pads": (1, 1, 1, 1),
    "dilations": (1, 1),
    "group": 1,
}


def apart(workload: Workload) -> float:
    """Kernels of a product with its GELU take twice what they should."""
    return 2.0 if {"matmul", "gelu"} <= set(workload.operators) else 1.0


def whole(*ratios: float) -> Compare:
    """A comparison in which every alternative takes these times the rule's seconds, in pairs."""

    def compare(rule: GraphPlan, others: Sequence[GraphPlan]) -> Race:
        assert rule not in others
        return Race(1.0, tuple(Comparison("rule", ratios) for _ in others))

    return compare


def search(rig: Rig, compare: Compare) -> Decision:
    planner = Planner(layers(), Mode(rig.target))
    return search_graph(planner, rig.times(), 100, rig.measure, compare)


def test_what_is_equal_everywhere_is_turned_round_together() -> None:
    planner = Planner(layers(3), Mode(Rig().target))
    found = {each.choice.kept: each for each in alternatives(planner)}
    kept = found[frozenset({"wide0", "wide1", "wide2"})]
    assert kept.name == "matmul float32[64,512]: gelu not with matmul (3 places)"
    changes = difference(planner.plan(), kept.plan)
    assert [sorted(w.operators) for w in changes.old] == [["gelu", "matmul"]]
    assert sorted(w.operators for w in changes.new) == [("gelu",), ("matmul",)]
    assert frozenset({"narrow0", "narrow1", "narrow2"}) in found


def test_a_residual_is_offered_to_the_other_producer_and_to_none() -> None:
    kept = {each.choice.kept for each in alternatives(Planner(branches(), Mode(Rig().target)))}
    assert {frozenset({"late"}), frozenset({"early", "late"})} <= kept


@pytest.mark.parametrize("channels", [(8, 24), (24, 8)])
def test_alike_groups_with_other_options_get_the_same_layouts_or_keep_theirs(
    channels: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a convolution may read depends on its channels: the lists have another length."""
    g = Maker()
    outputs = []
    for number, count in enumerate(channels):
        weight = g.weight(f"w{number}", 24, count, 3, 3)
        x = g.input(f"x{number}", 1, count, 14, 14)
        outputs.append(g("conv", x, weight, name=f"y{number}", **CONV))
    planner = Planner(g.graph(*outputs), Mode(Rig().target))
    graph, groups = planner.groups()
    asked: list[set[LayoutNames]] = []
    original = Assignment.solve

    def solve(self: Assignment, fixed: Mapping[int, int] | None = None) -> list[int]:
        named = {n: self.options[n][k].choice.names(groups[n]) for n, k in (fixed or {}).items()}
        asked.append(set(named.values()))
        return original(self, fixed)

    monkeypatch.setattr(Assignment, "solve", solve)
    made = Assignment(graph, groups, planner.lanes, weight_macs=planner.weight_macs)
    first, second = (
        [option.choice.names(group) for option in options]
        for options, group in zip(made.options, groups, strict=True)
    )
    assert first != second
    alternatives(planner)
    proposed = [next(iter(names)) for names in asked if names]
    assert all(len(names) <= 1 for names in asked)
    assert {*proposed} & ({*first} ^ {*second}), "what one of them lacks is offered to the other"


def test_promising_alternatives_come_first_and_each_differs() -> None:
    planner = Planner(branches(), Mode(Rig().target))
    found = alternatives(planner)
    assert [each.potential for each in found] == sorted((e.potential for e in found), reverse=True)
    plans = [frozenset(dict(each.plan.tasks())) for each in found]
    assert len(set(plans)) == len(plans)
    assert frozenset(dict(planner.plan().tasks())) not in plans


def test_a_plan_that_is_faster_as_a_whole_is_chosen() -> None:
    rig = Rig(apart)
    found = search(rig, whole(*[0.9] * 8))
    assert found.choice.kept == {"wide0", "wide1"}
    assert (found.rule_seconds, found.seconds) == (1.0, 0.9)
    assert "10.0 % less as a whole" in found.reason
    (tried,) = [each for each in found.tried if each.choice == found.choice]
    assert tried.new_seconds is not None and tried.old_seconds is not None
    assert tried.new_seconds < tried.old_seconds
    assert (tried.ratio, tried.outcome) == (0.9, "faster")


@pytest.mark.parametrize("ratios", [[0.998] * 8, [1.3] * 8, [0.9] * 3, [0.8, 1.1] * 4])
def test_faster_kernels_do_not_decide_and_a_tie_keeps_the_rule(ratios: list[float]) -> None:
    rig = Rig(apart)
    found = search(rig, whole(*ratios))
    assert found.choice == RULE and found.plan == Planner(layers(), Mode(rig.target)).plan()
    assert "faster as a whole" in found.reason
    assert found.seconds == found.rule_seconds == 1.0


def test_without_time_for_a_comparison_the_rule_stays() -> None:
    found = search(Rig(apart), lambda rule, others: Race(1.0, ()))
    assert found.choice == RULE and found.reason.startswith("there was no time")


def test_alternatives_without_faster_kernels_are_never_run_as_a_whole() -> None:
    def compare(rule: GraphPlan, others: Sequence[GraphPlan]) -> Race:
        raise AssertionError("nothing to compare")

    found = search(Rig(), compare)
    assert found.choice == RULE and found.tried
    assert found.reason.startswith(f"none of {len(found.tried)} alternatives has kernels")


def test_a_gain_that_cannot_show_is_not_raced() -> None:
    def compare(rule: GraphPlan, others: Sequence[GraphPlan]) -> Race:
        raise AssertionError("nothing to compare")

    def barely(workload: Workload) -> float:
        return 1000.0 if workload.output.type.shape == (64, 256) else apart(workload)

    found = search(Rig(barely), compare)
    assert found.choice == RULE
    assert any((t.new_seconds or 0.0) < 0.9 * (t.old_seconds or 0.0) for t in found.tried)


def test_kernels_decide_where_no_plan_can_be_run() -> None:
    found = search(Rig(apart), lambda rule, others: None)
    assert found.choice.kept == {"wide0", "wide1"}
    assert "none was run as a whole" in found.reason
    assert found.seconds is None


def test_what_was_joined_for_the_race_is_told_with_its_kernels() -> None:
    """Alternatives that gain apart from each other are raced as one plan, which nobody measured."""

    def fused(workload: Workload) -> float:
        return 2.0 if len(workload.operators) > 1 else 1.0

    found = search(Rig(fused), lambda rule, others: None)
    assert found.choice.kept == {"wide0", "wide1", "narrow0", "narrow1"}
    (joined,) = [each for each in found.tried if each.choice == found.choice]
    assert joined.new_seconds is not None and joined.old_seconds is not None
    assert joined.new_seconds < joined.old_seconds


def test_a_model_whose_kernels_are_known_spends_nothing() -> None:
    rig = Rig(apart)
    first = search(rig, whole(*[0.9] * 8))
    assert rig.asked
    rig.asked.clear()
    assert search(rig, whole(*[0.9] * 8)).choice == first.choice
    assert not rig.asked


def test_only_so_many_kernels_are_measured() -> None:
    rig = Rig(apart)
    planner = Planner(layers(), Mode(rig.target))
    found = search_graph(planner, rig.times(), 3, rig.measure, whole(1.0))
    assert 0 < len(rig.asked) <= 3 and found.limited
    nothing = Rig(apart)
    found = search_graph(planner, nothing.times(), 0, nothing.measure, whole(1.0))
    assert not nothing.asked and found.choice == RULE and found.limited
    assert "kernels may be measured" in found.reason


def test_what_could_not_be_measured_is_not_chosen() -> None:
    rig = Rig(apart)
    planner = Planner(layers(), Mode(rig.target))
    found = search_graph(planner, rig.times(), 100, lambda workloads: None, whole(0.5))
    assert found.choice == RULE
    assert all(each.new_seconds is None for each in found.tried)


def test_a_pass_that_changes_nothing_is_not_left_out_once_more() -> None:
    """The same graph object: its constants are folded once. Where a pass works, it is left out."""
    g = Maker()
    q, k, v = (g.input(name, 2, 4, 8, 16) for name in "qkv")
    scores = g("matmul", q, g("transpose", k, perm=(0, 1, 3, 2)))
    graph = g.graph(g("matmul", g("softmax", scores, axis=3), v))
    planner = Planner(graph, Mode(Rig().target))
    rule = planner.optimised(RULE)
    assert planner.optimised(GraphChoice(without=frozenset({"pool_first"}))) is rule
    for names in ({"attention"}, {"attention", "pool_first"}):
        choice = GraphChoice(without=frozenset(names))
        assert planner.optimised(choice).nodes == optimise(graph, without=names).nodes != rule.nodes


def test_a_pass_that_the_target_does_not_suit_is_an_alternative() -> None:
    """Products of bytes without an instruction for them; with one, they are the rule."""
    g = Maker()
    x = g.input("x", 64, 256, dtype=DType.UINT8)
    w = g.constant("w", g.random.integers(-9, 9, (256, 256)).astype(np.int8))
    a, b = (g("cast", g("cast", v, to="int32"), to="float32") for v in (x, w))
    product = g("matmul", g("mul", a, g.constant("s", 0.5)), g("mul", b, g.constant("t", 0.25)))
    for name, found in (("x86-64-v3", True), ("cascadelake", False)):
        planner = Planner(g.graph(product), Mode(resolve_target(name)))
        names = [each.name for each in alternatives(planner)]
        assert ("with quantised_products" in names) is found


def test_so_are_pairs_of_computed_bytes() -> None:
    """As in an attention that is quantised between softmax and product."""
    g = Maker()
    x, y = (g.input(name, 4, 128, 128, dtype=DType.UINT8) for name in "xy")
    a, b = (g("cast", g("cast", v, to="int32"), to="float32") for v in (x, y))
    product = g("matmul", g("mul", a, g.constant("s", 0.5)), g("mul", b, g.constant("t", 0.25)))
    for name, found in (("x86-64-v3", True), ("cascadelake", False)):
        planner = Planner(g.graph(product), Mode(resolve_target(name)))
        names = [each.name for each in alternatives(planner)]
        assert ("with quantised_pairs" in names) is found
