"""The roles of axes and operands in a sum of products, derived from its tensor expression.

One operand is read along the lanes (weights packed in panels, or rows that are contiguous in
memory), the other is broadcast.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import gcd, prod

from tilewright.compiler.dtypes import DType
from tilewright.compiler.loops.expr import Expr, Load, Role, loads, widened
from tilewright.compiler.loops.index import Axis, FloorDiv, affine
from tilewright.compiler.loops.nest import dot_operands
from tilewright.compiler.memo import memo
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.schedule.merge import merge_axes, one_expression
from tilewright.compiler.schedule.problem import (
    Problem,
    axes_of,
    compose,
    stored,
)
from tilewright.compiler.schedule.resources import tile_registers
from tilewright.compiler.schedule.structure import (
    needs_padding,
    short_step,
    unit_stride,
    vector_axis,
)
from tilewright.compiler.sizes import is_dynamic, known_divisor, typical
from tilewright.compiler.targets.families import CoreModel, DotInstruction
from tilewright.compiler.targets.target import Target

_LEAST_ROW_BYTES = 16
"""Minimum number of bytes of channels that a step multiplies in tile registers (AMX). With fewer
bytes, other instructions are as fast."""

_LINE_BYTES = 64
"""Size of a cache line in bytes."""

_MATRIX_BYTES = 8
"""Number of bytes of channels in each row and column that a matrix instruction (`smmla`)
multiplies."""


@dataclass(frozen=True)
class Contraction:
    """The meaning of the axes and operands of a sum of products, such as a matrix product.

    Attributes:
        problem: the workload as one expression.
        broadcast: the factor that is read in single elements. Each is broadcast to all lanes of a
            vector.
        streamed: the factor that is read in vectors.
        lanes: the output axis along the vectors.
        tile: the output axis along the rows of the register tile. In each step, every row
            multiplies the vectors of `streamed` by its own element of `broadcast`.
        outer: the other output axes, without `batch`.
        batch: output axes that index both factors.
        channel: the reduction axis that is split and unrolled.
        window: the other reduction axes.
        channel_block: block size of the channels of the broadcast factor; None without blocks.
        padded: whether an index may lie outside its tensor, in padding that is not stored.
        group: number of adjacent channels whose products one dot-product instruction adds to a sum:
            the 8-bit, int16 or bfloat16 elements that fill 32 bits (64 after
            `with_matrix_instructions`). It is 1 for other types.
        depth: channels that one step multiplies in tile registers (AMX); 0 without them.
    """

    problem: Problem
    broadcast: Expr
    streamed: Expr
    lanes: Axis
    tile: Axis | None
    outer: tuple[Axis, ...]
    batch: tuple[Axis, ...]
    channel: Axis
    window: tuple[Axis, ...]
    channel_block: int | None
    padded: bool
    group: int = 1
    depth: int = 0

    def product(self, broadcast: Expr, streamed: Expr) -> Expr:
        """Return the product of the factors, each converted to the type of the product."""
        dtype = self.problem.reduction.body.dtype
        return widened(broadcast, dtype) * widened(streamed, dtype)

    @cached_property
    def lanes_are_one_group(self) -> bool:
        """Whether the lanes are the output channels of one group of a grouped convolution.

        A tile must not contain channels of two groups.
        """
        groups = set(self.problem.groups)
        index = self.problem.output.index
        return any(self.lanes in i.axes() and groups & set(i.axes()) for i in index)

    @property
    def uses_matrix_instructions(self) -> bool:
        """Whether one step of the reduction is a matrix instruction such as `smmla`.

        Such an instruction multiplies two rows by two columns of eight bytes of channels each.
        """
        return self.group > 1 and self.group * self.streamed.dtype.bytes == _MATRIX_BYTES

    def with_matrix_instructions(self, target: Target) -> Contraction | None:
        """Return the same contraction, computed with a matrix instruction such as `smmla`.

        The instruction multiplies groups of adjacent channels. The result is None in four cases:

        - The target has no such instruction for these types.
        - The channels do not fill the groups of the instruction.
        - No two rows share the streamed operand.
        - The streamed operand is not a packed weight.
        """
        group, tile = 2 * self.group, self.tile
        types = self.broadcast.dtype, self.streamed.dtype, self.problem.reduction.dtype
        if self.group == 1 or tile is None or not tile.moves or target.matrix(*types) is None:
            return None
        if not is_weight(self.panel):
            return None
        if tile in axes_of(self.streamed) or tile not in axes_of(self.broadcast):
            return None
        extent = self.channel.extent
        if (self.channel_block or group) % group or typical(extent) < group:
            return None
        if is_dynamic(extent) and extent % group != 0:
            return None
        return replace(self, group=group)

    def matrix_depth(self, target: Target) -> int | None:
        """Return the number of channels that one step multiplies in tile registers (AMX).

        The result is None if the target has no tile registers for these types. It is also None
        unless the rows of `broadcast` are equidistant in memory, and their channels contiguous.
        """
        tiles, tile, load = target.tiles, self.tile, self.broadcast
        types = self.broadcast.dtype, self.streamed.dtype, self.problem.reduction.dtype
        if tiles is None or self.group == 1 or target.tile_product(*types) is None:
            return None
        if tile is None or not tile.moves or not isinstance(load, Load):
            return None
        if tile in axes_of(self.streamed) or tile not in axes_of(load) or needs_static_taps(self):
            return None
        if load.tensor.role is Role.WEIGHT or not _in_equal_steps(load, tile):
            return None
        size, common = load.dtype.bytes, known_divisor(self.channel.extent)
        common = gcd(common, self.channel_block or common)
        depths = range(tiles.row_bytes // size, _LEAST_ROW_BYTES // size - 1, -1)
        return next((d for d in depths if common % d == 0 and d % self.group == 0), None)

    @property
    def registers_per_vector(self) -> int:
        """Number of registers for one vector of sums.

        A vector has as many lanes as a vector of float32. A vector of float64 sums therefore needs
        two registers.
        """
        return max(1, self.problem.reduction.dtype.bytes // DType.FLOAT32.bytes)

    def registers(self, target: Target, tile: int, vectors: int) -> int:
        """Return the number of vector registers for a tile of `tile` rows by `vectors` vectors.

        They hold the sums, one row of `vectors` weights, and one broadcast factor. Three types of
        instructions need more:
        - For a matrix instruction, the row takes twice as many registers.
        - If the target has no dot-product instruction for 8- or 16-bit factors, the factors take
          twice as many, and their product takes one.
        - If a dot-product instruction does not add to an accumulator, its product takes one.
        """
        if self.group == 1:
            return tile_registers(target, tile, vectors, self.registers_per_vector)
        operands, dot = vectors + 1, self._dot(target)
        if self.uses_matrix_instructions:
            operands += vectors
        elif dot is None:
            operands = 2 * operands + 1
        elif not dot.accumulates:
            operands += 1
        return tile * vectors + operands

    def scalar_loads(self, target: Target, tile: int, vectors: int) -> float:
        """Return how many loads per step of the sum read the broadcast factors of a tile's rows.

        Each row has one broadcast factor per step. There are three cases:

        - The factors of adjacent rows are contiguous in memory: one load reads the factors of
          several rows.
        - There are too few channels to load several factors at once: the result is `tile`, one load
          per row.
        - In all other cases, one load may read the factors of one row for several steps
          (`Target.scalar_loads`).

        Args:
            target: the processor.
            tile: number of rows of the register tile.
            vectors: number of vectors per row.
        """
        together, size = target.lane_factors, self.broadcast.dtype.bytes * self.group
        if self._row_stride == size == DType.FLOAT32.bytes:
            return tile // together + tile % together
        if typical(self.channel.extent) < together * self.group:
            return tile
        return target.scalar_loads(tile, vectors)

    def products_at_once(self, target: Target) -> int:
        """Return how many products one multiply-add instruction adds to each sum.

        The result is 1 without a dot-product instruction for the types.
        """
        return 1 if self._dot(target) is None else self.group

    def _dot(self, target: Target) -> DotInstruction | None:
        """Return the target's dot-product instruction for the operands' types, in either order.

        The result is None if the target does not have one.
        """
        left, right = self.broadcast.dtype, self.streamed.dtype
        sums, lanes = self.problem.reduction.dtype, target.lanes(self.problem.reduction.dtype)
        return target.dot(left, right, sums, lanes) or target.dot(right, left, sums, lanes)

    def operations(self, target: Target) -> int:
        """Return the number of instructions that multiply one vector by another and add to sums.

        Each lane of these vectors is a dot-product group of `group` adjacent channels. The result
        is 1 if the target has a dot-product instruction for the types, otherwise `group`.
        """
        return self.group // self.products_at_once(target)

    def panel_bytes(self, target: Target, vectors: int) -> int:
        """Return the bytes of one panel of the factor `streamed`, for one position of the window.

        A panel has the columns that one register tile reads, packed contiguously. A matrix product
        has one window position.

        Args:
            target: determines the number of lanes of a vector.
            vectors: the width of a panel in vectors of float32 lanes (the knob `vectors`).
        """
        lanes = target.lanes(DType.FLOAT32)
        return self.channel.extent * vectors * lanes * self.streamed.dtype.bytes

    def pass_bytes(self, target: Target, vectors: int) -> int:
        """Return the bytes of the factor `streamed` that one register tile reads.

        A register tile reads one panel for each position of the convolution window. A panel is a
        packed block of columns. Without a window, the result is the size of one panel.

        Args:
            target: determines the number of lanes of a vector.
            vectors: the width of a panel in vectors of float32 lanes (the knob `vectors`).
        """
        return prod(axis.extent for axis in self.window) * self.panel_bytes(target, vectors)

    @property
    def panel(self) -> Load | None:
        """The factor `streamed` if it is the load of a tensor, so that it can be packed.

        None if the factor is any other expression.
        """
        return self.streamed if isinstance(self.streamed, Load) else None

    def rows_in_cache(self, core: CoreModel) -> int:
        """Return how many rows of a tile can be in the first-level cache at the same time.

        Rows whose distance is a multiple of the set stride map to one cache set. With eight ways
        and a set stride of 4096 bytes, 24 such rows ran at a quarter of the speed of eight.
        """
        sets = core.set_stride
        if self._row_stride is None:
            return core.level1_ways * sets
        return core.level1_ways * sets // gcd(self._row_stride, sets)

    def exceeds_cache_sets(self, core: CoreModel) -> bool:
        """Whether the channels of one row conflict in the second-level cache.

        This happens if the distance between blocks of channels is a multiple of a large power of
        two, as in an image of 128x128 pixels. The blocks then map to few cache sets, which cannot
        hold all of them.
        """
        load, sets = self.broadcast, core.cache_bytes[1] // core.level2_ways
        if not isinstance(load, Load) or load.tensor.role is Role.WEIGHT or not self.channel_block:
            return False
        factors = load.tensor.layout.resolved(len(load.tensor.shape))
        apart = [
            step
            for factor, step in zip(factors, load.tensor.byte_strides, strict=True)
            if factor.mod is None and self.channel in load.index[factor.dim].axes()
        ]
        blocks = -(-typical(self.channel.extent) // self.channel_block)
        return any(blocks * gcd(typical(s), sets) > sets * core.level2_ways for s in apart)

    @cached_property
    def _row_stride(self) -> int | None:
        """Bytes from one row of the tile to the next; None if rows are not read in place."""
        load = self.broadcast
        if self.tile is None or not isinstance(load, Load) or load.tensor.role is Role.WEIGHT:
            return None
        factors = load.tensor.layout.resolved(len(load.tensor.shape))
        return sum(
            load.index[factor.dim].coefficient(self.tile) * step // factor.div
            for factor, step in zip(factors, load.tensor.byte_strides, strict=True)
            if factor.mod is None
        )


@memo(256)
def analyse(workload: Workload) -> Contraction | None:
    """Return the structure of a sum of products; None for other workloads."""
    groups = _groups(workload)
    problem = merge_axes(compose(workload, groups)) if groups else one_expression(workload)
    if problem is None or problem.product is None:
        return None
    lanes = vector_axis(problem.output, problem.axes)
    if lanes is None:
        return None
    left, right = (stored(factor) for factor in problem.product)
    if lanes in axes_of(left):
        left, right = right, left
    free, used = axes_of(left), axes_of(right)
    if lanes in free or lanes not in used:
        return None
    if any(is_padded(load, lanes) for load in loads(problem.reduction.body)):
        return None
    outputs = [a for a in problem.axes if a != lanes and a.moves]
    batch = tuple(a for a in outputs if a in free and a in used)
    spatial = [a for a in outputs if a not in batch]
    own = [a for a in spatial if a in free]
    tile = own[-1] if own else (spatial[-1] if spatial else None)
    window = _window(problem)
    if not _can_stream(right, lanes, window):
        return None
    window = _tile_axis_last(problem, window, tile)
    rest = [a for a in problem.reduction.axes if a not in window]
    channel = max(rest, key=lambda a: typical(a.extent), default=Axis("unit", 1))
    block = _channel_block(loads(left), channel)
    if block is None and window and _lie_together(left, channel):
        block = channel.extent
    return Contraction(
        problem,
        left,
        right,
        lanes,
        tile,
        tuple(a for a in spatial if a != tile),
        batch,
        channel,
        window,
        block,
        any(needs_padding(load) for load in loads(problem.reduction.body)),
        _group(problem, left, right, (lanes, channel), block, windowed=bool(window)),
    )


def _group(
    problem: Problem,
    left: Expr,
    right: Expr,
    axes: tuple[Axis, Axis],
    block: int | None,
    *,
    windowed: bool,
) -> int:
    """Return how many adjacent channels form a dot-product group; 1 without such groups.

    An instruction multiplies the channels of a group and adds the products to one sum. A group
    fills 32 bits. Its channels must be contiguous in `left`, and contiguous or packable in `right`.

    Args:
        problem: the workload as one expression.
        left: the factor that is read in single elements.
        right: the factor that is read in vectors.
        axes: the axis along the vector lanes, and the axis of the channels.
        block: the block size, if the channels are stored in blocks.
        windowed: whether the product is a convolution with a window. Only weights are then
            packable.
    """
    lanes, channel = axes
    if dot_operands(problem.reduction.body) is None or channel.extent == 1:
        return 1
    if not isinstance(left, Load) or not isinstance(right, Load):
        return 1
    group = 4 // left.dtype.bytes
    rows = unit_stride(left, channel) and not is_padded(left, channel)
    if right.tensor.role is Role.WEIGHT:
        packable = affine(channel) in right.index
    else:
        packable = not windowed and _moves_in_groups(right, lanes, channel)
    return group if rows and packable and (block or group) % group == 0 else 1


def _moves_in_groups(load: Load, lanes: Axis, channel: Axis) -> bool:
    """Whether an operand that is not a weight can be packed into dot-product groups.

    Such a group consists of adjacent channels. The operand's elements must be contiguous along the
    lanes or along the channels.
    """
    if load.tensor.layout.factors or needs_padding(load):
        return False
    return unit_stride(load, lanes) or unit_stride(load, channel)


def _can_stream(streamed: Expr, lanes: Axis, window: Sequence[Axis]) -> bool:
    """Whether an operand can be read in vectors along the axis `lanes`, in place or after packing.

    `streamed` is the operand. `window` has the axes of the convolution window; empty for a matrix
    product.
    """
    if not isinstance(streamed, Load):
        return False
    together = unit_stride(streamed, lanes) or short_step(streamed, lanes)
    return streamed.tensor.role is Role.WEIGHT or together or not window


def is_padded(load: Load, axis: Axis) -> bool:
    """Whether a load may read outside its tensor along an axis."""
    return any(axis in load.index[dim].axes() for dim in needs_padding(load))


def _groups(workload: Workload) -> tuple[tuple[int, int], ...]:
    """Return (dimension, group size) for the output channels of a grouped convolution.

    The compiler splits the channels into two axes, so that a tile never contains channels of two
    groups. The result has one such pair; it is () for other workloads.
    """
    for node in workload.graph.nodes:
        group = node.attr("group", 1)
        if node.op == "conv" and isinstance(group, int) and group > 1:
            return ((1, workload.output.type.shape[1] // group),)
    return ()


def _window(problem: Problem) -> tuple[Axis, ...]:
    """Return the reduction axes other than the channels, in the order of the expression.

    A window axis occurs in the index of a load together with an output axis. If the output is one
    pixel, no index has such an output axis. The largest reduction axis is then considered the
    channels.
    """
    reduced = [a for a in problem.reduction.axes if a.moves]
    spatial = set(problem.axes) - set(problem.groups)
    window = [
        axis
        for axis in reduced
        if any(
            axis in index.axes() and spatial & set(index.axes())
            for load in loads(problem.reduction.body)
            for index in load.index
        )
    ]
    others = sorted((a for a in reduced if a not in window), key=lambda a: typical(a.extent))
    return tuple(a for a in reduced if a in window or a in others[:-1])


def _tile_axis_last(
    problem: Problem, window: tuple[Axis, ...], tile: Axis | None
) -> tuple[Axis, ...]:
    """Return the window axes in loop order, outermost first.

    Some window axes are added to the tile axis in an index, such as the window axis `kw` to the
    tile axis `w` in `w + kw`. These window axes are last, because only the last axis may be
    unrolled. The order changes only for outputs that are one pixel wide. `tile` is the tile axis:
    the output axis along the rows of the register tile.
    """
    indices = [index.axes() for load in loads(problem.reduction.body) for index in load.index]
    beside = tuple(a for a in window if any(a in axes and tile in axes for axes in indices))
    return (*(a for a in window if a not in beside), *beside)


def _channel_block(operands: Sequence[Load], channel: Axis) -> int | None:
    """Return the block size of the channels in the operands' layouts; None without blocks."""
    for load in operands:
        for dim, index in enumerate(load.index):
            if channel in index.axes():
                for factor in load.tensor.layout.factors:
                    if factor.dim == dim and factor.mod is not None:
                        return factor.mod
    return None


