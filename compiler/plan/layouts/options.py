"""The layouts that a group of nodes may read and write, and the cost of each.

Values of convolutions may be row-major (NCHW) or blocked by channels (NCHW16c). If the last block
would be partly empty, they may also be in blocks of half a vector (NCHW8c) or channels-last (NHWC).
Channels-last is also possible for images of four 8-bit channels, and for all images of a graph that
transposes some of them to rows of channels (`layout_transposes.py`). Matrix products, row operators
and gathers read and write row-major values.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from math import inf

from tilewright.compiler import ops
from tilewright.compiler.graph.ir import Graph, Node
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.loops.layout import ROW_MAJOR, Factor, Layout, blocked
from tilewright.compiler.memo import memo
from tilewright.compiler.ops.attributes import integer, ints
from tilewright.compiler.ops.registry import OpKind
from tilewright.compiler.passes.rematerialise_dequantisation import stored_source
from tilewright.compiler.plan.choices import GroupLayouts
from tilewright.compiler.plan.fusion import Group
from tilewright.compiler.plan.layout_transposes import RANKS as BLOCKED_RANKS
from tilewright.compiler.plan.layout_transposes import is_to_image, is_to_rows, turns
from tilewright.compiler.plan.layouts import costs
from tilewright.compiler.plan.placement import Placement, distance, same_storage
from tilewright.compiler.plan.regions import ALIGNMENT_BYTES
from tilewright.compiler.plan.workload import Halo
from tilewright.compiler.sizes import DynamicSizeError, bounds, is_dynamic, larger

GROUP = 4
"""Number of 8-bit channels that one lane of a dot-product instruction multiplies."""

PADDING_LIMIT = 1 / 3
"""Maximum number of unused channels that blocks add, as a fraction of the channels. For example, 24
channels take up 32 in blocks of 16, which adds a third."""


@dataclass(frozen=True, slots=True)
class Demand:
    """The layout and halo (zeros around the elements) in which a group reads a value.

    `layout=None` accepts any layout.
    """

    layout: Layout | None
    halo: Halo = ()


@dataclass(frozen=True, slots=True)
class LayoutChoice:
    """The layout that one group writes, and the layout in which it reads each operand."""

    output: Layout
    demands: dict[str, Demand]

    def named(self) -> GroupLayouts:
        """Return the layouts of the choice as text, together with the names of the values."""
        read = {value: wish.layout for value, wish in self.demands.items()}
        inputs = sorted((v, "any" if layout is None else str(layout)) for v, layout in read.items())
        return GroupLayouts(str(self.output), tuple(inputs))


@dataclass(frozen=True, slots=True)
class Option:
    """A choice of layouts for a group, and the cost of its kernel, excluding copies between
    layouts.
    """

    choice: LayoutChoice
    cost: float


@cache
def channels_last(rank: int) -> Layout:
    """Return the layout that stores an NCHW value of this rank as NHWC."""
    return Layout((Factor(0), *(Factor(dim) for dim in range(2, rank)), Factor(1)))


def fits_block(channels: int, groups: int, block: int) -> bool:
    """Whether channels may be stored in blocks of `block` channels.

    The last block may be partly unused, if the unused part is at most the fraction `PADDING_LIMIT`
    of the channels. In a convolution with several `groups`, the channels of each group must fill
    whole blocks, unless each group has a single channel.
    """
    each = channels // groups
    if groups > 1 and each > 1:
        return each % block == 0
    return channels >= block and -channels % block <= PADDING_LIMIT * channels


class Options:
    """The possible layouts of each group of one graph, for vectors of `lanes` elements.

    `weight_macs` is the number of multiplications that a core computes while it loads one float32
    weight from memory (`CoreModel.weight_macs`). The concatenations and slices in `copied` are
    kernels, not views, and may read and write any layout. The options are valid for all sizes;
    their costs are those at typical sizes.
    """

    def __init__(
        self,
        graph: Graph,
        lanes: int,
        copied: Collection[str] = (),
        weight_macs: float = costs.WEIGHT_MACS,
    ) -> None:
        self._graph = graph
        self._typical = graph.typical()
        self._lanes = lanes
        self._weight_macs = weight_macs
        self._copied = copied
        self._turns = turns(graph)

    def of(self, group: Group) -> list[Option]:
        """Return the layout options of a group; the first is row-major."""
        anchor = group.anchor
        if group.is_view:
            return [Option(self._rows(group), 0.0)]
        if anchor is None:
            if group.nodes[0].name in self._turns:
                return self._turn(group)
            if ops.get(group.nodes[0].op).kind is OpKind.PIECES:
                return self._pieces(group)
            if any(ops.get(node.op).kind is OpKind.MOVEMENT for node in group.nodes):
                return self._movement(group)
            return self._elementwise(group)
        match ops.get(anchor.op).kind:
            case OpKind.CONTRACTION if anchor.op == "conv":
                return self._conv(group, anchor)
            case OpKind.WINDOW:
                return self._window(group, anchor)
            case OpKind.REDUCTION:
                return self._reduction(group, anchor)
            case OpKind.GATHER if anchor.op == "interpolate":
                return self._interpolation(group, anchor)
        return [self._option(self._rows(group), 0.0)]

    def layouts(self, value: str, groups: int = 1) -> tuple[Layout, ...]:
        """Return the layouts that a value may have, row-major first.

        `groups` is the number of groups of a grouped convolution that reads or writes the value
        (`fits_block`).
        """
        kind = self._graph.types[value]
        if len(kind.shape) not in BLOCKED_RANKS or is_dynamic(kind.shape[1]):
            return (ROW_MAJOR,)
        together = kind.dtype.bytes == 1 and kind.shape[1] == GROUP
        return _layouts(
            len(kind.shape), kind.shape[1], groups, self._lanes, together, bool(self._turns)
        )

    def _at_typical(self, node: Node) -> Node:
        found = self._typical.node(node.name)
        assert found is not None
        return found

    def _rows(self, group: Group) -> LayoutChoice:
        return LayoutChoice(ROW_MAJOR, {value: Demand(ROW_MAJOR) for value in group.inputs})

    def _option(self, choice: LayoutChoice, work: float, output: str = "") -> Option:
        """Return an option whose cost is `work`, plus the memory traffic of the choice.

        `output` is the value that the choice writes; if it is empty, only reads are counted.
        """
        traffic = 0.0
        types = self._typical.types
        for value, wish in choice.demands.items():
            if value not in self._graph.constants:
                traffic += costs.moved(types[value], wish.layout or ROW_MAJOR, wish.halo)
        if output:
            traffic += costs.moved(types[output], choice.output)
        return Option(choice, work + traffic)

    def _operands(self, group: Group, output: Layout, taken: dict[str, Demand]) -> LayoutChoice:
        """Return the layouts of a group: `output` for its result, and a layout for each input.

        `taken` has the layouts of some inputs. Other inputs of the output's shape are read in the
        output's layout, and all remaining inputs row-major.
        """
        shape = self._graph.types[group.output].shape
        demands = dict(taken)
        for value in group.inputs:
            if value not in taken:
                full = self._graph.types[value].shape == shape
                demands[value] = Demand(output if full else ROW_MAJOR)
        return LayoutChoice(output, demands)

    def _conv(self, group: Group, anchor: Node) -> list[Option]:
        x, weight, *others = (_operand(group, value) for value in anchor.inputs)
        groups = integer(anchor.attrs, "group", 1)
        halo = conv_halo(self._graph, anchor)
        constants = {value: Demand(ROW_MAJOR) for value in (weight, *others)}
        # Weights computed at run time are row-major: no vector of their channels is contiguous.
        packed = weight in self._graph.constants
        found: list[Option] = []
        for output in self.layouts(anchor.output, groups) if packed else (ROW_MAJOR,):
            for source in self.layouts(x, groups) if packed else (ROW_MAJOR,):
                if groups > 1 and source != output:
                    continue  # groups are cut out of source and output in the same way
                taken = {x: Demand(source, halo), **constants}
                work = costs.convolution(
                    self._typical,
                    self._at_typical(anchor),
                    source,
                    output,
                    self._lanes,
                    self._weight_macs,
                )
                choice = self._operands(group, output, taken)
                found.append(self._option(choice, work, group.output))
        return found

    def _window(self, group: Group, anchor: Node) -> list[Option]:
        """Return the options of a pool: it writes the layout in which it reads its operand."""
        x, *others = (_operand(group, value) for value in anchor.inputs)
        rows = {value: Demand(ROW_MAJOR) for value in others}
        return [
            self._option(
                self._operands(group, layout, {x: Demand(layout), **rows}),
                costs.window(self._typical, self._at_typical(anchor), layout, self._lanes),
                group.output,
            )
            for layout in self.layouts(x)
        ]

    def _interpolation(self, group: Group, anchor: Node) -> list[Option]:
        """Return the options of an interpolation: it writes the layout in which it reads the image.

        An interpolation along the batch or the channels is row-major only.
        """
        x, *others = (_operand(group, value) for value in anchor.inputs)
        constants = {value: Demand(ROW_MAJOR) for value in others}
        resized = min(ints(anchor.attrs, "axes")) < 2
        return [
            self._option(
                self._operands(group, layout, {x: Demand(layout), **constants}),
                costs.interpolation(self._typical, self._at_typical(anchor), layout),
                group.output,
            )
            for layout in ((ROW_MAJOR,) if resized else self.layouts(x))
        ]

    def _reduction(self, group: Group, anchor: Node) -> list[Option]:
        """Return the options of a reduction.

        A reduction that keeps the batch and the channels may read any layout of its operand. All
        others read their operand row-major.
        """
        x = _operand(group, anchor.inputs[0])
        rank = len(self._graph.types[x].shape)
        axes = {axis % rank for axis in ints(anchor.attrs, "axes", tuple(range(rank)))}
        # a prologue; operators that only widen its operand read it as stored
        if x not in group.inputs:
            x = stored_source(self._graph, x)
        if x not in group.inputs or rank not in BLOCKED_RANKS or axes & {0, 1}:
            return [self._option(self._rows(group), 0.0, group.output)]
        keeps = bool(integer(anchor.attrs, "keepdims", 1)) and len(axes) < rank - 2
        return [
            self._option(
                self._operands(group, layout if keeps else ROW_MAJOR, {x: Demand(layout)}),
                costs.reduction(self._typical, self._at_typical(anchor), layout),
                group.output,
            )
            for layout in self.layouts(x)
        ]

    def _elementwise(self, group: Group) -> list[Option]:
        """Return the options of an elementwise group.

        Operands of the output's shape are read in the output's layout, all others row-major.
        """
        types, shape = self._graph.types, self._graph.types[group.output].shape
        full = [v for v in group.inputs if types[v].shape == shape]
        layouts = self.layouts(group.output)
        if all(value in self._graph.constants for value in full):
            layouts = (ROW_MAJOR,)
        return [
            self._option(self._operands(group, layout, {}), 0.0, group.output) for layout in layouts
        ]

    def _turn(self, group: Group) -> list[Option]:
        """Return the options of a transpose between an image and its rows of channels.

        The transpose is free if the image is channels-last, because both values then have the same
        bytes. Otherwise it is a copy.
        """
        (node,) = group.nodes
        (x,), y = node.inputs, node.output
        last = channels_last(len(self._graph.types[y].shape))
        returned = self._graph.returns(y)
        anything = LayoutChoice(ROW_MAJOR, {x: Demand(None)})
        found = [self._option(anything, 0.0, y)]
        inner = x not in self._graph.inputs and not returned
        if is_to_rows(self._graph, node) and last in self.layouts(x) and inner:
            found.append(Option(LayoutChoice(ROW_MAJOR, {x: Demand(last)}), 0.0))
        if is_to_image(self._graph, node):
            for layout in self.layouts(y)[1:]:
                choice = LayoutChoice(layout, {x: Demand(ROW_MAJOR)})
                view = layout == last and not returned
                found.append(Option(choice, 0.0) if view else self._option(choice, 0.0, y))
        return found

    def _movement(self, group: Group) -> list[Option]:
        """Return the options of a group that moves elements, such as a slice or a transpose.

        A slice that starts at a whole block of channels may keep a blocked layout, and is free if
        it can be a view. All other movement reads any layout and writes row-major.
        """
        anything = LayoutChoice(ROW_MAJOR, {value: Demand(None) for value in group.inputs})
        found = [self._option(anything, 0.0, group.output)]
        alone = len(group.nodes) == 1
        for layout in self.layouts(group.output):
            block = max((factor.mod or 1 for factor in layout.factors), default=1)
            if (layout == ROW_MAJOR and not alone) or not all(
                _keeps_blocks(node, block) for node in group.nodes
            ):
                continue
            demands = {
                v: Demand(layout if layout in self.layouts(v) else ROW_MAJOR) for v in group.inputs
            }
            choice = LayoutChoice(layout, demands)
            node = group.nodes[0]
            if (
                alone
                and node.output not in self._copied
                and set(ints(node.attrs, "steps")) == {1}
                and self._lies_inside(
                    node.inputs[0], node.output, ints(node.attrs, "starts"), layout
                )
            ):
                found.append(Option(choice, 0.0))
            elif layout != ROW_MAJOR:
                found.append(self._option(choice, 0.0, group.output))
        return found

    def _pieces(self, group: Group) -> list[Option]:
        """Return the options of a concatenation or another operator that assembles its output from
        operands.

        A blocked layout is an option if every operand starts at a whole block. An option is free if
        its operands can be written directly to their places in the output.
        """
        (node,) = group.nodes
        types = self._graph.types
        pieces = ops.get(node.op).pieces
        assert pieces is not None
        boxes = pieces([types[v] for v in node.inputs], node.attrs)
        found: list[Option] = []
        for layout in self.layouts(node.output):
            block = max((factor.mod or 1 for factor in layout.factors), default=1)
            whole = block == 1 or all(
                box.offset[1] % block == 0 and not box.moves(1) for box in boxes
            )
            if not whole or not all(layout in self.layouts(v) for v in node.inputs):
                continue
            choice = LayoutChoice(layout, {value: Demand(layout) for value in node.inputs})
            in_place = node.op == "concat" and node.output not in self._copied
            if in_place and all(
                box.operand is not None
                and self._lies_inside(node.output, node.inputs[box.operand], box.offset, layout)
                for box in boxes
            ):
                found.append(Option(choice, 0.0))
            else:
                found.append(self._option(choice, 0.0, node.output))
        return found

    def _lies_inside(self, whole: str, part: str, start: tuple[int, ...], layout: Layout) -> bool:
        """Whether `part` can be a view of `whole`, if both have the layout `layout`.

        `start` is the index in `whole` of the first element of `part`. The elements of `part` must
        have the same relative addresses as in a separate buffer, and the address of the first one
        must be aligned to `ALIGNMENT_BYTES`.
        """
        types, place = self._graph.types, Placement(layout)
        apart = distance(types[whole].shape, place, types[part].shape, place, start)
        return apart is not None and apart * types[whole].dtype.bytes % ALIGNMENT_BYTES == 0


@memo(4096)
def _layouts(
    rank: int, channels: int, groups: int, lanes: int, together: bool, turned: bool
) -> tuple[Layout, ...]:
    found = [ROW_MAJOR]
    if fits_block(channels, groups, lanes):
        found.append(blocked(rank, 1, lanes))
    half = lanes // 2
    if half >= 4 and channels % lanes and fits_block(channels, groups, half):
        found.append(blocked(rank, 1, half))
    single = groups in (1, channels)
    enough = channels >= half >= 4
    if single and ((turned and enough) or (channels % lanes and (enough or together))):
        found.append(channels_last(rank))
    return tuple(found)


@memo(4096)
def copied(kind: TensorType, source: Placement, target: Placement) -> float:
    """Return the cost of copying a value from one placement (layout and halo) to another.

    The value's bytes are read and written once. The cost is zero if the value has the same bytes in
    both placements.
    """
    if same_storage(kind.shape, source, target):
        return 0.0
    return costs.moved(kind, source.layout) + costs.moved(kind, target.layout)


def _operand(group: Group, value: str) -> str:
    """Return the source of an anchor's operand: the value before any casts in the group."""
    made = {node.output: node for node in group.nodes}
    while value in made and made[value].op == "cast":
        (value,) = made[value].inputs
    return value


