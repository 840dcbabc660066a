"""Layout assignment: the memory layout of every value between kernels, for the least total cost.

Before:                                     After (16 lanes):
    {conv, relu}: row -> row                    {conv, relu}: row -> 0 1/16 2 3 1%16
    {conv, add}:  row -> row                    {conv, add}: 0 1/16 2 3 1%16 -> 0 1/16 2 3 1%16
    {softmax}:    row -> row                    {identity}: 0 1/16 ... -> row; {softmax}: row

Each group of nodes has options (`options.py`): the layouts that it reads and writes, and the cost
of its kernel. If a value is read in another layout than it is written in, it is copied, once for
all groups that need the same layout. `pbqp.py` chooses the options for the whole graph
together; its choice is the cheapest in graphs of chains, branches that join again, and skip
connections. Also called data layout transformation. Liu et al., "Optimizing CNN Model Inference on
CPUs" (2019), solve it for convolutions.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from tilewright.compiler.errors import InvalidArgumentError
from tilewright.compiler.graph.ir import Graph
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.loops.layout import ROW_MAJOR, Layout
from tilewright.compiler.plan.choices import RULE, GraphChoice, GroupLayouts
from tilewright.compiler.plan.fusion import Group
from tilewright.compiler.plan.layouts.costs import WEIGHT_MACS
from tilewright.compiler.plan.layouts.options import LayoutChoice, Option, Options, copied
from tilewright.compiler.plan.layouts.pbqp import Pbqp
from tilewright.compiler.plan.placement import Placement


def assign_layouts(
    graph: Graph,
    groups: tuple[Group, ...],
    lanes: int,
    choice: GraphChoice = RULE,
    *,
    weight_macs: float = WEIGHT_MACS,
) -> tuple[LayoutChoice, ...]:
    """Choose the layouts of each group: those in `choice`, and the cheapest for all others.

    The result has one entry per group, in order. `weight_macs` is the number of multiplications
    that a core computes while it loads one float32 weight from memory (`CoreModel.weight_macs`).

    Raises:
        InvalidArgumentError: if `choice` has layouts that are not among a group's options.
    """
    problem = Assignment(graph, groups, lanes, choice, weight_macs=weight_macs)
    return problem.choices(problem.solve())


class Assignment:
    """The possible layouts of all groups of nodes.

    `solve` chooses one option per group for the least total cost.
    """

    def __init__(
        self,
        graph: Graph,
        groups: Sequence[Group],
        lanes: int,
        choice: GraphChoice = RULE,
        weight_macs: float = WEIGHT_MACS,
    ) -> None:
        self._graph = graph
        self._types = graph.typical().types
        self._inputs = frozenset(graph.inputs)
        self._groups = groups
        options = Options(graph, lanes, choice.copied, weight_macs)
        chosen = dict(choice.layouts)
        self.options = [
            _chosen(options.of(group), group, chosen.get(group.output)) for group in groups
        ]
        self._problem = Pbqp()
        self._readers: dict[str, list[int]] = {}
        for number, group in enumerate(groups):
            self._problem.node([self._own(number, option) for option in self.options[number]])
            for value in group.inputs:
                if value not in graph.constants:
                    self._readers.setdefault(value, []).append(number)
        makers = {group.output: number for number, group in enumerate(groups)}
        for value, readers in self._readers.items():
            self._connect(value, makers.get(value), readers)

    def solve(self) -> list[int]:
        """Return the index of the option chosen for each group, in the order of the groups.

        The indices refer to `Assignment.options`. The total cost is the least possible, or near it
        for graphs that `Pbqp.solve` cannot solve exactly.
        """
        return self._problem.solve()[: len(self._groups)]

    def choices(self, numbers: Sequence[int]) -> tuple[LayoutChoice, ...]:
        return tuple(o[n].choice for o, n in zip(self.options, numbers, strict=True))

    def total(self, numbers: Sequence[int]) -> float:
        """Return the total cost of a solution: the costs of all kernels, and of all layout copies.

        `numbers` has the index of each group's option. A copy that several groups read counts once.
        """
        total = sum(
            self._own(group, options[number])
            for group, (options, number) in enumerate(zip(self.options, numbers, strict=True))
        )
        written = {
            group.output: self.options[i][numbers[i]].choice.output
            for i, group in enumerate(self._groups)
        }
        for value, readers in self._readers.items():
            kind, source = self._types[value], written.get(value, ROW_MAJOR)
            wanted = {self.options[i][numbers[i]].choice.demands[value].layout for i in readers}
            total += sum(self._copy(kind, source, layout) for layout in wanted)
        return total

    def _own(self, number: int, option: Option) -> float:
        """Return the cost of an option of group `number`, including copies that depend on no other
        group.

        One such copy adds a halo to an input of the graph. Another converts an output of the graph
        to row-major.
        """
        types, group, cost = self._types, self._groups[number], option.cost
        if self._graph.returns(group.output):
            cost += self._copy(types[group.output], option.choice.output, ROW_MAJOR)
        for value, wish in option.choice.demands.items():
            if value in self._inputs and wish.halo and wish.layout == ROW_MAJOR:
                padded = Placement(ROW_MAJOR, wish.halo)
                cost += copied(types[value], Placement(), padded)
        return cost

    def _copy(self, kind: TensorType, source: Layout, target: Layout | None) -> float:
        """Return the cost of a copy from one layout to another.

        The cost is zero if the layouts are equal, or if `target` is None, which accepts any layout.
        """
        if target is None or target == source:
            return 0.0
        return copied(kind, Placement(source), Placement(target))

    def _connect(self, value: str, maker: int | None, readers: Sequence[int]) -> None:
        """Add the costs of copying a value into other layouts to the optimisation problem (PBQP).

        `maker` is the group that writes the value, or None for a row-major input of the graph.
        `readers` are the groups that read the value. For several readers, an extra PBQP node
        chooses the set of layouts to which the value is copied. A reader that needs a layout
        outside this set pays a penalty above the cost of any copy.
        """
        kind = self._types[value]
        made = [ROW_MAJOR]
        if maker is not None:
            made = [option.choice.output for option in self.options[maker]]
        wanted = {
            reader: [option.choice.demands[value].layout for option in self.options[reader]]
            for reader in readers
        }
        if maker is None:
            maker = self._problem.node([0.0])
        if len(readers) == 1:
            (reader,) = readers
            costs = [[self._copy(kind, s, x) for x in wanted[reader]] for s in made]
            self._problem.edge(maker, reader, np.array(costs))
            return
        layouts = list(dict.fromkeys(x for each in wanted.values() for x in each if x is not None))
        # Readers that accept any layout need no copy, whatever the producer writes.
        if not layouts or len({*layouts, *made}) == 1:
            return
        sets = [set(c) for size in range(len(layouts) + 1) for c in combinations(layouts, size)]
        held = self._problem.node([0.0] * len(sets))
        costs = [[sum(self._copy(kind, s, x) for x in each) for each in sets] for s in made]
        self._problem.edge(maker, held, np.array(costs))
        dear = 2 * max(self._copy(kind, s, x) for s in made for x in layouts)
        for reader in readers:
            missing = [[0.0 if w is None or w in s else dear for w in wanted[reader]] for s in sets]
            self._problem.edge(held, reader, np.array(missing))


def _chosen(options: list[Option], group: Group, chosen: GroupLayouts | None) -> list[Option]:
    """Return the options of a group with the layouts `chosen`; all options if `chosen` is None.

    Raises:
        InvalidArgumentError: if no option has these layouts.
    """
    if chosen is None:
        return options
    found = [option for option in options if option.choice.named() == chosen]
    if not found:
        raise InvalidArgumentError(f"graph choice: '{group.output}' cannot be {chosen}")
    return found
