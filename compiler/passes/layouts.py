"""Layout assignment: which values between kernels are blocked by channels, with what halo.

Before:                                     After (16 lanes):
    {conv, relu}: row -> row                    {conv, relu}: row -> 0 1/16 2 3 1%16, halo 1
    {conv, add}:  row -> row                    {conv, add}: 0 1/16 2 3 1%16, halo 1 -> 0 1/16 ...
    {softmax}:    row -> row                    {identity}: 0 1/16 ... -> row; {softmax}: row

Values of convolutions and pools are NCHW{lanes}c where the channels (nearly) divide by the lanes,
so that a vector holds channels. Elementwise groups follow their operands. A halo of zeros, written
by the producer, keeps padded convolutions free of bounds checks. Also called data layout
transformation; Liu et al., "Optimizing CNN Model Inference on CPUs" (2019).
"""

from __future__ import annotations

from dataclasses import dataclass

from compiler import ops
from compiler.graph.ir import Graph, Node
from compiler.loops.layout import ROW_MAJOR, Layout, blocked
from compiler.ops.registry import OpKind
from compiler.passes.attributes import ints, number
from compiler.passes.fusion import Group
from compiler.workload import Halo

BLOCKED_RANKS = (3, 4, 5)
"""Batch, channels, then one to three spatial dimensions."""

PADDING_LIMIT = 1 / 3
"""Unused channels that a blocked layout may add: 24 channels of 16 lanes take the room of 32."""


@dataclass(frozen=True, slots=True)
class Demand:
    """How a group wants to read a value; `layout=None` takes any."""

    layout: Layout | None
    halo: Halo = ()


@dataclass(frozen=True, slots=True)
class Choice:
    """What one group reads and writes."""

    output: Layout
    demands: dict[str, Demand]


def channel_block(channels: int, groups: int, lanes: int) -> int | None:
    """The block that a value's channels are stored in; None for row-major.

    The last block may be partly unused, if that adds at most `PADDING_LIMIT` of the channels. With
    groups, the channels of each group divide by the block, or each group is one channel.
    """
    each = channels // groups
    if groups > 1 and each > 1:
        return lanes if each % lanes == 0 else None
    unused = -channels % lanes
    return lanes if channels >= lanes and unused <= PADDING_LIMIT * channels else None


def assign_layouts(graph: Graph, groups: tuple[Group, ...], lanes: int) -> tuple[Choice, ...]:
    """A choice for each group, in their order; the groups are in topological order."""
    assigner = _Assigner(graph, lanes)
    return tuple(assigner.choose(group) for group in groups)


