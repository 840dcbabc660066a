"""Winograd convolution F(m x m, 3 x 3): nine computes in three nests.

Tiles of the input are transformed to V[xi][tile][ic], (m+2)^2 matrix products with the transformed
weights U[xi][oc][ic] give M[xi][oc][tile], and M is transformed to m x m outputs with the epilogue.
A block of tile rows passes through all three while V and M stay in the cache. Ragged edges clamp
the start of a tile and recompute. Lavin and Gray, "Fast Algorithms for Convolutional Neural
Networks" (2016).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

from compiler.dtypes import DType
from compiler.errors import ScheduleError
from compiler.graph.ir import Node
from compiler.loops.expr import (
    Accumulator,
    Combiner,
    Expr,
    Load,
    Role,
    Space,
    Tensor,
    rewrite,
)
from compiler.loops.index import Affine, Axis, affine
from compiler.loops.layout import Factor, Layout
from compiler.loops.nest import Compute, Let, LoopNest, Order, Store, Tile
from compiler.loops.nest import Node as NestNode
from compiler.schedule.cook_toom import POINTS, Rational, factored, filtering, transposed
from compiler.schedule.kernel import Kernel, Transform
from compiler.schedule.problem import Problem, compose
from compiler.schedule.schedule import Choice, Schedule
from compiler.schedule.space import Knob, SubSpace
from compiler.schedule.structure import Loop, halo_stage, nest, parallel_stage
from compiler.target import Target
from compiler.workload import Workload

_WEIGHT_COST = 26
"""Fused multiply-adds in the time that one weight takes to come from memory, on a core whose cache
does not hold the model: 180 GFLOP/s against 14 GB/s, as measured on a Sapphire Rapids server."""

_CACHED_ELEMENTS = 1 << 18
"""float32 numbers that a second-level cache of 1 to 2 MiB holds beside what else it is used for."""

_CACHE_COST = 13
"""Fused multiply-adds in the time that a number takes to come from the cache behind it: 27 GB/s."""

_PREFETCH_BYTES = 2048

_STAGGER = 16
"""Elements between the slices of V and M, against slices that share cache sets."""


@dataclass(frozen=True)
class Winograd:
    """A 3x3 convolution of stride 1 in blocked channels whose input holds its padding as a halo."""

    problem: Problem
    image: Load
    weight: Tensor
    block: int

    @property
    def rows(self) -> int:
        return self.problem.output.tensor.shape[2]

    @property
    def columns(self) -> int:
        return self.problem.output.tensor.shape[3]


def analyse(workload: Workload) -> Winograd | None:
    """The convolution, where Winograd applies; else None."""
    convolution = next((n for n in workload.graph.nodes if n.op == "conv"), None)
    if convolution is None or not _is_plain(convolution, workload):
        return None
    problem = compose(workload)
    if problem.product is None:
        return None
    image = next((e for e in problem.product if _is_load(e, Role.INPUT)), None)
    weight = next((e for e in problem.product if _is_load(e, Role.WEIGHT)), None)
    if not isinstance(image, Load) or not isinstance(weight, Load):
        return None
    halo = [image.tensor.halo_of(d) for d in (2, 3)]
    if any(before < 1 or after < 1 for before, after in halo):
        return None
    blocks = [_block(t) for t in (image.tensor, problem.output.tensor)]
    if blocks[0] is None or blocks[0] != blocks[1]:
        return None
    return Winograd(problem, image, weight.tensor, blocks[0])


def _is_plain(node: Node, workload: Workload) -> bool:
    """3x3, stride 1, padded by 1, no dilation, no groups, float32."""
    shape = workload.graph.types[node.inputs[1]].shape
    return (
        len(shape) == 4
        and shape[2:] == (3, 3)
        and workload.output.type.dtype is DType.FLOAT32
        and node.attr("group", 1) == 1
        and set(_ints(node, "strides", 1)) == {1}
        and set(_ints(node, "dilations", 1)) == {1}
        and set(_ints(node, "pads", 0)) == {1}
    )


def _ints(node: Node, name: str, default: int) -> tuple[int, ...]:
    value = node.attr(name, (default,))
    return tuple(v for v in value if isinstance(v, int)) if isinstance(value, tuple) else ()


def _is_load(expr: Expr, role: Role) -> bool:
    return isinstance(expr, Load) and expr.tensor.role is role


def _block(tensor: Tensor) -> int | None:
    return next((f.mod for f in tensor.layout.factors if f.dim == 1 and f.mod), None)


@lru_cache(maxsize=256)
def _analyse(workload: Workload) -> Winograd | None:
    return analyse(workload)


class _Template:
    algorithms = ("winograd",)

    def preference(self, workload: Workload) -> float:
        found = _analyse(workload)
        if found is None or found.weight.shape[1] < 32:
            return 0.9
        best = min((_work(found, m) for m in _outputs(found)), default=float("inf"))
        return 3.0 if best < 0.9 * _work(found, 1) else 0.9

    def space(
        self, workload: Workload, target: Target, *, threads: int, strict: bool
    ) -> SubSpace | None:
        found = _analyse(workload)
        if found is None or strict:
            return None
        outputs = _outputs(found)
        if not outputs:
            return None
        lanes = target.lanes(DType.FLOAT32)
        most = min(6, -(-found.weight.shape[0] // lanes))
        knobs = (
            Knob("outputs", outputs),
            Knob("rows", (1, 2, 3, 4, 7)),
            Knob("tile", (*range(2, 17), 20, 24, 28)),
            Knob("vectors", tuple(range(1, most + 1))),
            Knob("unroll", (1, 2, 4)),
        )

        def valid(choice: Mapping[str, Choice]) -> bool:
            return _fits(found, target, choice)

        return SubSpace("winograd", knobs, valid, _default(found, target, knobs, threads))

    def lower(
        self, workload: Workload, schedule: Schedule, target: Target, *, threads: int
    ) -> Kernel:
        found = _analyse(workload)
        if found is None:
            raise ScheduleError("'winograd' does not apply to this workload")
        return _lower(found, schedule, target)


TEMPLATE = _Template()


def _outputs(found: Winograd) -> tuple[int, ...]:
    """Tile sizes that the image is large enough for."""
    extent = min(found.rows, found.columns)
    # A tile of 6 outputs pays only where several fit: at 7 pixels it recomputes almost all.
    return tuple(m for m in (2, 4, 6) if m * (2 if m > 4 else 1) <= extent)


def _work(found: Winograd, m: int) -> float:
    """Estimated cost of F(m), 1 being the direct algorithm: multiply-adds, and weights to fetch."""
    tiles = -(-found.rows // m) * -(-found.columns // m)
    return float((m + 2) ** 2 * (tiles * found.image.tensor.shape[0] + _WEIGHT_COST))


def _fits(found: Winograd, target: Target, choice: Mapping[str, Choice]) -> bool:
    m, rows = int(choice["outputs"]), int(choice["rows"])
    tile, vectors = int(choice["tile"]), int(choice["vectors"])
    registers = target.vector_registers
    lanes = target.lanes(DType.FLOAT32)
    tiles_down, tiles_across = -(-found.rows // m), -(-found.columns // m)
    tiles = rows * tiles_across
    if rows > tiles_down or tile > tiles:
        return False
    if tile * vectors + vectors + 1 > registers:
        return False
    if tile < tiles and tile * vectors < registers * 3 // 8:
        return False
    if int(choice["unroll"]) * tile * vectors > 128:
        return False
    # Narrower tails cost their share of a full tile's latency.
    if -(-tiles // tile) * tile > 1.34 * tiles or -(-tiles_down // rows) * rows > 1.5 * tiles_down:
        return False
    whole = -(-found.weight.shape[0] // lanes)
    return -(-whole // vectors) * vectors <= 1.3 * whole


def _default(found: Winograd, target: Target, knobs: tuple[Knob, ...], threads: int) -> Schedule:
    values = {k.name: k.values for k in knobs}
    lanes = target.lanes(DType.FLOAT32)
    safe = [int(m) for m in values["outputs"] if int(m) <= 4] or [2]
    m = min(safe, key=lambda outputs: _work(found, outputs))
    tiles_down, tiles_across = -(-found.rows // m), -(-found.columns // m)
    whole = -(-found.weight.shape[0] // lanes)
    best: tuple[float, Schedule] | None = None
    for rows, tile, vectors in product(values["rows"], values["tile"], values["vectors"]):
        choice: dict[str, Choice] = {
            "outputs": m,
            "rows": rows,
            "tile": tile,
            "vectors": vectors,
            "unroll": 2,
        }
        tiles = int(rows) * tiles_across
        steps = -(-tiles // int(tile)) * -(-whole // int(vectors))
        useful = tiles * whole / (steps * int(tile) * int(vectors))
        useful *= tiles_down / (-(-tiles_down // int(rows)) * int(rows))
        useful *= min(1.0, int(tile) * int(vectors) / (0.62 * target.vector_registers))
        blocks = -(-tiles_down // int(rows))
        if found.image.tensor.shape[0] == 1:
            useful *= blocks / (-(-blocks // threads) * threads)
        cost = _products_cost(found, m, tiles, blocks, useful)
        cost += 0.0 if _fits(found, target, choice) else 1e18
        if best is None or cost < best[0]:
            best = cost, Schedule.of("winograd", **choice)
    assert best is not None
    return best[1]


def _products_cost(found: Winograd, m: int, tiles: int, blocks: int, efficiency: float) -> float:
    """Estimated multiply-adds' worth of time in all blocks of `tiles` tiles.

    What does not fit the second-level cache comes from the one behind it: the weights once for
    each block, V and M of a block twice, written and read.
    """
    filters, channels = found.weight.shape[:2]
    points = (m + 2) ** 2
    weights = points * filters * channels
    block = points * tiles * (filters + channels)
    fetched = weights if weights > _CACHED_ELEMENTS else 0
    fetched += 2 * block if block > _CACHED_ELEMENTS else 0
    return blocks * (points * tiles * filters * channels / efficiency + _CACHE_COST * fetched)


# ---- lowering


@dataclass(frozen=True, slots=True)
class _Axes:
    """Axes that the three nests share."""

    image: Axis | None
    block: Axis
    row: Axis
    column: Axis
    top: Axis
    left: Axis


def _lower(found: Winograd, schedule: Schedule, target: Target) -> Kernel:
    m, rows = schedule.integer("outputs"), schedule.integer("rows")
    lanes, alpha = target.lanes(DType.FLOAT32), m + 2
    algorithm = filtering(m, 3, POINTS[m])
    tiles_down, tiles_across = -(-found.rows // m), -(-found.columns // m)
    batch, channels = found.image.tensor.shape[:2]
    filters = found.weight.shape[0]
    axes = _Axes(
        Axis("n", batch) if batch > 1 else None,
        Axis("tb", -(-tiles_down // rows)),
        Axis("tr", rows),
        Axis("tx", tiles_across),
        Axis("y0", found.rows - m + 1),
        Axis("x0", found.columns - m + 1),
    )
    tiles = rows * tiles_across
    transformed = Tensor(
        "V",
        (alpha, alpha, tiles, channels),
        layout=Layout((Factor(0), Factor(1), Factor(2, pad=_STAGGER), Factor(3))),
        role=Role.SCRATCH,
    )
    products = Tensor(
        "M",
        (alpha, alpha, tiles, filters),
        layout=Layout(
            (Factor(0), Factor(1), Factor(3, lanes, pad=_STAGGER), Factor(2), Factor(3, 1, lanes))
        ),
        role=Role.SCRATCH,
    )
    panel = schedule.integer("vectors") * lanes
    weights = Tensor(
        found.weight.name,
        (alpha, alpha, filters, channels),
        layout=Layout((Factor(0), Factor(1), Factor(2, panel), Factor(3), Factor(2, 1, panel))),
        role=Role.WEIGHT,
    )
    body = (
        *_input_transform(found, axes, transformed, algorithm.bt, m, lanes),
        *_products(schedule, transformed, weights, products, lanes),
        *_output_transform(found, axes, products, algorithm.at, m, lanes),
    )
    outer = [Loop(axes.image)] if axes.image else []
    stage = parallel_stage("main", [*outer, Loop(axes.block)], *body)
    output = found.problem.output.tensor
    inputs = tuple(weights if t.name == weights.name else t for t in found.problem.inputs)
    g = tuple(tuple(float(x) for x in row) for row in algorithm.g)
    return Kernel(
        LoopNest(
            "kernel",
            (*inputs, output),
            (transformed, products),
            (stage, *halo_stage(output, lanes)),
        ),
        tuple((t.name, i) for i, t in enumerate(inputs)),
        ((weights.name, Transform("xk,oikl,yl->xyoi", (g, g))),),
    )


def _matrix(name: str, values: Rational) -> Tensor:
    """A constant matrix; codegen leaves out its zeros."""
    flat = tuple(float(x) for row in values for x in row)
    return Tensor(name, (len(values), len(values[0])), space=Space.CONSTANT, values=flat)


def _registers(name: str, *shape: int) -> Tensor:
    return Tensor(name, shape, space=Space.REGISTER)


def _stage(
    target: Load,
    matrix: Load,
    operand: Load,
    inner: Axis,
    outer: Axis,
    lanes: Axis,
    value: Expr | None = None,
) -> Compute:
    """`target[outer] = sum over inner of matrix[outer, inner] * operand[inner]`, all unrolled."""
    return Compute(
        (Store(target, value or Accumulator()),),
        matrix * operand,
        Combiner.SUM,
        unroll=(Tile(outer), Tile(inner)),
        vector=lanes,
        order=Order.PROGRAM,
    )


def _tile_loops(found: Winograd, axes: _Axes, m: int, channel: Axis, lanes: int) -> list[Loop]:
    """Loops over the tiles of a block and over channels; a tile at the edge is clamped inside."""
    row = (axes.block * axes.row.extent + axes.row) * m
    lets = (
        Let(axes.top, row, found.rows - m),
        Let(axes.left, axes.column * m, found.columns - m),
    )
    return [Loop(axes.row), Loop(axes.column, lets=lets), Loop(channel, lanes)]


def _input_transform(
    found: Winograd, axes: _Axes, out: Tensor, bt: Rational, m: int, lanes: int
) -> tuple[NestNode, ...]:
    """V = B^T d B, the two sides one after the other, each factored into even and odd parts."""
    alpha = m + 2
    first, second = factored(bt)
    outer, inner = _matrix("Bp", first), _matrix("Bq", second)
    half = len(second)
    c = Axis("ic", found.image.tensor.shape[1])
    i, j, k, el = (Axis(name, alpha) for name in ("i", "j", "k", "l"))
    p, q = Axis("p", half), Axis("q", half)
    image_index: tuple[Affine, ...] = (
        affine(axes.image) if axes.image else Affine(),
        affine(c),
        axes.top + i - 1,
        axes.left + j - 1,
    )
    image = Load(found.image.tensor, image_index)
    r1, r2 = _registers("B1", half, alpha, c.extent), _registers("B2", alpha, alpha, c.extent)
    r3 = _registers("B3", alpha, half, c.extent)
    tile = axes.row * axes.column.extent + axes.column
    columns = nest(
        [Loop(j, unroll=True)],
        _stage(r1[p, j, c], inner[p, i], image, i, p, c),
        _stage(r2[k, j, c], outer[k, p], r1[p, j, c], p, k, c),
    )
    rows = nest(
        [Loop(k, unroll=True)],
        _stage(r3[k, q, c], inner[q, j], r2[k, j, c], j, q, c),
        _stage(out[k, el, tile, c], outer[el, q], r3[k, q, c], q, el, c),
    )
    return nest(_tile_loops(found, axes, m, c, lanes), *columns, *rows)


def _products(
    schedule: Schedule, left: Tensor, right: Tensor, out: Tensor, lanes: int
) -> tuple[NestNode, ...]:
    """One matrix product for each point of the transformed domain."""
    alpha, _, tiles, channels = left.shape
    k, el = Axis("gk", alpha), Axis("gl", alpha)
    t, oc, ic = Axis("t", tiles), Axis("go", out.shape[3]), Axis("gi", channels)
    unroll = schedule.integer("unroll")
    compute = Compute(
        (Store(out[k, el, t, oc], Accumulator()),),
        left[k, el, t, ic] * right[k, el, oc, ic],
        Combiner.SUM,
        reduce=(Tile(ic, unroll),),
        unroll=(Tile(ic), Tile(t), Tile(oc, lanes)),
        vector=oc,
        prefetch=_PREFETCH_BYTES,
    )
    loops = [
        Loop(k),
        Loop(el),
        Loop(oc, schedule.integer("vectors") * lanes),
        Loop(t, schedule.integer("tile")),
    ]
    return nest(loops, compute)


def _output_transform(
    found: Winograd, axes: _Axes, products: Tensor, at: Rational, m: int, lanes: int
) -> tuple[NestNode, ...]:
    """Y = A^T M A, then the epilogue of the workload at each of the m x m outputs."""
    alpha = m + 2
    # A^T has mirrored columns: factor its transpose, and apply the factors in reverse.
    first, second = factored(transposed(at))
    outer, inner = _matrix("Ap", transposed(second)), _matrix("Aq", transposed(first))
    half = len(second)
    c = Axis("oc", products.shape[3])
    i, j = Axis("oi", alpha), Axis("oj", alpha)
    p, q = Axis("op", half), Axis("oq", half)
    y, x = Axis("oy", m), Axis("ox", m)
    tile = axes.row * axes.column.extent + axes.column
    r1, r2 = _registers("A1", half, alpha, c.extent), _registers("A2", m, alpha, c.extent)
    r3 = _registers("A3", m, half, c.extent)
    position: tuple[Affine, ...] = (
        affine(axes.image) if axes.image else Affine(),
        affine(c),
        axes.top + y,
        axes.left + x,
    )
    here = dict(zip(found.problem.axes, position, strict=True))

    def moved(node: Expr) -> Expr | None:
        if isinstance(node, Load):
            return Load(node.tensor, tuple(i.substitute(here) for i in node.index), node.indirect)
        return None

    epilogue = rewrite(found.problem.epilogue, moved)
    columns = nest(
        [Loop(j, unroll=True)],
        _stage(r1[p, j, c], inner[p, i], products[i, j, tile, c], i, p, c),
        _stage(r2[y, j, c], outer[y, p], r1[p, j, c], p, y, c),
    )
    rows = nest(
        [Loop(y, unroll=True)],
        _stage(r3[y, q, c], inner[q, j], r2[y, j, c], j, q, c),
        _stage(
            Load(found.problem.output.tensor, position),
            outer[x, q],
            r3[y, q, c],
            q,
            x,
            c,
            epilogue,
        ),
    )
    return nest(_tile_loops(found, axes, m, c, lanes), *columns, *rows)
