"""Finds the fastest plan of a model: by measured kernels, then by runs of the whole model.

Alternatives are judged by the kernels that only one of the two plans runs, and layouts are chosen
again with measured costs. But a model's time is not the sum of its kernels' times: caches hold what
the last kernel left. So the best few plans are compiled and their runs interleaved, and only a plan
that is faster as a whole replaces the rule's. For the layouts see Anderson and Gregg, "Optimal DNN
Primitive Selection with Partitioned Boolean Quadratic Programming" (2018).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilewright.compiler.plan.choices import RULE, GraphChoice
from tilewright.compiler.plan.layouts.assignment import Assignment
from tilewright.compiler.plan.plan import GraphPlan
from tilewright.compiler.plan.workload import Workload
from tilewright.tuner.graph.alternatives import Alternative, alternatives, layout_choice
from tilewright.tuner.graph.planner import Planner, difference
from tilewright.tuner.graph.times import KernelTimes, MeasuredCosts
from tilewright.tuner.measure.model_runs import Race
from tilewright.tuner.measure.statistics import Outcome

NOISE = 0.01
"""Kernels that are measured apart differ by chance: an alternative goes on only if the kernels that
it changes take less by this share."""

VISIBLE = 0.005
"""A plan whose kernels save less than this share of the whole is not run: the addresses that the
buffers of two programs happen to have make as much of a difference."""

CLEARLY = 0.03
"""As `NOISE`, if plans cannot be run and only the sum of their kernels can decide."""

SINGLES = 2
"""So many single alternatives are run as a whole, beside all good ones joined in one plan."""


Measure = Callable[[Sequence[Workload]], None]
"""Measures the untuned defaults of these workloads, as far as the budget goes, and stores them."""

Compare = Callable[[GraphPlan, Sequence[GraphPlan]], Race | None]
"""Runs plans interleaved with the rule's, which comes first; None if the device cannot run them. If
time runs out, there are fewer comparisons than plans."""


@dataclass(frozen=True, slots=True)
class Tried:
    """One alternative. `kernels` counts the workloads that it and the rule's plan do not share.

    Of these, the rule's plan spends `old_seconds` on its own in each run, and the alternative
    `new_seconds`; None if some were not measured. If the whole models were compared, `ratio` is the
    alternative's time over the rule's, and `outcome` the result of the comparison.
    """

    name: str
    choice: GraphChoice
    kernels: int
    old_seconds: float | None = None
    new_seconds: float | None = None
    ratio: float | None = None
    outcome: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain data for `json`, without the choice."""
        return {
            "name": self.name,
            "kernels": self.kernels,
            "old_seconds": self.old_seconds,
            "new_seconds": self.new_seconds,
            "ratio": self.ratio,
            "outcome": self.outcome,
        }


@dataclass(frozen=True, slots=True)
class Decision:
    """The plan that was chosen, the reason, and the alternatives tried.

    `rule_seconds` and `seconds` are the times of one whole run of the rule's plan and of this one,
    with untuned kernels; None if they were not compared as a whole.
    """

    choice: GraphChoice
    plan: GraphPlan
    name: str
    reason: str
    rule_seconds: float | None
    seconds: float | None
    tried: tuple[Tried, ...]
    limited: bool = False
    """Whether alternatives were left out, because only so many kernels may be measured."""

    def to_json(self) -> dict[str, Any]:
        """Plain data for `json`, without the plan."""
        return {
            "name": self.name,
            "reason": self.reason,
            "choice": self.choice.to_json(),
            "rule_seconds": self.rule_seconds,
            "seconds": self.seconds,
            "tried": [each.to_json() for each in self.tried],
        }


RULE_NAME = "by rule"


def search_graph(
    planner: Planner, times: KernelTimes, limit: int, measure: Measure, compare: Compare
) -> Decision:
    """Choose a plan of a model.

    Args:
        planner: makes the model's plans.
        times: the known times of its kernels.
        limit: how many kernels without a known time may be measured.
        measure: measures them.
        compare: runs plans as a whole.
    """
    rule = planner.plan(RULE)
    offered = alternatives(planner)
    measured = _affordable(offered, times, limit)
    limited = len(measured) < len(offered)
    wanted = list(dict.fromkeys(w for each in measured for w in _in_order(each)))
    unknown = list({w.family: w for w in reversed(wanted) if not times.is_known(w)}.values())[::-1]
    if unknown:
        measure(unknown)
        times.load(wanted, again=True)
    tried = {each.choice: _tried(each, times) for each in measured}
    good = [each for each in measured if _gain(tried[each.choice]) > 0]
    good.sort(key=lambda each: -_gain(tried[each.choice]))
    finalists = _finalists(planner, times, good, has_layouts=bool(measured))
    if not finalists:
        reason = f"none of {len(measured)} alternatives has kernels that would show as a whole"
        if not measured:
            reason = "there is no alternative in doubt whose kernels may be measured"
        decision = Decision(RULE, rule, RULE_NAME, reason, None, None, tuple(tried.values()))
        return replace(decision, limited=limited)
    for each in finalists:
        tried.setdefault(each.choice, _tried(each, times))
    race = compare(rule, [each.plan for each in finalists])
    if race is None:
        return replace(_by_kernels(rule, finalists, tried), limited=limited)
    finalists = finalists[: len(race.comparisons)]
    for each, found in zip(finalists, race.comparisons, strict=True):
        tried[each.choice] = replace(
            tried[each.choice], ratio=found.ratio, outcome=found.outcome.value
        )
    decision = _as_a_whole(rule, finalists, race, tuple(tried.values()))
    return replace(decision, limited=limited)