class _Assigner:
    def __init__(self, graph: Graph, lanes: int) -> None:
        self._graph = graph
        self._lanes = lanes
        self._layouts: dict[str, Layout] = {}

    def choose(self, group: Group) -> Choice:
        choice = self._choose(group)
        self._layouts[group.output] = choice.output
        return choice

    def _choose(self, group: Group) -> Choice:
        anchor = group.anchor
        if group.is_view:
            return self._all_row(group)
        if anchor is None:
            if ops.get(group.nodes[0].op).kind is OpKind.PIECES:
                return self._pieces(group)
            return self._elementwise(group)
        match ops.get(anchor.op).kind:
            case OpKind.CONTRACTION if anchor.op == "conv":
                return self._conv(group, anchor)
            case OpKind.WINDOW:
                return self._following(group, anchor)
            case OpKind.REDUCTION:
                return self._reduction(group, anchor)
        return self._all_row(group)

    def _all_row(self, group: Group) -> Choice:
        return Choice(ROW_MAJOR, {value: Demand(ROW_MAJOR) for value in group.inputs})

    def _blocked(self, value: str, groups: int = 1) -> Layout:
        """The blocked layout of a value, or row-major where its channels do not divide."""
        shape = self._graph.types[value].shape
        if len(shape) not in BLOCKED_RANKS:
            return ROW_MAJOR
        block = channel_block(shape[1], groups, self._lanes)
        return blocked(len(shape), 1, block) if block is not None else ROW_MAJOR

    def _layout(self, value: str) -> Layout:
        return self._layouts.get(value, ROW_MAJOR)

    def _is_rows(self, value: str) -> bool:
        """Whether a kernel of this graph, seen through views, makes a value row-major."""
        node = self._graph.producer(value)
        return node is not None and self._layout(value) == ROW_MAJOR

    def _operands(
        self, group: Group, output: Layout, *, taken: tuple[str, ...]
    ) -> dict[str, Demand]:
        """Epilogue operands: those of the output's shape lie like the output, others row-major."""
        shape = self._graph.types[group.output].shape
        demands: dict[str, Demand] = {}
        for value in group.inputs:
            if value not in taken:
                full = self._graph.types[value].shape == shape
                demands[value] = Demand(output if full else ROW_MAJOR)
        return demands

    def _conv(self, group: Group, anchor: Node) -> Choice:
        x, weight = anchor.inputs[:2]
        groups = int(number(anchor, "group", 1))
        output = self._blocked(anchor.output, groups)
        source = self._blocked(x, groups)
        depthwise = groups > 1 and self._graph.types[weight].shape[:2] == (groups, 1)
        if depthwise and self._is_rows(x):
            output = source = ROW_MAJOR  # either layout serves it; a relayout would cost more
        halo = conv_halo(self._graph, anchor)
        demands = {x: Demand(source, halo), weight: Demand(ROW_MAJOR)}
        demands |= {value: Demand(ROW_MAJOR) for value in anchor.inputs[2:]}
        taken = tuple(demands)
        return Choice(output, demands | self._operands(group, output, taken=taken))

    def _following(self, group: Group, anchor: Node) -> Choice:
        """Pools keep the layout that their operand has."""
        x = anchor.inputs[0]
        output = self._layout(x)
        demands = {x: Demand(output)}
        demands |= {value: Demand(ROW_MAJOR) for value in anchor.inputs[1:]}
        taken = tuple(demands)
        return Choice(output, demands | self._operands(group, output, taken=taken))

    def _reduction(self, group: Group, anchor: Node) -> Choice:
        """Over space alone, blocked channels stay; other reductions read rows."""
        x = anchor.inputs[0]
        rank = len(self._graph.types[x].shape)
        axes = {axis % rank for axis in ints(anchor, "axes", tuple(range(rank)))}
        prologue = len(group.nodes) > 1 and x not in group.inputs
        if prologue or rank not in BLOCKED_RANKS or axes & {0, 1}:
            return self._all_row(group)
        keeps = bool(number(anchor, "keepdims", 1)) and len(axes) < rank - 2
        output = self._layout(x) if keeps else ROW_MAJOR
        demands = {x: Demand(self._layout(x))}
        return Choice(output, demands | self._operands(group, output, taken=(x,)))

    def _elementwise(self, group: Group) -> Choice:
        """The layout of most of the bytes that are read; data movement writes row-major."""
        shape = self._graph.types[group.output].shape
        if any(ops.get(node.op).kind is OpKind.MOVEMENT for node in group.nodes):
            return self._movement(group)
        votes: dict[Layout, int] = {}
        for value in group.inputs:
            if self._graph.types[value].shape == shape and value not in self._graph.constants:
                layout = self._layout(value)
                votes[layout] = votes.get(layout, 0) + self._graph.types[value].bytes
        output = max(votes, key=lambda layout: votes[layout]) if votes else ROW_MAJOR
        return Choice(output, self._operands(group, output, taken=()))

    def _movement(self, group: Group) -> Choice:
        """Slices of whole blocks keep the layout; other movement reads any and writes rows."""
        output = self._blocked(group.output)
        sources = [v for v in group.inputs if self._layout(v) != ROW_MAJOR]
        if (
            output != ROW_MAJOR
            and sources
            and all(self._keeps_blocks(node) for node in group.nodes)
            and all(self._layout(v) == output for v in sources)
        ):
            return Choice(
                output,
                {
                    v: Demand(output if self._blocked(v) == output else ROW_MAJOR)
                    for v in group.inputs
                },
            )
        return Choice(ROW_MAJOR, {value: Demand(None) for value in group.inputs})

    def _keeps_blocks(self, node: Node) -> bool:
        if ops.get(node.op).kind is OpKind.ELEMENTWISE:
            return True
        if node.op != "slice":
            return False
        starts, steps = ints(node, "starts"), ints(node, "steps")
        return starts[1] % self._lanes == 0 and steps[1] == 1

    def _pieces(self, group: Group) -> Choice:
        """Blocked if every piece starts at a whole block and most of the bytes come blocked."""
        (node,) = group.nodes
        output = self._blocked(node.output)
        types = self._graph.types
        rank = len(types[node.output].shape)
        if node.op == "pad":
            pads = ints(node, "pads")
            whole = pads[1] == 0 and pads[1 + rank] == 0
        elif int(number(node, "axis")) % rank == 1:
            whole = all(types[v].shape[1] % self._lanes == 0 for v in node.inputs[:-1])
        else:
            whole = True
        whole = whole and all(self._blocked(v) == output for v in group.inputs)
        given = sum(types[v].bytes for v in group.inputs if self._layout(v) == output)
        total = sum(types[v].bytes for v in group.inputs)
        if output == ROW_MAJOR or not whole or 2 * given < total:
            return self._all_row(group)
        return Choice(output, {value: Demand(output) for value in group.inputs})


def conv_halo(graph: Graph, node: Node) -> Halo:
    """The zeros that a convolution's windows reach around its operand: `()` if none."""
    shape = graph.types[node.inputs[0]].shape
    kernel = graph.types[node.inputs[1]].shape[2:]
    output = graph.types[node.output].shape[2:]
    spatial = len(kernel)
    pads = ints(node, "pads", (0,) * (2 * spatial))
    strides = ints(node, "strides", (1,) * spatial)
    dilations = ints(node, "dilations", (1,) * spatial)
    halo = [(0, 0), (0, 0)]
    for dim in range(spatial):
        last = (output[dim] - 1) * strides[dim] + (kernel[dim] - 1) * dilations[dim] - pads[dim]
        halo.append((max(pads[dim], 0), max(last - shape[2 + dim] + 1, 0)))
    return tuple(halo) if any(any(pair) for pair in halo) else ()
