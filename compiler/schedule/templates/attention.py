"""Attention: two products with a softmax between them, one block of query rows at a time.

For each head the keys are packed once into panels of a thread's scratch. A block of rows of scores
then stays in the cache: products of queries and keys, the largest score of each row, exponentials
(computed once, in place) with their sum, products with the values, and one division a row. The
matrix of all scores never exists. Kernel fusion as in Dao et al., "FlashAttention" (2022), without
its rescaling: a whole row of scores fits a core's cache.

    for head: panels[j, d] = K[head, j, d]
      for a block of rows:
        scores[i, j] = scale * sum[d] Q[head, i, d] * panels[j, d] (+ mask[i, j])
        for each row:
          largest = max[j] scores[i, j]
          total[i] = sum[j] (scores[i, j] = exp(scores[i, j] - largest))
        out[i, head, e] = (sum[j] scores[i, j] * V[head, j, e]) * (1 / total[i])
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

from compiler.dtypes import DType
from compiler.errors import ScheduleError
from compiler.loops.expr import (
    Accumulator,
    Combiner,
    Expr,
    Load,
    Op,
    Operation,
    Reduce,
    Role,
    Space,
    Tee,
    Tensor,
    rebuild,
    walk,
)
from compiler.loops.index import Affine, Axis, affine
from compiler.loops.layout import Factor, Layout
from compiler.loops.nest import Compute, LoopNest, Node, Store, Tile
from compiler.schedule.kernel import Kernel
from compiler.schedule.problem import Problem, axes_of, compose, is_one_expression
from compiler.schedule.schedule import Choice, Schedule
from compiler.schedule.space import Knob, SubSpace
from compiler.schedule.structure import Loop, halo_stage, nest, parallel_stage, unit_stride
from compiler.target import Target
from compiler.workload import Workload

_TILES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 14)
_VECTORS = (1, 2, 3, 4, 5, 6)
_BLOCKS = (1, 2, 4, 8)
_UNROLLS = (1, 2, 4)
_FEW_ROWS = 8
"""With fewer rows, transposing the keys may cost more than it saves."""

_ROW_VECTORS = 8
"""Vectors of a row of scores that the softmax takes at once, each with an accumulator."""

_PAGE_PART = 1024
"""Bytes; rows that lie a multiple of this apart share few sets of the first cache."""


@dataclass(frozen=True)
class Attention:
    """The structure of an attention: its loads, its reductions, and the roles of its axes.

    `rows` are queries, `lanes` the elements of a value, `batch` all other axes of the output
    (batch, heads); `keys` and `size` are reduced.
    """

    problem: Problem
    batch: tuple[Axis, ...]
    rows: Axis | None
    lanes: Axis | None
    keys: Axis
    size: Axis
    query: Load
    key: Load
    value: Load
    dot: Reduce
    largest: Reduce
    total: Reduce
    mixed: Reduce


def analyse(workload: Workload) -> Attention | None:
    """The attention that a workload is; None where it is something else."""
    if not is_one_expression(workload):
        return None
    problem = compose(workload)
    match problem.reductions:
        case (
            Reduce(
                Combiner.SUM, (size,), Op(Operation.MUL, (Load() as query, Load() as key))
            ) as dot,
            Reduce(Combiner.MAX, (keys,)) as largest,
            Reduce(Combiner.SUM, summed, Op(Operation.MUL, (power, Load() as value))) as mixed,
            Reduce(Combiner.SUM, counted) as total,
        ) if summed == counted == (keys,) and total.body == power:
            pass
        case _:
            return None
    if dot not in set(walk(largest.body)) or largest not in set(walk(power)):
        return None
    outputs = [a for a in problem.axes if a.extent > 1]
    own = [a for a in outputs if a in axes_of(query) - axes_of(key)]
    elements = [a for a in outputs if a in axes_of(value) - axes_of(query) - axes_of(key)]
    # Heads that share one key head are rows, too: the longest axis becomes the tile's.
    rows = max(own, key=lambda axis: axis.extent, default=None)
    lanes = next(iter(elements), None)
    batch = tuple(a for a in outputs if a not in (rows, lanes))
    return Attention(
        problem, batch, rows, lanes, keys, size, query, key, value, dot, largest, total, mixed
    )


@lru_cache(maxsize=256)
def _analyse(workload: Workload) -> Attention | None:
    return analyse(workload)


class _Template:
    algorithms = ("attention",)

    def preference(self, workload: Workload) -> float:
        return 3.0

    def space(
        self, workload: Workload, target: Target, *, threads: int, strict: bool
    ) -> SubSpace | None:
        found = _analyse(workload)
        if found is None:
            return None

        def valid(choice: Mapping[str, Choice]) -> bool:
            return _fits(found, target, choice)

        return SubSpace("attention", _knobs(found, target), valid, _default(found, target))

    def lower(
        self, workload: Workload, schedule: Schedule, target: Target, *, threads: int
    ) -> Kernel:
        found = _analyse(workload)
        if found is None:
            raise ScheduleError("'attention' does not apply to this workload")
        return _Lowering(found, schedule, target).kernel()


TEMPLATE = _Template()


# ---- space


def _extent(axis: Axis | None) -> int:
    return axis.extent if axis is not None else 1


def _knobs(found: Attention, target: Target) -> tuple[Knob, ...]:
    lanes = target.lanes(DType.FLOAT32)
    rows = _extent(found.rows)
    widest = -(-max(found.keys.extent, _extent(found.lanes)) // lanes)
    return (
        Knob("tile", tuple(t for t in _TILES if t <= rows)),
        Knob("vectors", tuple(v for v in _VECTORS if v <= widest)),
        Knob("rows", tuple(b for b in _BLOCKS if b <= rows)),
        Knob("unroll", _UNROLLS),
        Knob("keys", ("packed", "rows") if _can_dot(found) else ("packed",)),
    )


def _can_dot(found: Attention) -> bool:
    """Whether few queries and their keys lie with the elements to multiply side by side."""
    few = _extent(found.rows) < _FEW_ROWS
    return few and all(unit_stride(load, found.size) for load in (found.query, found.key))


def _fits(found: Attention, target: Target, choice: Mapping[str, Choice]) -> bool:
    """Registers hold the tile, its panel and one broadcast, and enough of them are used; a block of
    rows is not much more than there are."""
    tile, vectors = int(choice["tile"]), int(choice["vectors"])
    registers, rows = target.vector_registers, _extent(found.rows)
    if tile * vectors + vectors + 1 > registers:
        return False
    if tile * vectors < registers // 2 and tile < rows:
        return False
    return int(choice["rows"]) == 1 or int(choice["rows"]) * tile < 2 * rows


def _default(found: Attention, target: Target) -> Schedule:
    """The tile with the least waste; keys are packed where enough rows use them."""
    lanes, registers = target.lanes(DType.FLOAT32), target.vector_registers
    rows, keys = _extent(found.rows), -(-found.keys.extent // lanes)

    def score(pair: tuple[int, int]) -> float:
        tile, vectors = pair
        useful = rows / (-(-rows // tile) * tile) * keys / (-(-keys // vectors) * vectors)
        latency = min(1.0, tile * vectors / (0.62 * registers))
        # A core loads about as often as it multiplies.
        return useful * latency / (1 + 0.15 * (tile + vectors) / (tile * vectors))

    values = {knob.name: knob.values for knob in _knobs(found, target)}
    pairs = [
        (int(tile), int(vectors))
        for tile, vectors in product(values["tile"], values["vectors"])
        if int(tile) * int(vectors) + int(vectors) + 1 <= registers
    ]
    tile, vectors = max(pairs, key=score)
    return Schedule.of(
        "attention",
        tile=tile,
        vectors=vectors,
        rows=max(int(b) for b in values["rows"] if b == 1 or int(b) * tile <= min(32, rows)),
        unroll=4,
        keys=values["keys"][-1],
    )


# ---- lowering


class _Lowering:
    """One attention under one schedule."""

    def __init__(self, found: Attention, schedule: Schedule, target: Target) -> None:
        self._found = found
        self._lanes = target.lanes(DType.FLOAT32)
        self._tile = schedule.integer("tile")
        self._width = schedule.integer("vectors") * self._lanes
        self._block = self._tile * schedule.integer("rows")
        self._unroll = schedule.integer("unroll")
        self._packs_keys = schedule.text("keys") == "packed"
        rows, keys = _extent(found.rows), found.keys.extent
        self._row: Affine = affine(found.rows) if found.rows else Affine()
        dtype = found.dot.dtype
        held = min(self._block, rows)
        self._scores = Tensor(
            "scores",
            (rows, keys),
            dtype,
            Layout((Factor(0, 1, held), Factor(1, pad=self._padding(keys, dtype)))),
            role=Role.SCRATCH,
        )
        self._totals = Tensor(
            "totals", (rows,), dtype, Layout((Factor(0, 1, held),)), role=Role.SCRATCH
        )
        self._largest = Tensor("largest", (1,), dtype, space=Space.REGISTER)
        self._keys = Tensor(
            "keys",
            (keys, found.size.extent),
            dtype,
            Layout((Factor(0, self._width), Factor(1), Factor(0, 1, self._width))),
            role=Role.SCRATCH,
        )

    def _padding(self, keys: int, dtype: DType) -> int:
        """Elements after a row of scores, so that rows are aligned and do not share cache sets."""
        pad = -keys % self._lanes
        return pad + (0 if (keys + pad) * dtype.bytes % _PAGE_PART else self._lanes)

    def kernel(self) -> Kernel:
        """The nest: one stage over batch and heads."""
        found = self._found
        body: list[Node] = []
        scratch = [self._scores, self._totals]
        if self._packs_keys:
            body += self._pack_keys()
            scratch.append(self._keys)
        block = [*self._products(), *self._softmax(), *self._mix()]
        rows = [Loop(found.rows, self._block)] if found.rows else []
        body += nest(rows, *block)
        batch = sorted(found.batch, key=lambda axis: -axis.extent)
        stage = parallel_stage("main", [Loop(axis) for axis in batch], *body)
        problem = found.problem
        output = problem.output.tensor
        stages = (stage, *halo_stage(output, self._lanes))
        made = LoopNest("kernel", (*problem.inputs, output), tuple(scratch), stages)
        return Kernel(made, tuple((t.name, i) for i, t in enumerate(problem.inputs)))

    def _tiles(self, step: int) -> list[Loop]:
        return [Loop(self._found.rows, step)] if self._found.rows else []

    def _points(self) -> list[Tile]:
        return [Tile(self._found.rows)] if self._found.rows else []

    # ---- keys in panels

    def _pack_keys(self) -> tuple[Node, ...]:
        """keys[j, d]: panels of `width` keys, transposed in registers."""
        found = self._found
        store = Store(
            Load(self._keys, (affine(found.keys), affine(found.size))), _accumulator(found.key)
        )
        if unit_stride(found.key, found.size):
            compute = Compute(
                (store,),
                found.key,
                unroll=(Tile(found.keys), Tile(found.size, self._lanes)),
                vector=found.size,
                store_vector=found.keys,
            )
            loops = [Loop(found.keys, self._lanes), Loop(found.size, self._lanes)]
        else:
            compute = Compute(
                (store,), found.key, unroll=(Tile(found.keys, self._lanes),), vector=found.keys
            )
            loops = [Loop(found.keys, self._width), Loop(found.size)]
        return nest(loops, compute)

    def _elements(self) -> tuple[Tile, ...]:
        return (Tile(self._found.lanes, self._lanes),) if self._found.lanes else ()

    # ---- one block of rows

    def _products(self) -> tuple[Node, ...]:
        """scores[i, j]: queries times keys, with all that follows before the softmax."""
        found = self._found
        place = Load(self._scores, (self._row, affine(found.keys)))
        score = replaced(found.largest.body, {found.dot: _accumulator(found.dot)})
        store = Store(place, score)
        unroll = min(self._unroll, found.size.extent)
        if not self._packs_keys:
            compute = Compute(
                (store,),
                found.query * found.key,
                Combiner.SUM,
                reduce=(Tile(found.size, self._unroll * self._lanes),),
                unroll=(*self._points(), Tile(found.keys), Tile(found.size, self._lanes)),
                vector=found.size,
                partial=(found.size,),
            )
            return nest([Loop(found.keys, self._unroll), *self._tiles(1)], compute)
        panel = Load(self._keys, (affine(found.keys), affine(found.size)))
        compute = Compute(
            (store,),
            found.query * panel,
            Combiner.SUM,
            reduce=(Tile(found.size, unroll),),
            unroll=(Tile(found.size), *self._points(), Tile(found.keys, self._lanes)),
            vector=found.keys,
        )
        return nest([Loop(found.keys, self._width), *self._tiles(self._tile)], compute)

    def _softmax(self) -> tuple[Node, ...]:
        """Each row's largest score, then its exponentials in place with their sum."""
        found = self._found
        score = Load(self._scores, (self._row, affine(found.keys)))
        largest = Load(self._largest, (Affine(),))
        known = {found.largest: largest, found.largest.body: score}
        power = replaced(found.total.body, known)
        computes = (
            (Store(largest, _accumulator(score)), score, Combiner.MAX),
            (
                Store(Load(self._totals, (self._row,)), _accumulator(score)),
                Tee(power, score),
                Combiner.SUM,
            ),
        )
        nodes = [
            Compute(
                (store,),
                body,
                combiner,
                reduce=(Tile(found.keys, _ROW_VECTORS * self._lanes),),
                unroll=(Tile(found.keys, self._lanes),),
                vector=found.keys,
                partial=(found.keys,),
            )
            for store, body, combiner in computes
        ]
        return nest(self._tiles(1), *nodes)

    def _mix(self) -> tuple[Node, ...]:
        """The output: exponentials times values, divided by the row's sum."""
        found = self._found
        total = Load(self._totals, (self._row,))
        known: dict[Expr, Expr] = {found.mixed: _accumulator(found.mixed), found.total: total}
        epilogue = replaced(found.problem.expr, known)
        compute = Compute(
            (Store(found.problem.output, epilogue),),
            Load(self._scores, (self._row, affine(found.keys))) * found.value,
            Combiner.SUM,
            reduce=(Tile(found.keys, min(self._unroll, found.keys.extent)),),
            unroll=(Tile(found.keys), *self._points(), *self._elements()),
            vector=found.lanes,
        )
        across = [Loop(found.lanes, self._mixed_width())] if found.lanes else []
        return nest([*across, *self._tiles(self._tile)], compute)

    def _mixed_width(self) -> int:
        """Elements of a value in the register tile: `width`, or an even share of all."""
        whole = -(-_extent(self._found.lanes) // self._lanes)
        panels = -(-whole * self._lanes // self._width)
        return -(-whole // panels) * self._lanes


def _accumulator(expr: Expr) -> Accumulator:
    return Accumulator(expr.dtype)


def replaced(expr: Expr, known: Mapping[Expr, Expr]) -> Expr:
    """The expression with known values in place of some of its parts, outermost first."""
    memo: dict[Expr, Expr] = {}

    def visit(node: Expr) -> Expr:
        if node in known:
            return known[node]
        if node not in memo:
            memo[node] = rebuild(node, visit)
        return memo[node]

    return visit(expr)