def _lie_together(load: Expr, channel: Axis) -> bool:
    """Whether the channels of a pixel are contiguous and fill at least one cache line.

    If so, the loop over channels is inside the loop over taps, so that each cache line is loaded
    once.
    """
    if not isinstance(load, Load) or not unit_stride(load, channel) or is_padded(load, channel):
        return False
    size = channel.extent * load.dtype.bytes
    return not is_dynamic(size) and size >= _LINE_BYTES and size % _MATRIX_BYTES == 0


def _in_equal_steps(load: Load, axis: Axis) -> bool:
    """Whether a load's elements along an axis have a constant distance in memory."""
    factors = load.tensor.layout.resolved(len(load.tensor.shape))
    split = {f.dim for f in factors if f.div > 1 or f.mod is not None}
    moved = [(dim, index) for dim, index in enumerate(load.index) if axis in index.axes()]
    whole = all(
        not isinstance(term, FloorDiv) or term.axis != axis
        for _, index in moved
        for term, _ in index.terms
    )
    return whole and split.isdisjoint(dim for dim, _ in moved)


def is_weight(panel: Load | None) -> bool:
    """Whether a panel is a weight, which is packed at compile time; False for None."""
    return panel is not None and panel.tensor.role is Role.WEIGHT


def needs_static_taps(found: Contraction) -> bool:
    """Whether a load may read outside its tensor along the axis of the register tile.

    The taps must then be unrolled, so that each is checked at compile time.
    """
    tile = found.tile
    return tile is not None and any(
        is_padded(load, tile) for load in loads(found.problem.reduction.body)
    )


def can_stream_unpacked(found: Contraction) -> bool:
    """Whether the streamed operand can be read in place, contiguously along the lanes.

    The result is False for operands of dot-product instructions. Their dot-product groups of
    adjacent channels are packed once, because packing them for every tile would cost more.
    """
    panel = found.panel
    if panel is None or panel.tensor.role is not Role.INPUT or found.group > 1:
        return False
    return unit_stride(panel, found.lanes)
