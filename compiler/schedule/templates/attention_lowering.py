"""Lowering of attention: packs keys and values, then computes one block of rows at a time."""

from __future__ import annotations

from tilewright.compiler.dtypes import DType
from tilewright.compiler.loops.expr import (
    Accumulator,
    Combiner,
    Expr,
    Load,
    Role,
    Space,
    Tee,
    Tensor,
)
from tilewright.compiler.loops.index import Affine, affine
from tilewright.compiler.loops.layout import Factor, Layout
from tilewright.compiler.loops.nest import Compute, Node, Store, Tile
from tilewright.compiler.loops.rewriting import substitute
from tilewright.compiler.memo import memo
from tilewright.compiler.mode import Mode
from tilewright.compiler.schedule.kernel import Kernel
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.schedule.structure import (
    LoopSpec,
    kernel_of,
    nest,
    parallel_stage,
    unit_stride,
)
from tilewright.compiler.schedule.templates.attention_analysis import Attention, extent, segments
from tilewright.compiler.sizes import is_dynamic, typical

_ROW_VECTORS = 8
"""Number of vectors of a row of scores that the softmax processes at once. Each vector has its own
accumulator."""

_PAGE_PART = 1024
"""Rows of scores are padded if their size is a multiple of this number of bytes. Such rows would
share few sets of the first-level cache."""


def lower(found: Attention, schedule: Schedule, mode: Mode) -> Kernel:
    """Return the kernel of a schedule: one stage over batch and heads."""
    return _Lowering(found, schedule, mode).kernel()


class _Blocks:
    """The segments of an attention, and the scratch memory for the scores of a block of query rows.

    A segment is a part of the rows of a causal attention, which reads only the keys that its last
    row may attend to. Schedules with the same segments, tile of rows and block of rows share an
    instance.

    Attributes:
        parts: the segments.
        scores: the scratch memory for the scores.
        totals: the scratch memory for the sum of each row.
        scored: for each segment, the operation that stores a score.
        softmax: for each segment, the loop nests between the two products.
        ended: for each segment, the expression of an output element: the sum, divided by the sum of
            the exponentials of its row.
    """

    def __init__(self, found: Attention, count: int, tile: int, block: int, lanes: int) -> None:
        self._lanes = lanes
        self.parts = segments(found, count, tile)
        dtype, keys = found.dot.dtype, found.keys.extent
        # The longest of the segments. For a dynamic number of rows, all rows suffice, and a tile
        # for each segment makes it provable; unused rows take no memory.
        rows = extent(found.rows) + count * tile
        if not is_dynamic(rows):
            rows = max(extent(part.rows) for part in self.parts)
        held = _at_most(block, rows)
        padding = self._padding(keys, dtype)
        # The unused part of a layout must be a number.
        width, pad = (keys + padding, 0) if is_dynamic(keys) else (keys, padding)
        self.scores = Tensor(
            "scores",
            (rows, width),
            dtype,
            Layout((Factor(0, 1, held), Factor(1, pad=pad))),
            role=Role.SCRATCH,
        )
        self.totals = Tensor(
            "totals", (rows,), dtype, Layout((Factor(0, 1, held),)), role=Role.SCRATCH
        )
        self._largest = Tensor("largest", (1,), dtype, space=Space.REGISTER)
        self.scored = tuple(map(self._scored, self.parts))
        self.softmax = tuple(map(self._softmax, self.parts))
        self.ended = tuple(map(self._ended, self.parts))

    def _padding(self, keys: int, dtype: DType) -> int:
        """Return the number of unused elements after a row of scores.

        They align the rows, and keep the starts of rows from mapping to the same cache sets.
        """
        pad, part = -keys % self._lanes, _PAGE_PART // dtype.bytes
        beside = ((keys + pad) % part + part - 1) // part  # 0 if rows would share sets, else 1
        return pad + (1 - beside) * self._lanes

    def score(self, part: Attention) -> Load:
        """Return the load of one attention score from the scratch memory.

        `part` is the segment (a part of the query rows) whose row and key axes index the load.
        """
        return Load(self.scores, (_row(part), affine(part.keys)))

    def _scored(self, part: Attention) -> Store:
        score = substitute(part.largest.body, {part.dot: _accumulator(part.dot)})
        return Store(self.score(part), score)

    def _softmax(self, part: Attention) -> tuple[Node, ...]:
        """Return loop nests that replace each row's scores by exponentials and compute the sum of
        the row.

        The row's largest score is subtracted first.
        """
        score, largest = self.score(part), Load(self._largest, (Affine(),))
        known = {part.largest: largest, part.largest.body: score}
        power = substitute(part.total.body, known)
        computes = (
            (Store(largest, _accumulator(score)), score, Combiner.MAX),
            (
                Store(Load(self.totals, (_row(part),)), _accumulator(score)),
                Tee(power, score),
                Combiner.SUM,
            ),
        )
        nodes = [
            Compute(
                (store,),
                body,
                combiner,
                reduce=(Tile(part.keys, _ROW_VECTORS * self._lanes),),
                unroll=(Tile(part.keys, self._lanes),),
                vector=part.keys,
                partial=(part.keys,),
            )
            for store, body, combiner in computes
        ]
        return nest(_over_rows(part, 1), *nodes)

    def _ended(self, part: Attention) -> Expr:
        total = Load(self.totals, (_row(part),))
        known: dict[Expr, Expr] = {part.mixed: _accumulator(part.mixed), part.total: total}
        return substitute(part.problem.expr, known)


