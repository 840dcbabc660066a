"""Plans of one model under different choices."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tilewright.compiler import driver
from tilewright.compiler.dtypes import DType
from tilewright.compiler.graph.ir import Graph
from tilewright.compiler.mode import Mode
from tilewright.compiler.passes.pipeline import PASSES, Observer
from tilewright.compiler.plan import costs
from tilewright.compiler.plan.choices import RULE, GraphChoice
from tilewright.compiler.plan.fusion import Group
from tilewright.compiler.plan.layouts.costs import OPERATIONS_A_BYTE
from tilewright.compiler.plan.partition import fused
from tilewright.compiler.plan.plan import GraphPlan
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.timings import Timings


@dataclass(frozen=True, slots=True)
class Optimised:
    """A graph after all passes; `changing` names the passes that had an effect."""

    graph: Graph
    changing: frozenset[str]


def optimise(
    graph: Graph,
    mode: Mode,
    observer: Observer | None = None,
    timings: Timings | None = None,
) -> Optimised:
    """Run all passes; `observer` sees the graph after each.

    Raises:
        CompilerError: if a weight does not fit into the precision.
    """
    changing: set[str] = set()
    last = graph

    def observe(name: str, after: Graph) -> None:
        nonlocal last
        if after is not last:
            changing.add(name)
        last = after
        if observer is not None:
            observer(name, after)

    made = driver.optimise(graph, mode, observe, timings)
    if any(node.bodies for node in made.nodes):
        # Passes over bodies are not observed: any of them may have had an effect.
        changing.update(step.__name__ for step in PASSES)
    return Optimised(made, frozenset(changing))


@dataclass(slots=True)
class Planner:
    """Makes plans of a model's graph as it was imported, and keeps them.

    `rule` is the graph after all passes, if the caller has it.
    """

    graph: Graph
    mode: Mode
    rule: Optimised | None = None
    _optimised: dict[tuple[frozenset[str], frozenset[str]], Graph] = field(default_factory=dict)
    _plans: dict[GraphChoice, GraphPlan] = field(default_factory=dict)

    @property
    def lanes(self) -> int:
        """The vector lanes for which layouts are made."""
        return self.mode.target.lanes(DType.FLOAT32)

    @property
    def weight_macs(self) -> float:
        """The fact of the core that layout costs need (`compiler.targets.families.CoreModel`)."""
        return self.mode.target.core.weight_macs

    def optimised(self, choice: GraphChoice) -> Graph:
        """The graph after all passes that suit the target, and those that the choice includes, but
        those that it leaves out."""
        if self.rule is None:
            self.rule = optimise(self.graph, self.mode)
        added = choice.including & driver.unsuited_passes(self.mode.target)
        if choice.without.isdisjoint(self.rule.changing) and not added:
            return self.rule.graph
        key = choice.without, added
        if key not in self._optimised:
            self._optimised[key] = driver.optimise(self.graph, self.mode, choice=choice)
        return self._optimised[key]

    def groups(self, choice: GraphChoice = RULE) -> tuple[Graph, tuple[Group, ...]]:
        """The graph that is cut into kernels, and its groups."""
        return fused(self.optimised(choice), choice)

    def plan(self, choice: GraphChoice = RULE) -> GraphPlan:
        """The plan under a choice.

        Raises:
            CompilerError: if the choice does not fit the graph.
        """
        if choice not in self._plans:
            self._plans[choice] = driver.make_plan(self.optimised(choice), self.mode, choice=choice)
        return self._plans[choice]


@dataclass(frozen=True, slots=True)
class Difference:
    """The kernels that only one of two plans runs, or runs more often, with their counts."""

    old: Counter[Workload]
    new: Counter[Workload]

    @property
    def workloads(self) -> set[Workload]:
        """All kernels whose times decide between the plans."""
        return {*self.old, *self.new}


def difference(old: GraphPlan, new: GraphPlan) -> Difference:
    """The kernels that change from one plan to another, without those that both run."""
    before, after = Counter(dict(old.tasks())), Counter(dict(new.tasks()))
    return Difference(before - after, after - before)


def operations(workload: Workload) -> float:
    """A kernel's cost in operations: its arithmetic, and its bytes as in `plan.layouts.costs`.

    Layouts count only by the bytes that they take.
    """
    moved = costs.bytes_read(workload) + costs.bytes_written(workload)
    return costs.flops(workload) + OPERATIONS_A_BYTE * moved