def _keeps_blocks(node: Node, block: int) -> bool:
    if ops.get(node.op).kind is OpKind.ELEMENTWISE:
        return True
    if node.op != "slice":
        return False
    starts, steps = ints(node.attrs, "starts"), ints(node.attrs, "steps")
    return len(starts) > 1 and starts[1] % block == 0 and steps[1] == 1


def conv_halo(graph: Graph, node: Node) -> Halo:
    """Return how far a convolution's windows extend into the padding around its operand.

    The result has the number of zeros before and after each dimension, or is `()` if the windows
    read no padding.

    Raises:
        DynamicSizeError: if the number of zeros is unbounded.
    """
    shape = graph.types[node.inputs[0]].shape
    kernel = graph.types[node.inputs[1]].shape[2:]
    output = graph.types[node.output].shape[2:]
    spatial = len(kernel)
    pads = ints(node.attrs, "pads", (0,) * (2 * spatial))
    strides = ints(node.attrs, "strides", (1,) * spatial)
    dilations = ints(node.attrs, "dilations", (1,) * spatial)
    halo = [(0, 0), (0, 0)]
    for dim in range(spatial):
        last = (output[dim] - 1) * strides[dim] + (kernel[dim] - 1) * dilations[dim] - pads[dim]
        beyond = bounds(last - shape[2 + dim] + 1)[1]  # for any size: some zeros may be unused
        if beyond == inf:
            raise DynamicSizeError(
                f"conv '{node.name}': the number of zeros that its windows read is unbounded"
            )
        halo.append((int(bounds(larger(pads[dim], 0))[1]), max(int(beyond), 0)))
    return tuple(halo) if any(any(pair) for pair in halo) else ()
