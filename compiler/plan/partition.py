"""Partition: from an optimised graph to a graph plan of workloads, views and relayouts.

Fusion determines the kernels, and layout assignment the layouts that each kernel reads and writes;
this module combines them. If a value has another layout than a kernel reads, an `identity` node (a
relayout) is inserted. One relayout serves all kernels that read the same layout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from tilewright.compiler import ops
from tilewright.compiler.errors import InvalidModelError
from tilewright.compiler.graph.ir import Graph, Node
from tilewright.compiler.graph.names import fresh
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.loops.layout import ROW_MAJOR, Layout
from tilewright.compiler.ops.attributes import word
from tilewright.compiler.ops.registry import OpKind
from tilewright.compiler.passes.dead_code import dead_code
from tilewright.compiler.passes.rematerialise_dequantisation import rematerialise_dequantisation
from tilewright.compiler.passes.split_concats import split_concats
from tilewright.compiler.plan.choices import RULE, GraphChoice
from tilewright.compiler.plan.fusion import Group, fuse
from tilewright.compiler.plan.layouts.assignment import assign_layouts
from tilewright.compiler.plan.layouts.options import Demand, LayoutChoice
from tilewright.compiler.plan.placement import Placement, distance, same_storage
from tilewright.compiler.plan.plan import (
    BranchStep,
    GraphPlan,
    KernelStep,
    LoopStep,
    NativeStep,
    RefusalStep,
    Step,
    ViewStep,
    control_step,
)
from tilewright.compiler.plan.views import Views, union, view_offset
from tilewright.compiler.plan.workload import Boundary, Halo, extract_workload
from tilewright.compiler.sizes import SizeErrorContext

ROW = Placement()

GROUP_LIMIT = 20_000
"""Maximum number of groups (kernels, native functions, views) of a graph. Models have hundreds.
This number of groups takes about 5 s to partition and place."""


Assign = Callable[[Graph, tuple[Group, ...], int, GraphChoice], tuple[LayoutChoice, ...]]
"""`assign(graph, groups, lanes, choice)` returns the layouts of each group, which are one of the
group's options."""


def plan_graph(
    graph: Graph, lanes: int, assign: Assign = assign_layouts, choice: GraphChoice = RULE
) -> GraphPlan:
    """Partition an optimised graph into kernels for vectors of `lanes` elements.

    The plan's graph computes the same outputs in the same order. An output that repeats another
    output, or is an input or a constant of the graph, becomes a copy under another name. `assign`
    chooses the layouts of the groups. `choice` overrides the rules of fusion and layouts; its lists
    of passes are ignored here, because the passes run earlier (`pipeline.optimise`). `choice` does
    not apply to the bodies of control flow.

    Raises:
        InvalidModelError: if there are more kernels than `GROUP_LIMIT`.
        InvalidArgumentError: if `choice` has layouts that are not among a group's options.
        DynamicSizeError: if the placement of values depends on dynamic sizes.
    """
    with SizeErrorContext(f"the plan of '{graph.name}'"):
        return _planned(graph, lanes, assign, choice)


def _planned(graph: Graph, lanes: int, assign: Assign, choice: GraphChoice) -> GraphPlan:
    prepared, groups = fused(graph, choice)
    if len(groups) > GROUP_LIMIT:
        raise InvalidModelError(
            f"model '{graph.name}' has {len(groups)} kernels, the limit is {GROUP_LIMIT}"
        )
    choices = assign(prepared, groups, lanes, choice)

    def planned(body: Graph) -> GraphPlan:
        return plan_graph(body, lanes, assign)

    return _Partition(*split_outputs(prepared, groups, choices), choice, planned).plan()


def fused(graph: Graph, choice: GraphChoice = RULE) -> tuple[Graph, tuple[Group, ...]]:
    """Prepare an optimised graph for partition; return the prepared graph and its groups.

    Preparation removes dead code, splits wide concatenations, repeats cheap dequantisation for each
    reader, and gives each output a separate buffer. The groups have no layouts yet.
    """
    prepared = separate_outputs(rematerialise_dequantisation(split_concats(dead_code(graph))))
    return prepared, fuse(prepared, choice.kept)


