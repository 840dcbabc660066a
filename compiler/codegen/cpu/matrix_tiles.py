"""Register tiles for matrix instructions, which multiply two rows by two columns (`smmla`).

Elsewhere, a register tile keeps its sums in vectors along the columns. A matrix instruction adds to
two rows and two columns at once. During the reduction, the vectors of two neighbouring rows are
therefore kept as two blocks of 2x2 sums:

    row 0:  a0 a1 a2 a3         block 0:  a0 a1 b0 b1
    row 1:  b0 b1 b2 b3         block 1:  a2 a3 b2 b3

Rows without a neighbour, and vectors with fewer columns, are not rearranged. Their products take
the same number of instructions, and half of the computed sums are unused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.compiler.codegen.cpu.arithmetic import apply, extract_lane
from tilewright.compiler.codegen.cpu.combining import Partial, same_lanes
from tilewright.compiler.codegen.cpu.context import Context, RegisterBudget
from tilewright.compiler.codegen.cpu.expressions import Evaluator, evaluator
from tilewright.compiler.codegen.cpu.points import Point, Points
from tilewright.compiler.codegen.cpu.resolve import Access, Accesses
from tilewright.compiler.codegen.cpu.ssa import Value, type_text
from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import ScheduleError
from tilewright.compiler.loops.expr import Load, Operation
from tilewright.compiler.loops.nest import Compute, Tile, dot_operands
from tilewright.compiler.targets.families import MatrixInstruction

Key = tuple[Point, Point]
"""Key of an accumulator: its indices on the output axes, and its indices on the axes of partial
sums."""

_COLUMNS = 4
"""Number of columns of two adjacent 2x2 blocks of sums. Each row of the two blocks fills a vector
of this many lanes."""

_UPPER, _LOWER = (0, 1, 4, 5), (2, 3, 6, 7)


def matrix_tile(context: Context, compute: Compute, spatial: Sequence[Tile]) -> MatrixTile | None:
    """Return the register tile of a `Compute` that uses matrix instructions; None for any other.

    Such a `Compute` has operands of 64 bits along its axis `Compute.dot`, such as dot-product
    groups of eight int8.

    Raises:
        ScheduleError: if the target has no matrix instruction for the types, or the vector axis
            does not occur in exactly one of the two operands.
    """
    operands = dot_operands(compute.body) if compute.dot is not None else None
    if operands is None or compute.group * operands[0].dtype.bytes != 8:
        return None
    streams = [_moves(load, compute) for load in operands]
    if sum(streams) != 1:
        raise ScheduleError("one operand of a matrix instruction lies along the vectors")
    right, left = operands[streams.index(True)], operands[streams.index(False)]
    sums = compute.body.dtype
    instruction = context.emitter.target.matrix(left.dtype, right.dtype, sums)
    if instruction is None:
        raise ScheduleError(
            f"target '{context.emitter.target.name}' has no instruction that multiplies matrices "
            f"of {left.dtype} and {right.dtype}"
        )
    rows = [
        i
        for i, tile in enumerate(spatial)
        if any(tile.axis in index.axes() for index in left.index)
        and not any(tile.axis in index.axes() for index in right.index)
    ]
    return MatrixTile(context, instruction, left, right, rows, compute.unroll, spatial)


def _moves(load: Load, compute: Compute) -> bool:
    return any(compute.vector in index.axes() for index in load.index)


def _pair(point: Point, at: int) -> tuple[Point, Point]:
    """Return the two tile points that form a pair along the axis at position `at`; one is `point`.

    A tile point is a tuple of indices, one per axis. The first of the two has an even index on this
    axis, the second the next odd one.
    """
    first = point[at] & ~1
    return (*point[:at], first, *point[at + 1 :]), (*point[:at], first + 1, *point[at + 1 :])


class MatrixTile:
    """A register tile whose sums are computed by matrix instructions: two rows by two columns.

    Args:
        context: the state of code generation for the stage.
        instruction: the instruction.
        left: the operand whose elements are broadcast along the vectors.
        right: the operand whose vectors lie along the columns.
        rows: positions, in `spatial`, of the axes that occur in the index of `left` but not of
            `right`.
        unroll: all unrolled axes.
        spatial: the unrolled axes that are not reduced.
    """

    def __init__(
        self,
        context: Context,
        instruction: MatrixInstruction,
        left: Load,
        right: Load,
        rows: Sequence[int],
        unroll: Sequence[Tile],
        spatial: Sequence[Tile],
    ) -> None:
        self._context = context
        self._emitter = context.emitter
        self._instruction = instruction
        self._left, self._right = left, right
        self._rows = rows
        self._unroll = [tile.axis for tile in unroll]
        self._spatial = [tile.axis for tile in spatial]

    def turned(self, values: dict[Key, Partial]) -> dict[Key, Partial]:
        """Convert the sums of each pair of neighbouring rows to two 2x2 blocks, or blocks to rows.

        Applied to its own result, the conversion restores the rows. The argument and the result map
        keys of accumulators to sums. Sums of a row without a neighbour are unchanged.
        """
        position = self._position(values)
        result = dict(values)
        for key, (first,) in values.items():
            if position is None or key[0][position] % 2:
                continue
            other = _pair(key[0], position)[1], key[1]
            if other not in values:
                continue
            (second,) = values[other]
            if first.lanes == _COLUMNS and (first.const is None or first.const != second.const):
                result[key] = (self._emitter.shuffle(first, second, _UPPER),)
                result[other] = (self._emitter.shuffle(first, second, _LOWER),)
        return result

    def _position(self, keys: dict[Key, Partial]) -> int | None:
        """Return the position of the axis along which rows are paired, or None without row axes.

        Of several row axes, it is the one with the most indices in the tile.
        """
        counts = {i: len({point[i] for point, _ in keys}) for i in self._rows}
        return max(counts, key=lambda i: counts[i], default=None)

    def multiply(
        self,
        budget: RegisterBudget,
        current: dict[Key, Partial],
        order: Sequence[Point],
        key_of: Callable[[Point], Key],
        accesses: Accesses,
        points: Points,
    ) -> None:
        """Emit the products at the tile points of `order`, and add them to the sums in `current`.

        Args:
            budget: the vector registers for hoisted loads.
            current: the sums by key, as the blocks that `turned` returns; updated in place.
            order: the tile points (one index per unrolled axis) in the order of their computation.
            key_of: returns the key of the sum to which a tile point contributes.
            accesses: the accesses of the operands.
            points: the points of the register tile.

        Raises:
            ScheduleError: if vectors have more than four sums, or the elements of a dot-product
                group are not adjacent in memory.
        """
        for load in (self._left, self._right):
            access = accesses[load]
            if not isinstance(access, Access) or (access.is_interleaved and access.is_vector):
                raise ScheduleError(f"elements of '{load.tensor.name}' do not lie side by side")
        if points.lanes > _COLUMNS:
            raise ScheduleError(f"vectors of {points.lanes} sums, not {_COLUMNS}")
        left, right = (
            evaluator(self._context, budget, load, accesses, points)
            for load in (self._left, self._right)
        )
        position = self._position(current)
        row = None if position is None else self._unroll.index(self._spatial[position])
        there, done = set(order), set[Point]()
        for point in order:
            pair = _pair(point, row) if row is not None and points.lanes == _COLUMNS else None
            if pair is None or key_of(pair[1]) not in current:
                key = key_of(point)
                (sums,) = current[key]
                current[key] = (self._single(sums, left(point, ()), right(point, ())),)
            elif pair[0] not in done:
                done.add(pair[0])
                rows = [self._row(left, each, each in there) for each in pair]
                self._blocks(current, [key_of(each) for each in pair], rows, right(point, ()))

    def _row(self, left: Evaluator, point: Point, present: bool) -> Value:
        """Return the left operand's dot-product group of eight bytes at a tile point; zeros unless
        `present`.

        A tile point is a combination of indices on the unrolled axes. `present` is false if the
        product at this tile point is skipped, as in padding.
        """
        return left(point, ()) if present else self._emitter.const(0, DType.INT64)

    def _blocks(
        self,
        current: dict[Key, Partial],
        keys: Sequence[Key],
        rows: Sequence[Value],
        columns: Value,
    ) -> None:
        for number, key in enumerate(keys):
            (sums,) = current[key]
            sums = self._emitter.splat(sums, _COLUMNS)
            current[key] = (self._call(sums, rows, columns, number),)

    def _single(self, sums: Value, row: Value, columns: Value) -> Value:
        """Emit the product of one row by all columns, and add it to `sums`."""
        emitter, lanes = self._emitter, sums.lanes
        (wide,) = same_lanes(emitter, (columns,), _COLUMNS)
        nothing = emitter.const(0, self._instruction.accumulator, _COLUMNS)
        halves = [self._call(nothing, (row, row), wide, number) for number in (0, 1)]
        if lanes == 1:
            total = extract_lane(emitter, halves[0], 0)
        else:
            total = emitter.shuffle(halves[0], halves[1], _UPPER[:lanes])
        return apply(emitter, Operation.ADD, sums, total)

    def _call(self, sums: Value, rows: Sequence[Value], columns: Value, number: int) -> Value:
        """Emit the product of two rows by two columns, added to `sums`.

        Args:
            sums: the 2x2 sums.
            rows: the left operand's dot-product group of eight bytes in each row.
            columns: the right operand's dot-product groups in four columns.
            number: 0 selects the first two columns, 1 the last two.
        """
        emitter, found = self._emitter, self._instruction
        pair = emitter.const(0, DType.INT64, 2)
        for lane, row in enumerate(rows):
            text = f"insertelement {pair.type} %s, i64 %s, i32 {lane}"
            pair = emitter.emit(DType.INT64, 2, text, pair, row)
        part = emitter.shuffle(columns, None, (2 * number, 2 * number + 1))
        operands = []
        for value, dtype in ((pair, found.left), (part, found.right)):
            count = 16 // dtype.bytes
            text = f"bitcast {value.type} %s to {type_text(dtype, count)}"
            operands.append(emitter.emit(dtype, count, text, value))
        return emitter.call(found.accumulator, _COLUMNS, found.intrinsic, sums, *operands)
