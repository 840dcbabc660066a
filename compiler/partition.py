"""Partition: an optimised graph as a graph plan of workloads, views and relayouts.

Fusion says which nodes are one kernel, layout assignment says how each kernel wants its values;
here the two meet. Where a value does not lie as a kernel wants it, an `identity` node (a relayout)
is put between; one relayout serves all kernels that want the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from compiler import ops
from compiler.graph.ir import Graph, Node
from compiler.graph.types import TensorType
from compiler.loops.layout import ROW_MAJOR, Layout
from compiler.ops.registry import OpKind
from compiler.passes.dead_code import dead_code
from compiler.passes.fusion import Group, fuse
from compiler.passes.layouts import Choice, Demand, assign_layouts
from compiler.plan import GraphPlan, KernelStep, Placement, Step, ViewStep, same_bytes
from compiler.workload import Boundary, Halo, cut_workload

ROW = Placement()


def plan_graph(graph: Graph, lanes: int) -> GraphPlan:
    """Cut an optimised graph into kernels for vectors of `lanes` elements.

    The result's graph computes the same outputs in the same order; an output that was an input or
    a constant of the graph, or given twice, becomes a copy under a name of its own.
    """
    prepared = separate_outputs(dead_code(graph))
    groups = fuse(prepared)
    choices = assign_layouts(prepared, groups, lanes)
    return _Partition(*split_outputs(prepared, groups, choices)).plan()


def separate_outputs(graph: Graph) -> Graph:
    """Give every graph output a buffer that nothing else needs.

    Before: `return %0, %1` with an input %0 and `%1 = reshape(%0)`. After: `%0.output =
    identity(%0)` and `%1 = reshape(%0.copy)`, `%0.copy = identity(%0)`, so that a kernel writes
    each output.
    """
    nodes = list(graph.nodes)
    types = dict(graph.types)
    names: list[str] = []
    roots: set[str] = set()
    for output in graph.outputs:
        if output in names or graph.producer(output) is None:
            copy = _fresh(f"{output}.output", types)
            nodes.append(Node(copy, "identity", (output,), (copy,), ()))
            types[copy] = types[output]
            names.append(copy)
            continue
        names.append(output)
        root, last = output, None
        while (node := graph.producer(root)) is not None and _is_view(node):
            root, last = node.inputs[0], node
        if last is not None and (
            root in roots or root in graph.outputs or graph.producer(root) is None
        ):
            copy = _fresh(f"{root}.copy", types)
            types[copy] = types[root]
            at = next(i for i, node in enumerate(nodes) if node.name == last.name)
            nodes[at] = replace(nodes[at], inputs=(copy,))
            nodes.insert(at, Node(copy, "identity", (root,), (copy,), ()))
            graph = graph.replace(nodes=nodes, types=types)
        roots.add(root)
    return graph.replace(nodes=nodes, types=types, outputs=names)


def _fresh(base: str, taken: Iterable[str]) -> str:
    names = set(taken)
    name, number = base, 1
    while name in names:
        number += 1
        name = f"{base}.{number}"
    return name


def _is_view(node: Node) -> bool:
    return ops.get(node.op).kind is OpKind.VIEW


def split_outputs(
    graph: Graph, groups: tuple[Group, ...], choices: tuple[Choice, ...]
) -> tuple[Graph, tuple[Group, ...], tuple[Choice, ...]]:
    """Make graph outputs row-major where a group would write one in another layout.

    Before: `%9 = {conv}` blocked, `return %9`. After: `%9.inner = {conv}` blocked, `%9 =
    identity(%9.inner)` row-major; other readers of `%9` read the inner value.
    """
    names: dict[str, str] = {}
    types = dict(graph.types)
    for group, choice in zip(groups, choices, strict=True):
        value = group.output
        place = Placement(choice.output)
        if value in graph.outputs and not same_bytes(types[value].shape, place, ROW):
            names[value] = _fresh(f"{value}.inner", types)
            types[names[value]] = types[value]
    if not names:
        return graph, groups, choices
    new_groups: list[Group] = []
    new_choices: list[Choice] = []
    for group, choice in zip(groups, choices, strict=True):
        nodes = tuple(_renamed(node, names) for node in group.nodes)
        new_groups.append(replace(group, nodes=nodes, output=nodes[-1].output))
        demands = {names.get(v, v): wish for v, wish in choice.demands.items()}
        new_choices.append(replace(choice, demands=demands))
        inner = names.get(group.output)
        if inner is not None:
            copy = Node(f"{group.output}.identity", "identity", (inner,), (group.output,), ())
            new_groups.append(Group((copy,), None, group.output))
            new_choices.append(Choice(ROW_MAJOR, {inner: Demand(None)}))
    ordered = [node for group in new_groups for node in group.nodes]
    return graph.replace(nodes=ordered, types=types), tuple(new_groups), tuple(new_choices)


def _renamed(node: Node, names: Mapping[str, str]) -> Node:
    return replace(
        node,
        inputs=tuple(names.get(v, v) for v in node.inputs),
        outputs=tuple(names.get(v, v) for v in node.outputs),
    )


class _Partition:
    def __init__(
        self, graph: Graph, groups: tuple[Group, ...], choices: tuple[Choice, ...]
    ) -> None:
        self._graph = graph
        self._work = tuple(zip(groups, choices, strict=True))
        self._readers: dict[str, list[tuple[Group, Demand]]] = {}
        for group, choice in self._work:
            for value, wish in choice.demands.items():
                self._readers.setdefault(value, []).append((group, wish))
        self._types: dict[str, TensorType] = dict(graph.types)
        self._places: dict[str, Placement] = dict.fromkeys(graph.inputs, ROW)
        self._needs: dict[tuple[str, Layout], Halo] = {}
        self._relayouts: dict[tuple[str, Layout], str] = {}
        self._nodes: list[Node] = []
        self._cuts: list[tuple[tuple[str, ...], dict[str, Boundary]] | ViewStep] = []

    def plan(self) -> GraphPlan:
        for group, choice in self._work:
            self._places[group.output] = self._placement(group, choice)
        self._collect_relayouts()
        for group, choice in self._work:
            self._add(group, choice)
        kept = {value for node in self._nodes for value in (*node.inputs, *node.outputs)}
        kept |= {*self._graph.inputs, *self._graph.outputs}
        graph = self._graph.replace(
            nodes=self._nodes,
            types={value: kind for value, kind in self._types.items() if value in kept},
            constants={v: a for v, a in self._graph.constants.items() if v in kept},
        )
        steps: list[Step] = []
        crossing = {*graph.inputs, *graph.outputs}
        for cut in self._cuts:
            if isinstance(cut, ViewStep):
                steps.append(cut)
                crossing |= {cut.input, cut.output}
            else:
                made = cut_workload(graph, *cut)
                steps.append(KernelStep(made.workload, made.inputs, made.output))
                crossing |= {*made.inputs, made.output}
        places = {v: self._places[v] for v in self._types if v in crossing and v in self._places}
        return GraphPlan(graph, tuple(steps), places)

    def _placement(self, group: Group, choice: Choice) -> Placement:
        """How a group's output lies: its layout, and the halo that its readers ask for."""
        value = group.output
        if group.is_view:
            return ROW
        place = Placement(choice.output)
        if value in self._graph.outputs:
            return ROW  # the same bytes: see split_outputs
        halo: Halo = ()
        for reader, wish in self._readers.get(value, ()):
            if reader.is_view:
                return place  # a view needs the dense bytes; padded readers get a relayout
            if wish.halo and self._agrees(value, place, wish):
                halo = union(halo, wish.halo)
        return Placement(choice.output, halo)

    def _agrees(self, value: str, place: Placement, wish: Demand) -> bool:
        """Whether a value's layout is the one asked for, halos aside."""
        if wish.layout is None:
            return True
        wanted = Placement(wish.layout, place.halo)
        return same_bytes(self._types[value].shape, place, wanted)

    def _accepts(self, group: Group, value: str, wish: Demand) -> bool:
        """Whether a group can read a value as it lies."""
        if value in self._graph.constants:
            return True
        place = self._places[value]
        if group.is_view:
            return same_bytes(self._types[value].shape, place, ROW)
        return self._agrees(value, place, wish) and covers(place.halo, wish.halo)

    def _collect_relayouts(self) -> None:
        """What each relayout has to carry: the union of its readers' halos."""
        for group, choice in self._work:
            for value, wish in choice.demands.items():
                if not self._accepts(group, value, wish):
                    key = value, wish.layout or ROW_MAJOR
                    self._needs[key] = union(self._needs.get(key, ()), wish.halo)

    def _add(self, group: Group, choice: Choice) -> None:
        names: dict[str, str] = {}
        boundaries: dict[str, Boundary] = {}
        for value, wish in choice.demands.items():
            if value in self._graph.constants:
                continue  # packed by the schedule: no boundary to state
            if not self._accepts(group, value, wish):
                names[value] = self._relayout(value, wish.layout or ROW_MAJOR)
            name = names.get(value, value)
            boundaries[name] = self._boundary(name, wish.layout)
        nodes = [_renamed(node, names) for node in group.nodes]
        self._nodes += nodes
        if group.is_view:
            self._cuts.append(ViewStep(nodes[0].inputs[0], group.output))
            return
        boundaries[group.output] = self._boundary(group.output, None)
        self._cuts.append((tuple(node.name for node in nodes), boundaries))
        (source,) = group.inputs if nodes[0].op == "identity" and len(nodes) == 1 else ("",)
        if group.output in self._graph.outputs and not self._needs.get((source, ROW_MAJOR), ()):
            # The copy that made a graph output row-major serves the others who want it so.
            self._relayouts.setdefault((source, ROW_MAJOR), group.output)

    def _boundary(self, value: str, layout: Layout | None) -> Boundary:
        place = self._places[value]
        return Boundary(self._types[value], place.layout if layout is None else layout, place.halo)

    def _relayout(self, value: str, layout: Layout) -> str:
        """The value in another layout, made where it is first needed."""
        key = value, layout
        if key not in self._relayouts:
            name = _fresh(f"{value}.relayout", self._types)
            self._types[name] = self._types[value]
            self._places[name] = Placement(layout, self._needs[key])
            node = Node(f"{name}.identity", "identity", (value,), (name,), ())
            self._nodes.append(node)
            ends = {v: self._boundary(v, None) for v in (value, name)}
            self._cuts.append(((node.name,), ends))
            self._relayouts[key] = name
        return self._relayouts[key]


def union(first: Halo, second: Halo) -> Halo:
    """The smallest halo that covers both."""
    if not first or not second:
        return first or second
    return tuple((max(a[0], b[0]), max(a[1], b[1])) for a, b in zip(first, second, strict=True))


def covers(halo: Halo, wanted: Halo) -> bool:
    """Whether a halo holds at least the zeros that are wanted."""
    return not wanted or (bool(halo) and union(halo, wanted) == halo)