def separate_outputs(graph: Graph) -> Graph:
    """Give every graph output a separate buffer.

    Before: `return %0, %1` with an input %0 and `%1 = reshape(%0)`. After: the outputs are
    `%0.output = identity(%0)` and `%1 = reshape(%0.copy)` with `%0.copy = identity(%0)`. A kernel
    then writes each output. An output of the operator `field`, which is a view of a part of a
    larger value, is copied too.
    """
    made = {node.output: node for node in graph.nodes}
    before: dict[str, Node] = {}  # output -> the copy inserted before the output's node
    after: list[Node] = []
    types = dict(graph.types)
    names: dict[str, None] = {}
    for output in graph.outputs:
        name = output
        if output in names or output not in made:
            name = fresh(f"{output}.output", types)
            after.append(Node(name, "identity", (output,), (name,), ()))
            types[name] = types[output]
        names[name] = None
    roots: set[str] = set()
    # In the order of the nodes: an output that is a view of another one is copied, not that one.
    for output in [node.output for node in graph.nodes if graph.returns(node.output)]:
        root, part = output, False
        while (node := made.get(root)) is not None and _is_view(node):
            root, part = node.inputs[0], part or node.op == "field"
        if root != output and (part or root in roots or graph.returns(root) or root not in made):
            node = made[output]
            if node.op == "field":
                inner = fresh(f"{output}.field", types)
                types[inner] = types[output]
                before[output] = made[inner] = replace(node, outputs=(inner,))
                made[output] = Node(f"{output}.copy", "identity", (inner,), (output,), ())
                continue
            (source,) = node.inputs
            root = fresh(f"{source}.copy", types)
            types[root] = types[source]
            before[output] = made[root] = Node(root, "identity", (source,), (root,), ())
            made[output] = replace(node, inputs=(root,))
        roots.add(root)
    nodes: list[Node] = []
    for node in graph.nodes:
        if node.output in before:
            nodes.append(before[node.output])
        nodes.append(made[node.output])
    return graph.replace(nodes=[*nodes, *after], types=types, outputs=tuple(names))


def _is_view(node: Node) -> bool:
    return ops.get(node.op).kind is OpKind.VIEW


def split_outputs(
    graph: Graph, groups: tuple[Group, ...], choices: tuple[LayoutChoice, ...]
) -> tuple[Graph, tuple[Group, ...], tuple[LayoutChoice, ...]]:
    """Copy each graph output that a group would write in a layout other than row-major.

    Before: `%9 = {conv}` blocked, `return %9`. After: `%9.inner = {conv}` blocked, `%9 =
    identity(%9.inner)` row-major; other readers of `%9` read the inner value.

    Returns the new graph, groups and layout choices.
    """
    names: dict[str, str] = {}
    types = dict(graph.types)
    for group, choice in zip(groups, choices, strict=True):
        value = group.output
        place = Placement(choice.output)
        if graph.returns(value) and not same_storage(types[value].shape, place, ROW):
            names[value] = fresh(f"{value}.inner", types)
            types[names[value]] = types[value]
    if not names:
        return graph, groups, choices
    new_groups: list[Group] = []
    new_choices: list[LayoutChoice] = []
    for group, choice in zip(groups, choices, strict=True):
        nodes = tuple(_renamed(node, names) for node in group.nodes)
        new_groups.append(replace(group, nodes=nodes, output=nodes[-1].output))
        demands = {names.get(v, v): wish for v, wish in choice.demands.items()}
        new_choices.append(replace(choice, demands=demands))
        inner = names.get(group.output)
        if inner is not None:
            copy = Node(f"{group.output}.identity", "identity", (inner,), (group.output,), ())
            new_groups.append(Group((copy,), None, group.output))
            new_choices.append(LayoutChoice(ROW_MAJOR, {inner: Demand(None)}))
    ordered = [node for group in new_groups for node in group.nodes]
    return graph.replace(nodes=ordered, types=types), tuple(new_groups), tuple(new_choices)


def _renamed(node: Node, names: Mapping[str, str]) -> Node:
    return replace(
        node,
        inputs=tuple(names.get(v, v) for v in node.inputs),
        outputs=tuple(names.get(v, v) for v in node.outputs),
    )


_Cut = tuple[tuple[str, ...], dict[str, Boundary]]
"""A kernel that has no workload yet: the names of its nodes, and the boundaries of its values by
name."""


