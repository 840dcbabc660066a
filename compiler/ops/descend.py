"""One step down decision trees, for every row and every tree at once.

Trees are tables of records: a record compares one feature of the row with its threshold, and the
two records that may follow lie side by side. A leaf's threshold is a NaN, and the record that
follows it is itself. So a number of equal steps takes every row to its leaves, without branches.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import InvalidModelError
from tilewright.compiler.graph.ir import Attrs
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.loops import maths
from tilewright.compiler.loops.expr import Const, Expr, Operation, constant, op
from tilewright.compiler.loops.index import Affine
from tilewright.compiler.ops.registry import Fresh, Operator, OpKind, Source
from tilewright.compiler.ops.shapes import operand_count, show


def _infer(types: Sequence[TensorType], _attrs: Attrs) -> TensorType:
    """places (1 or rows, trees), x (rows, columns), and of each record: its column, its threshold,
    the place that follows where x is not above that. All are int32, but x and thresholds.
    """
    operand_count(types, 5)
    places, x, columns, thresholds, following = types
    if len(places.shape) != 2 or len(x.shape) != 2 or places.shape[0] not in (1, x.shape[0]):
        raise InvalidModelError(f"places {show(places.shape)} for rows {show(x.shape)}")
    tables = (columns, thresholds, following)
    if any(table.shape != columns.shape or len(table.shape) != 1 for table in tables):
        raise InvalidModelError(f"tables {', '.join(show(table.shape) for table in tables)}")
    if any(kind.dtype is not DType.INT32 for kind in (places, columns, following)):
        raise InvalidModelError("places and columns are not int32")
    if x.dtype is not thresholds.dtype or not x.dtype.is_float:
        raise InvalidModelError(f"thresholds are {thresholds.dtype}, rows {x.dtype}")
    if not x.shape[1] or not columns.shape[0]:
        raise InvalidModelError("there are no columns or no records")
    return TensorType(DType.INT32, (x.shape[0], places.shape[1]))


def _reference(arrays: Sequence[np.ndarray], _attrs: Attrs) -> np.ndarray:
    """Places and columns out of range are those at the end."""
    places, x, columns, thresholds, following = arrays
    at = np.clip(places, 0, len(columns) - 1)
    column = np.clip(columns[at], 0, x.shape[1] - 1)
    given = x[np.arange(len(x))[:, None], column]
    return np.asarray(following[at] + np.where(given <= thresholds[at], 0, 1), np.int32)


def _expression(
    operands: Sequence[Source],
    types: Sequence[TensorType],
    _attrs: Attrs,
    index: tuple[Affine, ...],
    _fresh: Fresh,
) -> Expr:
    """following[at] where x[row, columns[at]] <= thresholds[at], else the place after it."""
    places, x, columns, thresholds, following = operands
    row, tree = index
    place = places((Affine() if types[0].shape[0] == 1 else row, tree))
    at = _within(place, types[2].shape[0])

    def of_record(table: Source) -> Expr:
        return table((Affine(),), ((0, at),))

    column = _within(of_record(columns), types[1].shape[1])
    given = x((row, Affine()), ((1, column),))
    below = op(Operation.LE, given, of_record(thresholds))
    zero, one = Const(0, DType.INT32), Const(1, DType.INT32)
    return of_record(following) + maths.select(below, zero, one)


def _within(place: Expr, extent: int) -> Expr:
    first, last = (constant(value, DType.INT32) for value in (0, extent - 1))
    return maths.minimum(maths.maximum(place, first), last)


OPERATORS = (Operator("descend", OpKind.GATHER, _infer, _reference, _expression),)
