"""Lowering of Winograd convolution: transform the input, multiply, transform the output.

For each block of tiles, three loop nests run one after the other, while V and M stay in the cache:

    V[x, y, tile, phase, ic] = (B^T d B)[x, y]
    M[x, y, oc, tile] = sum over phase, ic of V[x, y, tile, phase, ic] * U[x, y, oc, phase, ic]
    output[oc, tile] = A^T M A, then the epilogue

The pairs (x, y) are the points of a transformed tile; each point has a separate matrix product over
the channels. Tiles are numbered over all images, rows and columns, so that a block may have any
number of them. If tiles do not divide the image, or blocks do not divide the tiles, the last ones
start earlier and overlap others, whose outputs are computed twice. If the number of tiles is
dynamic and may be small, the last block is a partial one instead. A window of stride `s` is divided
into `s` windows of stride 1, its phases (polyphase decomposition), which are summed like further
channels. Phases with one tap less than the others need no product at the last point, which stands
for infinity.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import product
from math import prod

from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import ScheduleError
from tilewright.compiler.loops.expr import (
    Accumulator,
    Combiner,
    Expr,
    Load,
    Role,
    Space,
    Tensor,
    widened,
)
from tilewright.compiler.loops.index import Affine, Axis, FloorDiv, affine
from tilewright.compiler.loops.layout import Factor, Layout
from tilewright.compiler.loops.nest import Compute, Let, Order, Store, Tile
from tilewright.compiler.loops.nest import Node as NestNode
from tilewright.compiler.loops.rewriting import reindex
from tilewright.compiler.memo import memo
from tilewright.compiler.mode import Mode
from tilewright.compiler.schedule.cook_toom import POINTS, Rational, factored, filtering, transposed
from tilewright.compiler.schedule.kernel import Kernel, Transform
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.schedule.structure import (
    STAGGER,
    LoopSpec,
    kernel_of,
    nest,
    parallel_stage,
)
from tilewright.compiler.schedule.templates.winograd_analysis import Side, Winograd
from tilewright.compiler.sizes import always_less, bounds, is_dynamic

_WEIGHT_PREFETCH = 2048
_IMAGE_PREFETCH = 512
"""Distance in bytes at which rows of the image are prefetched. Hardware prefetchers do not follow
several short rows at once."""

_MANY_TILES = 2.5
"""If a dynamic number of tiles is at least this factor times a block's tiles minus one, the last
block is always full. It then computes the last tile again in place of missing ones. On average,
this adds a fifth to the tiles of the smallest images."""


def lower(found: Winograd, schedule: Schedule, mode: Mode) -> Kernel:
    """Lower a schedule to its kernel: input transform, multiplication, output transform.

    Raises:
        ScheduleError: if an image may be smaller than a tile.
    """
    lanes = mode.target.lanes(DType.FLOAT32)
    outputs = schedule.integer("outputs")
    counts, block = found.tile_counts(outputs), schedule.integer("block")
    if not all(always_less(0, starts) for starts in found.starts(outputs)):
        raise ScheduleError("an image may be smaller than a tile")
    every = prod(counts)
    blocks = _blocks(found, outputs, lanes, block if is_dynamic(every) else min(block, every))
    panels = blocks.panels(schedule.integer("vectors") * lanes)
    stage = parallel_stage(
        "main",
        [blocks.loop],
        *blocks.input_transforms,
        *_products(blocks, panels, schedule.integer("unroll"), schedule.integer("tile")),
        *blocks.output_transform,
    )
    return kernel_of(
        found.problem,
        (stage,),
        mode,
        packed=(panels.weights,),
        scratch=(blocks.transformed, blocks.products),
        transforms=((panels.weights.name, blocks.weight_transform),),
    )


@dataclass(frozen=True, slots=True)
class _Part:
    """Consecutive points along one transformed dimension at which the same phases are multiplied.

    A window of stride s is divided into s windows of stride 1, its phases.

    Attributes:
        first: the first point.
        count: the number of points.
        phases: the number of phases that are multiplied at these points.
    """

    first: int
    count: int
    phases: int


@dataclass(frozen=True, slots=True, eq=False)
class _Product:
    """The matrix products for a range of points of the transformed tiles of a Winograd convolution.

    A window of stride s is divided into s windows of stride 1, its phases. Each product is a sum
    over the input channels and over the phases.

    Attributes:
        loops: the loops over the points.
        steps: the loops over the phases.
        left: the load of an element of the transformed input V.
        right: the index of an element of the transformed weights U.
        stores: the store of the sum in M.
    """

    loops: tuple[LoopSpec, ...]
    steps: tuple[Tile, ...]
    left: Load
    right: tuple[Affine, ...]
    stores: tuple[Store, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Panels:
    """The transformed weights, packed in panels of `width` filters.

    Attributes:
        width: number of filters in a panel.
        weights: the tensor of the packed weights.
        bodies: for each matrix product of `_Blocks.parts`, the expression of one term of its sum:
            an input element times a weight.
    """

    width: int
    weights: Tensor
    bodies: tuple[Expr, ...]


@memo(256)
def _blocks(found: Winograd, outputs: int, lanes: int, room: int) -> _Blocks:
    return _Blocks(found, outputs, lanes, room)


class _Blocks:
    """The axes, tensors and transforms of blocks of `room` tiles with `outputs` outputs each.

    Schedules with the same `outputs` and `room` share an instance. If the number of tiles is
    dynamic and may be small, the last block is partial and has fewer than `room` tiles. One loop
    then counts tiles in steps of a block, and another one counts them within a block. Otherwise,
    all blocks are full, which needs less code, and separate axes number the blocks and the tiles of
    a block.
    """

    def __init__(self, found: Winograd, outputs: int, lanes: int, room: int) -> None:
        self.found = found
        self.lanes = lanes
        self.outputs = outputs
        self.sides = found.sides
        self.algorithms = [
            filtering(self.outputs, s.reach, POINTS[self.outputs + s.reach - 2]) for s in self.sides
        ]
        self.counts = found.tile_counts(self.outputs)
        self.number = number = Axis("tile", prod(self.counts))
        few = bounds(number.extent)[0] < _MANY_TILES * (room - 1)
        self.has_partial_block = is_dynamic(number.extent) and few
        block, tile = Axis("tb", -(-number.extent // room)), Axis("bt", room)
        self.loop = LoopSpec(number, room) if self.has_partial_block else LoopSpec(block)
        self.tile = number if self.has_partial_block else tile
        """The axis over the tiles of a block, or over all tiles if the last block may be
        partial."""
        self.place = (
            affine(number) - (number // room) * room if self.has_partial_block else affine(tile)
        )
        """The index of a tile in its block."""
        self._number = block * room + tile
        self.starts = tuple(
            Axis(f"at{d}", extent) for d, extent in enumerate(found.starts(self.outputs))
        )
        alphas = tuple(s.alpha(self.outputs) for s in self.sides)
        phases = tuple(s.stride for s in self.sides)
        channels, filters = found.channels, found.filters
        rank = len(alphas)
        self.transformed = Tensor(
            "V",
            (*alphas, room, *phases, channels),
            layout=Layout(
                (
                    *map(Factor, range(rank)),
                    Factor(rank, pad=STAGGER),
                    *map(Factor, range(rank + 1, 2 * rank + 2)),
                )
            ),
            role=Role.SCRATCH,
        )
        self.products = Tensor(
            "M",
            (*alphas, room, filters),
            layout=Layout(
                (
                    *map(Factor, range(rank)),
                    Factor(rank + 1, self.lanes, pad=STAGGER),
                    Factor(rank),
                    Factor(rank + 1, 1, self.lanes),
                )
            ),
            role=Role.SCRATCH,
        )
        self._panels: dict[int, _Panels] = {}

    def panels(self, width: int) -> _Panels:
        """Return the weights in panels of `width` filters; memoised for each width."""
        if width not in self._panels:
            weights = self._weights(width)
            bodies = (each.left * Load(weights, each.right) for each in self.parts)
            self._panels[width] = _Panels(width, weights, tuple(bodies))
        return self._panels[width]

    def _weights(self, panel: int) -> Tensor:
        found, rank = self.found, len(self.sides)
        phased = [(s.alpha(self.outputs), s.stride) for s in self.sides]
        # The transform returns the points of all phases along one dimension: (phase, point).
        return Tensor(
            found.weight.name,
            (*(a * p for a, p in phased), found.filters, found.channels),
            layout=Layout(
                (
                    *(Factor(d, 1, a if p > 1 else None) for d, (a, p) in enumerate(phased)),
                    Factor(rank, panel),
                    *(Factor(d, a) for d, (a, p) in enumerate(phased) if p > 1),
                    Factor(rank + 1),
                    Factor(rank, 1, panel),
                )
            ),
            role=Role.WEIGHT,
        )

    @cached_property
    def weight_transform(self) -> Transform:
        """The transform U = G w G^T of the weights w, for each phase.

        A window of stride s is divided into s windows of stride 1, its phases.
        """
        spatial = len(self.found.weight.shape) - 2
        taps, points_ = "klm"[:spatial], "xyz"
        transformed = {s.dim - 2: points_[n] for n, s in enumerate(self.sides)}
        matrices = tuple(
            _phased(algorithm.g, side)
            for algorithm, side in zip(self.algorithms, self.sides, strict=True)
        )
        first, *rest = (f"{transformed[d]}{taps[d]}" for d in transformed)
        result = "".join(transformed.values())
        subscripts = ",".join((first, f"oi{taps}", *rest))
        return Transform(f"{subscripts}->{result}oi", matrices)

    # ---- tiles

    def _tile_loops(self, channel: Axis) -> list[LoopSpec]:
        """Return the loops over channels and over the tiles of a block.

        At each iteration, the loop over tiles computes (as `Let`s) at which output a tile starts.
        """
        known = Let(self.number, self._number, self.number.extent - 1)
        lets = [] if self.has_partial_block else [known]
        steps = self.found.steps(self.outputs)
        for dim, (start, step) in enumerate(zip(self.starts, steps, strict=True)):
            size, inside = prod(self.counts[dim:]), prod(self.counts[dim + 1 :])
            if start.extent == 1:
                continue
            index = _quotient(self.number, inside)
            if size != self.number.extent:
                index = index - _quotient(self.number, size) * self.counts[dim]
            lets.append(Let(start, index * step, start.extent - 1))
        return [LoopSpec(channel, self.lanes), LoopSpec(self.tile, lets=tuple(lets))]

    # ---- the three nests

    @cached_property
    def input_transforms(self) -> tuple[NestNode, ...]:
        """The loops of the input transform V = B^T d B, one phase after the other.

        A window of stride s is divided into s windows of stride 1, its phases.
        """
        c = Axis("ic", self.found.channels)
        nodes: list[NestNode] = []
        for number, phases in enumerate(product(*(range(s.stride) for s in self.sides))):
            factors = []
            for algorithm, side, phase in zip(self.algorithms, self.sides, phases, strict=True):
                size = side.alpha(self.outputs) - (phase >= side.full)
                factors.append(factored(tuple(row[:size] for row in algorithm.bt[:size])))

            def read(at: Sequence[Axis], phases: tuple[int, ...] = phases) -> Expr:
                index = [affine(self.starts[0]), affine(c)]
                index += [
                    affine(start) * stride - pad
                    for start, stride, pad in zip(
                        self.starts[1:], self.found.strides, self.found.pads, strict=True
                    )
                ]
                for side, i, phase in zip(self.sides, at, phases, strict=True):
                    index[side.dim] = index[side.dim] + i * side.stride + phase
                return widened(Load(self.found.image.tensor, tuple(index)), DType.FLOAT32)

            def write(at: Sequence[Axis], phases: tuple[int, ...] = phases) -> Load:
                tile = (*map(affine, at), self.place)
                return Load(self.transformed, (*tile, *map(affine, phases), affine(c)))

            prefix = f"B{number}" if number else "B"
            nodes += _transform(prefix, factors, read, write, c, prefetch=_IMAGE_PREFETCH)
        return nest(self._tile_loops(c), *nodes)

    @cached_property
    def parts(self) -> tuple[_Product, ...]:
        """The matrix products, one per range of points at which the same phases are multiplied.

        A window of stride s is divided into s windows of stride 1, its phases. A phase with one tap
        less than the others needs no product at the last point.
        """
        t, oc, ic = self.axes
        found = []
        for parts in product(*(self._parts(side) for side in self.sides)):
            at = [Axis(f"g{'xyz'[n]}{p.first or ''}", p.count) for n, p in enumerate(parts)]
            phase = [Axis(f"p{'xyz'[n]}{p.first or ''}", p.phases) for n, p in enumerate(parts)]
            point = [affine(a) + p.first for a, p in zip(at, parts, strict=True)]
            shifted = [
                x + p * side.alpha(self.outputs)
                for x, p, side in zip(point, phase, self.sides, strict=True)
            ]
            place = self.place if self.has_partial_block else affine(t)
            left = Load(self.transformed, (*point, place, *map(affine, phase), affine(ic)))
            target = Load(self.products, (*point, place, affine(oc)))
            right = (*shifted, affine(oc), affine(ic))
            steps = tuple(Tile(p) for p in phase if p.extent > 1)
            stores = (Store(target, Accumulator()),)
            found.append(_Product(tuple(map(LoopSpec, at)), steps, left, right, stores))
        return tuple(found)

    @cached_property
    def axes(self) -> tuple[Axis, Axis, Axis]:
        """The axes of a matrix product: tiles, filters and channels."""
        return (
            self.number if self.has_partial_block else Axis("t", self.tile.extent),
            Axis("go", self.found.filters),
            Axis("gi", self.found.channels),
        )

    def _parts(self, side: Side) -> list[_Part]:
        alpha = side.alpha(self.outputs)
        if side.full == side.stride:
            return [_Part(0, alpha, side.stride)]
        return [_Part(0, alpha - 1, side.stride), _Part(alpha - 1, 1, side.full)]

    @cached_property
    def output_transform(self) -> tuple[NestNode, ...]:
        """The loops of the output transform Y = A^T M A, with the epilogue applied to each
        output of a tile."""
        c = Axis("oc", self.found.filters)
        # A^T has mirrored columns: factor its transpose, and apply the factors in reverse.
        factors = []
        for algorithm in self.algorithms:
            first, second = factored(transposed(algorithm.at))
            factors.append((transposed(second), transposed(first)))

        def position(at: Sequence[Axis]) -> tuple[Affine, ...]:
            index = [affine(self.starts[0]), affine(c), *map(affine, self.starts[1:])]
            for side, y in zip(self.sides, at, strict=True):
                index[side.dim] = index[side.dim] + y
            return tuple(index)

        def read(at: Sequence[Axis]) -> Load:
            return Load(self.products, (*map(affine, at), self.place, affine(c)))

        def write(at: Sequence[Axis]) -> Load:
            return Load(self.found.problem.output.tensor, position(at))

        def epilogue(at: Sequence[Axis]) -> Expr:
            here = dict(zip(self.found.problem.axes, position(at), strict=True))
            return reindex(self.found.problem.epilogue, here)

        return nest(self._tile_loops(c), *_transform("A", factors, read, write, c, epilogue))


def _quotient(number: Axis, divisor: int) -> Affine:
    """Return the quotient of an axis and a divisor that may be dynamic, rounded down."""
    return Affine(((FloorDiv(number, divisor), 1),)) if is_dynamic(divisor) else number // divisor


def _products(blocks: _Blocks, panels: _Panels, unroll: int, tile: int) -> tuple[NestNode, ...]:
    """Return the loops of the matrix products: one product for each point of a transformed tile."""
    t, oc, ic = blocks.axes
    points = (Tile(ic), Tile(t), Tile(oc, blocks.lanes))
    across, step = [LoopSpec(oc, panels.width), LoopSpec(t, tile)], Tile(ic, unroll)
    nodes: list[NestNode] = []
    for part, body in zip(blocks.parts, panels.bodies, strict=True):
        compute = Compute(
            part.stores,
            body,
            Combiner.SUM,
            reduce=(*part.steps, step),
            unroll=points,
            vector=oc,
            prefetch=_WEIGHT_PREFETCH,
        )
        nodes += nest([*part.loops, *across], compute)
    return tuple(nodes)


At = Callable[[Sequence[Axis]], Load]
Read = Callable[[Sequence[Axis]], Expr]


def _transform(
    prefix: str,
    factors: Sequence[tuple[Rational, Rational]],
    read: Read,
    write: At,
    lanes: Axis,
    value: Callable[[Sequence[Axis]], Expr] | None = None,
    prefetch: int = 0,
) -> tuple[NestNode, ...]:
    """Return unrolled loops that transform a tile along its one or more transformed dimensions.

    The transform of a dimension is a product of two matrices, T = outer * inner. In two dimensions
    with the transforms T and U, the loops compute `write[k, l] = sum over i, j of T[k, i] * U[l, j]
    * read[i, j]`. The dimensions are transformed one after the other.

    Args:
        prefix: start of the names of axes and tensors.
        factors: the matrices (outer, inner) of each dimension. The loops apply `inner` first.
        read: returns an element of the tile, given its axes.
        write: returns the destination of an element of the result, given its axes.
        lanes: the vector axis.
        value: returns the value to store, given the axes of the result; None stores the sum.
        prefetch: distance in bytes at which the tile's elements are prefetched; 0 for none.
    """
    ins = [Axis(f"{prefix}i{n}", len(inner[0])) for n, (_, inner) in enumerate(factors)]
    outs = [Axis(f"{prefix}o{n}", len(outer)) for n, (outer, _) in enumerate(factors)]
    source: Expr = read(ins)
    nodes: list[NestNode] = []
    for n, (outer, inner) in enumerate(factors):
        middle = Axis(f"{prefix}m{n}", len(inner))
        others = [*outs[:n], *ins[n + 1 :]]
        shape = [a.extent for a in others]
        last = n == len(factors) - 1
        half = Tensor(f"{prefix}h{n}", (middle.extent, *shape, lanes.extent), space=Space.REGISTER)
        half_at = Load(half, tuple(map(affine, (middle, *others, lanes))))
        if last:
            target = write(outs)
        else:
            whole = Tensor(
                f"{prefix}r{n}",
                (*(a.extent for a in (*outs[: n + 1], *ins[n + 1 :])), lanes.extent),
                space=Space.REGISTER,
            )
            target = Load(whole, tuple(map(affine, (*outs[: n + 1], *ins[n + 1 :], lanes))))
        first = _matrix(f"{prefix}p{n}", inner)[middle, ins[n]]
        second = _matrix(f"{prefix}q{n}", outer)[outs[n], middle]
        final = value(outs) if last and value else Accumulator()
        nodes += nest(
            [LoopSpec(a, unroll=True) for a in others],
            _stage(half_at, first * source, middle, ins[n], lanes, Accumulator(), prefetch),
            _stage(target, second * half_at, outs[n], middle, lanes, final),
        )
        source, prefetch = target, 0
    return tuple(nodes)


def _stage(
    target: Load, body: Expr, outer: Axis, inner: Axis, lanes: Axis, value: Expr, prefetch: int = 0
) -> Compute:
    """Return the statement `target[outer] = sum[inner] of matrix[outer, inner] * operand[inner]`.

    The loops over `outer` and `inner` are completely unrolled.

    Args:
        target: the destination.
        body: the product of a matrix element and an operand element.
        outer: the axis of the results.
        inner: the axis of the sum.
        lanes: the vector axis.
        value: the value to store, normally the sum.
        prefetch: distance in bytes at which operands are prefetched; 0 for none.
    """
    return Compute(
        (Store(target, value),),
        body,
        Combiner.SUM,
        unroll=(Tile(outer), Tile(inner)),
        vector=lanes,
        order=Order.PROGRAM,
        prefetch=prefetch,
    )


def _matrix(name: str, values: Rational) -> Tensor:
    """Return a tensor of constants; code generation omits products with its zeros."""
    flat = tuple(float(x) for row in values for x in row)
    return Tensor(name, (len(values), len(values[0])), space=Space.CONSTANT, values=flat)


def _phased(g: Rational, side: Side) -> tuple[tuple[float, ...], ...]:
    """Return the Winograd matrix G for all phases of a window, of shape (phases * alpha, taps).

    A window of stride s is divided into s windows of stride 1, its phases. The rows of each phase
    apply G to the taps of this phase; the coefficients of other taps are 0.
    """
    return tuple(
        tuple(
            float(row[tap // side.stride] if tap % side.stride == phase else Fraction(0))
            for tap in range(side.taps)
        )
        for phase in range(side.stride)
        for row in g
    )