class _Partition:
    def __init__(
        self,
        graph: Graph,
        groups: tuple[Group, ...],
        choices: tuple[LayoutChoice, ...],
        choice: GraphChoice,
        bodies: Callable[[Graph], GraphPlan],
    ) -> None:
        self._graph = graph
        self._work = tuple(zip(groups, choices, strict=True))
        self._views = Views(graph, self._work, choice.copied)
        self._types: dict[str, TensorType] = dict(self._views.types)
        self._places: dict[str, Placement] = dict.fromkeys(graph.inputs, ROW)
        self._needs: dict[_Relayout, Halo] = {}
        self._relayouts: dict[_Relayout, str] = {}
        self._nodes: list[Node] = []
        self._bodies = bodies
        self._cuts: list[_Cut | ViewStep | NativeStep | LoopStep | BranchStep | RefusalStep] = []

    def plan(self) -> GraphPlan:
        self._place_outputs()
        self._collect_relayouts()
        for group, choice in self._work:
            if group.output in self._views.concats:
                self._add_concat(group.nodes[0])
            elif group.output in self._views.slices:
                self._add_slice(group.nodes[0])
            elif group.output in self._views.turned:
                self._add_turn(group.nodes[0])
            elif group.is_view:
                self._add_reshape(group.nodes[0])
            elif group.is_native:
                self._add_native(group.nodes[0])
            else:
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
            if not isinstance(cut, tuple):
                steps.append(cut)
                crossing |= {*cut.inputs, cut.output}
            else:
                made = extract_workload(graph, *cut)
                sizes = tuple(old.name for _, old in sorted(made.dimensions))
                steps.append(KernelStep(made.workload, made.inputs, made.output, sizes))
                crossing |= {*made.inputs, made.output}
        places = {v: self._places[v] for v in self._types if v in crossing and v in self._places}
        return GraphPlan(graph, tuple(steps), places)

    def _place_outputs(self) -> None:
        """Set the placement of each group's output: its layout, and a halo as wide as its readers
        need.
        """
        wishes: dict[str, list[Demand]] = {}
        for _, choice in self._work:
            for value, wish in choice.demands.items():
                wishes.setdefault(value, []).append(wish)
        halos = self._views.halos(wishes)
        for group, choice in self._work:
            value = group.output
            if group.is_view or self._graph.returns(value):
                self._places[value] = ROW  # split_outputs leaves a layout of the same bytes
            else:
                self._places[value] = Placement(choice.output, halos[value])
            for slot in self._views.concats.get(value, ()):
                if slot.value not in self._graph.types:  # a copy
                    self._places[slot.value] = self._places[value]

    def _accepts(self, value: str, wish: Demand) -> bool:
        """Whether a group can read a value without a copy: the value's placement satisfies the
        group's demand `wish`.
        """
        if value in self._graph.constants:
            return True
        place = self._places[value]
        if wish.layout is not None:
            wanted = Placement(wish.layout, place.halo)
            if not same_storage(self._types[value].shape, place, wanted):
                return False
        return covers(place.halo, wish.halo)

    def _is_rows(self, value: str) -> bool:
        """Whether a value is stored like a row-major value without a halo; False for constants."""
        if value in self._graph.constants:
            return False
        return same_storage(self._types[value].shape, self._places[value], ROW)

    def _collect_relayouts(self) -> None:
        """Find the copies into other layouts that the kernels need.

        Each copy gets a halo (zeros around the elements) that is wide enough for all its readers.
        """
        for group, choice in self._work:
            if group.is_view or group.is_native or group.output in self._views.concats:
                continue
            for value, wish in choice.demands.items():
                if not self._accepts(value, wish):
                    key = _Relayout(value, wish.layout or ROW_MAJOR)
                    self._needs[key] = union(self._needs.get(key, ()), wish.halo)

    def _add(self, group: Group, choice: LayoutChoice) -> None:
        names: dict[str, str] = {}
        boundaries: dict[str, Boundary] = {}
        for value, wish in choice.demands.items():
            if value in self._graph.constants:
                continue  # the schedule packs it, so its layout need not be stated
            if not self._accepts(value, wish):
                names[value] = self._relayout(_Relayout(value, wish.layout or ROW_MAJOR))
            name = names.get(value, value)
            boundaries[name] = self._boundary(name, wish.layout)
        nodes = [_renamed(node, names) for node in group.nodes]
        self._nodes += nodes
        boundaries[group.output] = self._boundary(group.output, None)
        self._cuts.append((tuple(node.name for node in nodes), boundaries))
        if nodes[0].op == "identity" and len(nodes) == 1 and self._graph.returns(group.output):
            # This copy makes a graph output row-major; other readers of rows may use it, too.
            (source,) = group.inputs
            for dense in (False, True):
                key = _Relayout(source, ROW_MAJOR, dense)
                if not self._needs.get(key):
                    self._relayouts.setdefault(key, group.output)

    def _add_reshape(self, node: Node) -> None:
        source = self._dense_rows(node.inputs[0])
        self._nodes.append(replace(node, inputs=(source,)))
        self._cuts.append(ViewStep((source,), node.output, (-view_offset(node),)))

    def _add_turn(self, node: Node) -> None:
        self._nodes.append(node)
        self._cuts.append(ViewStep(node.inputs, node.output, (0,)))

    def _add_native(self, node: Node) -> None:
        """Add a step for a native operator or control flow.

        Its inputs must be row-major without a halo: any other input is copied. Constants are passed
        unpacked.
        """
        constants = self._graph.constants
        inputs = tuple(v if v in constants else self._dense_rows(v) for v in node.inputs)
        node = replace(node, inputs=inputs)
        self._nodes.append(node)
        if node.bodies:
            self._cuts.append(control_step(node, [self._bodies(body) for body in node.bodies]))
            return
        work = ops.get(node.op).native
        if work is None:
            self._cuts.append(RefusalStep(word(node.attrs, "message"), node.output))
            return
        function, parameters = work([self._types[v] for v in inputs], node.attrs)
        self._cuts.append(NativeStep(function, parameters, inputs, node.output))

    def _dense_rows(self, value: str) -> str:
        """Return the name of a row-major version of a value without a halo: the value or a copy."""
        if self._is_rows(value):
            return value
        return self._relayout(_Relayout(value, ROW_MAJOR, dense=True))

    def _add_slice(self, node: Node) -> None:
        (source,), output = node.inputs, node.output
        start = self._views.slices[output]
        self._nodes.append(node)
        self._cuts.append(ViewStep((source,), output, (-self._apart(source, output, start),)))

    def _add_concat(self, node: Node) -> None:
        slots = self._views.concats[node.output]
        for value, slot in zip(node.inputs, slots, strict=True):
            if slot.value != value:
                self._copy(value, slot.value)
        inputs = tuple(slot.value for slot in slots)
        offsets = tuple(self._apart(node.output, slot.value, slot.start) for slot in slots)
        self._nodes.append(replace(node, inputs=inputs))
        self._cuts.append(ViewStep(inputs, node.output, offsets))

    def _apart(self, whole: str, part: str, start: tuple[int, ...]) -> int:
        """Return the distance in bytes from the start of a value to the start of its part."""
        types, places = self._types, self._places
        apart = distance(types[whole].shape, places[whole], types[part].shape, places[part], start)
        assert apart is not None
        return apart * types[whole].dtype.bytes

    def _boundary(self, value: str, layout: Layout | None) -> Boundary:
        place = self._places[value]
        return Boundary(self._types[value], place.layout if layout is None else layout, place.halo)

    def _relayout(self, key: _Relayout) -> str:
        """Return the name of a copy of a value in another layout; the first call adds the copy."""
        if key not in self._relayouts:
            name = fresh(f"{key.value}.relayout", self._types)
            self._types[name] = self._types[key.value]
            self._places[name] = Placement(key.layout, self._needs.get(key, ()))
            self._copy(key.value, name)
            self._relayouts[key] = name
        return self._relayouts[key]

    def _copy(self, value: str, name: str) -> None:
        """Add a kernel that copies `value` to a new value `name`, in the placement of `name`."""
        node = Node(f"{name}.identity", "identity", (value,), (name,), ())
        self._nodes.append(node)
        ends = [v for v in (value, name) if v not in self._graph.constants]
        self._cuts.append(((node.name,), {v: self._boundary(v, None) for v in ends}))


@dataclass(frozen=True, slots=True)
class _Relayout:
    """Identifies the copy of a value in another layout. All readers that need this layout share it.

    If `dense` is true, the copy has no halo.
    """

    value: str
    layout: Layout
    dense: bool = False


def covers(halo: Halo, wanted: Halo) -> bool:
    """Whether a halo has at least as many zeros as the halo `wanted`, before and after each
    dimension.
    """
    return not wanted or (bool(halo) and union(halo, wanted) == halo)