_blocks = memo(256)(_Blocks)


class _Lowering:
    """The lowering of one attention with one schedule."""

    def __init__(self, found: Attention, schedule: Schedule, mode: Mode) -> None:
        self._found, self._mode = found, mode
        self._lanes = mode.target.lanes(DType.FLOAT32)
        self._tile = schedule.integer("tile")
        self._width = schedule.integer("vectors") * self._lanes
        self._block = self._tile * schedule.integer("rows")
        self._unroll = schedule.integer("unroll")
        self._packs_keys = schedule.text("keys") == "packed"
        # Schedules of earlier releases lack this choice.
        asked = dict(schedule.choices).get("values") == "packed"
        self._packs_values = asked and found.lanes is not None
        count = schedule.integer("segments") if found.ahead is not None else 1
        self._blocks = _blocks(found, count, self._tile, self._block, self._lanes)
        self._keys = Tensor(
            "keys",
            (found.keys.extent, found.size.extent),
            found.dot.dtype,
            Layout((Factor(0, self._width), Factor(1), Factor(0, 1, self._width))),
            role=Role.SCRATCH,
        )
        self._values = Tensor(
            "values", (found.keys.extent, extent(found.lanes)), found.dot.dtype, role=Role.SCRATCH
        )

    def kernel(self) -> Kernel:
        """Return the kernel: one stage over batch and heads."""
        found, blocks = self._found, self._blocks
        body: list[Node] = []
        scratch = [blocks.scores, blocks.totals]
        if self._packs_keys:
            body += self._pack_keys()
            scratch.append(self._keys)
        if self._packs_values:
            body += self._pack_values()
            scratch.append(self._values)
        for part, scored, softmax, ended in zip(
            blocks.parts, blocks.scored, blocks.softmax, blocks.ended, strict=True
        ):
            block = [*self._products(part, scored), *softmax, *self._mix(part, ended)]
            body += nest(_over_rows(part, self._block), *block)
        batch = sorted(found.batch, key=lambda axis: -typical(axis.extent))
        stage = parallel_stage("main", [LoopSpec(axis) for axis in batch], *body)
        return kernel_of(found.problem, (stage,), self._mode, scratch=scratch)

    # ---- keys in panels

    def _pack_keys(self) -> tuple[Node, ...]:
        """Return a loop nest that packs keys into panels, transposed in registers."""
        found = self._found
        place = Load(self._keys, (affine(found.keys), affine(found.size)))
        key = found.factor(found.key)
        store = Store(place, _accumulator(key))
        if unit_stride(found.key, found.size):
            compute = Compute(
                (store,),
                key,
                unroll=(Tile(found.keys), Tile(found.size, self._lanes)),
                vector=found.size,
                store_vector=found.keys,
            )
            loops = [LoopSpec(found.keys, self._lanes), LoopSpec(found.size, self._lanes)]
        else:
            compute = Compute(
                (store,), key, unroll=(Tile(found.keys, self._lanes),), vector=found.keys
            )
            loops = [LoopSpec(found.keys, self._width), LoopSpec(found.size)]
        return nest(loops, compute)

    # ---- packed values

    def _pack_values(self) -> tuple[Node, ...]:
        """Return a loop nest that copies the values of a head to contiguous scratch memory."""
        found = self._found
        assert found.lanes is not None
        value = found.factor(found.value)
        compute = Compute(
            (Store(self._value(found), _accumulator(value)),),
            value,
            unroll=(Tile(found.lanes, self._lanes),),
            vector=found.lanes,
        )
        return nest([LoopSpec(found.keys), LoopSpec(found.lanes, self._mixed_width())], compute)

    def _value(self, part: Attention) -> Load:
        """Return the load of an element of V (the attention's values) from packed scratch memory.

        `part` is the segment (a part of the query rows) whose axes index the load.
        """
        element = affine(part.lanes) if part.lanes else Affine()
        return Load(self._values, (affine(part.keys), element))

    # ---- one block of rows

    def _products(self, part: Attention, store: Store) -> tuple[Node, ...]:
        """Return the loop nest that computes scores: queries times keys, then all operations before
        softmax.

        `store` stores a score.
        """
        if not self._packs_keys:
            compute = Compute(
                (store,),
                part.factor(part.query) * part.factor(part.key),
                Combiner.SUM,
                reduce=(Tile(part.size, self._unroll * self._lanes),),
                unroll=(*_points(part), Tile(part.keys), Tile(part.size, self._lanes)),
                vector=part.size,
                partial=(part.size,),
            )
            return nest([LoopSpec(part.keys, self._unroll), *_over_rows(part, 1)], compute)
        panel = Load(self._keys, (affine(part.keys), affine(part.size)))
        compute = Compute(
            (store,),
            part.factor(part.query) * panel,
            Combiner.SUM,
            reduce=(Tile(part.size, _at_most(self._unroll, part.size.extent)),),
            unroll=(Tile(part.size), *_points(part), Tile(part.keys, self._lanes)),
            vector=part.keys,
        )
        return nest([LoopSpec(part.keys, self._width), *_over_rows(part, self._tile)], compute)

    def _mix(self, part: Attention, ended: Expr) -> tuple[Node, ...]:
        """Return the loop nest that computes the output: exponentials times values, divided by the
        row's sum.

        `ended` is the output element after the division.
        """
        elements = (Tile(part.lanes, self._lanes),) if part.lanes else ()
        value = self._value(part) if self._packs_values else part.factor(part.value)
        compute = Compute(
            (Store(part.problem.output, ended),),
            self._blocks.score(part) * value,
            Combiner.SUM,
            reduce=(Tile(part.keys, _at_most(self._unroll, part.keys.extent)),),
            unroll=(Tile(part.keys), *_points(part), *elements),
            vector=part.lanes,
        )
        across = [LoopSpec(part.lanes, self._mixed_width())] if part.lanes else []
        return nest([*across, *_over_rows(part, self._tile)], compute)

    def _mixed_width(self) -> int:
        """Return how many columns of V (the values of the attention) a register tile covers.

        The knob `vectors` selects the maximum. The result is smaller if all tiles can then have the
        same number of vectors.
        """
        if is_dynamic(extent(self._found.lanes)):
            return self._width
        whole = -(-extent(self._found.lanes) // self._lanes)
        panels = -(-whole * self._lanes // self._width)
        return -(-whole // panels) * self._lanes


def _at_most(step: int, extent: int) -> int:
    """Limit a step to the extent of its axis, unless the extent is dynamic."""
    return step if is_dynamic(extent) else min(step, extent)


def _row(part: Attention) -> Affine:
    """Return the index of a query row, counted from the first row of `part`.

    `part` is a part of the rows of an attention. The result is 0 if the attention has no axis of
    rows.
    """
    return affine(part.rows) if part.rows else Affine()


def _over_rows(part: Attention, step: int) -> list[LoopSpec]:
    return [LoopSpec(part.rows, step)] if part.rows else []


def _points(part: Attention) -> list[Tile]:
    return [Tile(part.rows)] if part.rows else []


def _accumulator(expr: Expr) -> Accumulator:
    return Accumulator(expr.dtype)
