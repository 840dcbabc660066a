"""Layout assignment: how every value between kernels lies, for the least total cost.

Before:                                     After (16 lanes):
    {conv, relu}: row -> row                    {conv, relu}: row -> 0 1/16 2 3 1%16
    {conv, add}:  row -> row                    {conv, add}: 0 1/16 2 3 1%16 -> 0 1/16 2 3 1%16
    {softmax}:    row -> row                    {identity}: 0 1/16 ... -> row; {softmax}: row

Each group of nodes has options (`layout_options`): what it reads and writes, and what its kernel
costs. A value that is not written as a group reads it is copied, once for all groups that want the
same. The cheapest options for the whole graph are found together (`quadratic`), without loss in
graphs of chains, branches that join again, and skip connections. Also called data layout
transformation; Liu et al., "Optimizing CNN Model Inference on CPUs" (2019), which solves it for
convolutions.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from compiler.graph.ir import Graph
from compiler.graph.types import TensorType
from compiler.loops.layout import ROW_MAJOR, Layout
from compiler.passes.fusion import Group
from compiler.passes.layout_costs import moved
from compiler.passes.layout_options import Choice, Option, Options, copy_cost
from compiler.passes.quadratic import Costs, Quadratic


def assign_layouts(graph: Graph, groups: tuple[Group, ...], lanes: int) -> tuple[Choice, ...]:
    """A choice for each group, in their order."""
    problem = Assignment(graph, groups, lanes)
    return problem.choices(problem.solve())


class Assignment:
    """The options of all groups, and what they cost together."""

    def __init__(self, graph: Graph, groups: Sequence[Group], lanes: int) -> None:
        self._graph = graph
        self._groups = groups
        options = Options(graph, lanes)
        self.options = [options.of(group) for group in groups]
        self._problem = Quadratic()
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
        """The number of an option for each group."""
        return self._problem.solve()[: len(self._groups)]

    def choices(self, numbers: Sequence[int]) -> tuple[Choice, ...]:
        return tuple(o[n].choice for o, n in zip(self.options, numbers, strict=True))

    def total(self, numbers: Sequence[int]) -> float:
        """What these options cost: all kernels, and each copy between them once."""
        total = sum(
            self._own(group, options[number])
            for group, (options, number) in enumerate(zip(self.options, numbers, strict=True))
        )
        written = {
            group.output: self.options[i][numbers[i]].choice.output
            for i, group in enumerate(self._groups)
        }
        for value, readers in self._readers.items():
            kind, source = self._graph.types[value], written.get(value, ROW_MAJOR)
            wanted = {self.options[i][numbers[i]].choice.demands[value].layout for i in readers}
            total += sum(copy_cost(kind, source, layout) for layout in wanted)
        return total

    def _own(self, number: int, option: Option) -> float:
        """An option's cost, with the copies that no other option changes: of an input, to give it
        its halo, and of an output, to make it row-major."""
        types, output = self._graph.types, self._groups[number].output
        cost = option.cost
        if output in self._graph.outputs:
            cost += copy_cost(types[output], option.choice.output, ROW_MAJOR)
        for value, wish in option.choice.demands.items():
            if value in self._graph.inputs and wish.halo and wish.layout == ROW_MAJOR:
                cost += 2 * moved(types[value], ROW_MAJOR)
        return cost

    def _connect(self, value: str, maker: int | None, readers: Sequence[int]) -> None:
        """Charge the copies of a value.

        Where several groups read it, a node of its own says in which other layouts it is to be had;
        who wants yet another one pays more than a copy that all may use.
        """
        kind = self._graph.types[value]
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
            self._problem.edge(maker, reader, _copies(kind, made, wanted[reader]))
            return
        layouts = list(dict.fromkeys(x for each in wanted.values() for x in each if x is not None))
        if len({*layouts, *made}) == 1:
            return
        sets = [set(c) for size in range(len(layouts) + 1) for c in combinations(layouts, size)]
        held = self._problem.node([0.0] * len(sets))
        costs = [[sum(copy_cost(kind, s, x) for x in each) for each in sets] for s in made]
        self._problem.edge(maker, held, np.array(costs))
        dear = 2 * max(copy_cost(kind, s, x) for s in made for x in layouts)
        for reader in readers:
            missing = [[0.0 if w is None or w in s else dear for w in wanted[reader]] for s in sets]
            self._problem.edge(held, reader, np.array(missing))


def _copies(kind: TensorType, made: Sequence[Layout], wanted: Sequence[Layout | None]) -> Costs:
    return np.array([[copy_cost(kind, source, target) for target in wanted] for source in made])