def _affordable(
    offered: Sequence[Alternative], times: KernelTimes, limit: int
) -> list[Alternative]:
    """The most promising alternatives whose kernels' times are known or may be measured."""
    found: list[Alternative] = []
    unknown: set[str] = set()  # families: one of each is measured
    for each in offered:
        more = {w.family for w in each.changes.workloads if not times.is_known(w)}
        if len(unknown | more) <= limit:
            unknown |= more
            found.append(each)
    return found


def _in_order(alternative: Alternative) -> list[Workload]:
    return [*alternative.changes.old, *alternative.changes.new]


def _tried(alternative: Alternative, times: KernelTimes) -> Tried:
    changes = alternative.changes
    known = all(times.is_known(workload) for workload in changes.workloads)
    return Tried(
        alternative.name,
        alternative.choice,
        len(changes.workloads),
        times.total(changes.old) if known else None,
        times.total(changes.new) if known else None,
    )


def _gain(tried: Tried, noise: float = NOISE) -> float:
    """Seconds that an alternative saves by its measured kernels, beyond what may be noise."""
    if tried.old_seconds is None or tried.new_seconds is None:
        return 0.0
    return tried.old_seconds * (1 - noise) - tried.new_seconds


def _finalists(
    planner: Planner, times: KernelTimes, good: Sequence[Alternative], *, has_layouts: bool
) -> list[Alternative]:
    """All good alternatives joined, with layouts by measured costs, and the best single ones."""
    rule = planner.plan(RULE)
    best, names = RULE, []
    least = 0.0
    for each in good:
        if each.choice.layouts:
            continue  # `_measured_layouts` chooses all layouts together
        joined = best | each.choice
        gain = _saved(planner, times, joined)
        if gain > least:
            best, least = joined, gain
            names.append(each.name)
    if has_layouts:
        layouts = _measured_layouts(planner, times, best)
        gain = _saved(planner, times, layouts)
        if gain > least:
            best, least = layouts, gain
            names.append("layouts by measured costs")
    found: list[Alternative] = []
    if names:
        plan = planner.plan(best)
        changes = difference(rule, plan)
        found.append(Alternative("; ".join(names), best, plan, changes, 0.0))
    for each in good[:SINGLES]:
        if all(each.plan.tasks() != other.plan.tasks() for other in found):
            found.append(each)
    visible = VISIBLE * times.total(dict(rule.tasks()))
    return [each for each in found if _saved(planner, times, each.choice) > visible]


def _saved(planner: Planner, times: KernelTimes, choice: GraphChoice) -> float:
    """Seconds that a choice saves by its kernels; those that were not measured are estimated."""
    changes = difference(planner.plan(RULE), planner.plan(choice))
    return times.total(changes.old) * (1 - NOISE) - times.total(changes.new)


def _measured_layouts(planner: Planner, times: KernelTimes, choice: GraphChoice) -> GraphChoice:
    """The choice with the layouts that cost least by measured times."""
    graph, groups = planner.groups(choice)
    lanes, macs = planner.lanes, planner.weight_macs
    costs = MeasuredCosts(graph, groups, lanes, choice, times.bare(), macs)
    made = Assignment(graph, groups, lanes, choice, costs, macs)
    return choice | layout_choice(groups, made.choices(made.solve()))


def _by_kernels(
    rule: GraphPlan, finalists: Sequence[Alternative], tried: dict[GraphChoice, Tried]
) -> Decision:
    """Decide by the sum of kernels, if plans cannot be run."""
    best = max(finalists, key=lambda each: _gain(tried[each.choice], CLEARLY))
    if _gain(tried[best.choice], CLEARLY) <= 0:
        reason = "no alternative's kernels are clearly faster; none was run as a whole"
        return Decision(RULE, rule, RULE_NAME, reason, None, None, tuple(tried.values()))
    saved = _percent(tried[best.choice].old_seconds, tried[best.choice].new_seconds)
    reason = f"its kernels take {saved} less than the rule's; none was run as a whole"
    return Decision(best.choice, best.plan, best.name, reason, None, None, tuple(tried.values()))


def _as_a_whole(
    rule: GraphPlan, finalists: Sequence[Alternative], race: Race, tried: tuple[Tried, ...]
) -> Decision:
    first = race.incumbent_seconds
    faster = [
        (found.ratio, number)
        for number, found in enumerate(race.comparisons)
        if found.outcome is Outcome.FASTER
    ]
    if not faster:
        reason = f"none of {len(finalists)} alternatives is faster as a whole"
        if not finalists:
            reason = "there was no time to run any alternative as a whole"
        return Decision(RULE, rule, RULE_NAME, reason, first, first, tried)
    ratio, number = min(faster)
    chosen = finalists[number]
    reason = f"takes {_percent(1.0, ratio)} less as a whole, interleaved with the rule's"
    return Decision(chosen.choice, chosen.plan, chosen.name, reason, first, first * ratio, tried)


def _percent(old: float | None, new: float | None) -> str:
    return f"{100 * (1 - (new or 0.0) / old):.1f} %" if old else "0 %"
