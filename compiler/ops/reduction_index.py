"""ArgMax and ArgMin: the position of the largest or smallest element along an axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import InvalidModelError
from tilewright.compiler.graph.ir import Attrs
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.loops import semantics
from tilewright.compiler.loops.expr import (
    Accumulator,
    Cast,
    Combiner,
    Const,
    Expr,
    Fold,
    Incoming,
    IndexValue,
    Item,
    Items,
    Operation,
    Reduce,
    op,
)
from tilewright.compiler.loops.index import Affine, affine
from tilewright.compiler.ops.attributes import axis_of, integer
from tilewright.compiler.ops.onnx_node import OnnxNode
from tilewright.compiler.ops.registry import Fresh, OnnxRule, Operator, OpKind, Source
from tilewright.compiler.ops.shapes import operand_count

_NARROW = (DType.FLOAT16, DType.BFLOAT16)
_LAST = 2**31 - 1


def _infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    operand_count(types, 1)
    shape = types[0].shape
    if not shape:
        raise InvalidModelError("a scalar has no axis")
    axis = axis_of(attrs, len(shape), 0)
    if not 0 < shape[axis] <= _LAST:
        raise InvalidModelError(f"axis {axis} has {shape[axis]} elements, expected at least 1")
    kept = (1,) if integer(attrs, "keepdims", 1) else ()
    return TensorType(DType.INT64, (*shape[:axis], *kept, *shape[axis + 1 :]))


def _reference(largest: bool) -> Callable[[Sequence[np.ndarray], Attrs], np.ndarray]:
    choose = np.argmax if largest else np.argmin

    def reference(arrays: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
        x = arrays[0]
        axis = axis_of(attrs, x.ndim, 0)
        keep = bool(integer(attrs, "keepdims", 1))
        if not integer(attrs, "last", 0):
            return np.asarray(choose(x, axis=axis, keepdims=keep), np.int64)
        found = choose(np.flip(x, axis), axis=axis, keepdims=keep)
        return np.asarray(x.shape[axis] - 1 - found, np.int64)

    return reference


def _fold(dtype: DType, *, largest: bool, last: bool) -> Fold:
    """Return the reduction of (value, position) pairs to the best value and its position.

    The best value is the largest or the smallest one. Of equal values, the first position is
    returned, or the last one if `last`. NaN is better than any number, as in NumPy.
    """
    combiner = Combiner.MAX if largest else Combiner.MIN
    value, position = Accumulator(dtype, 0), Accumulator(DType.INT32, 1)
    other, place = Incoming(dtype, 0), Incoming(DType.INT32, 1)
    worse, better = (value, other) if largest else (other, value)
    equal = op(Operation.EQ, value, other)
    if dtype.is_float:
        # Not `better <= worse`: so it is better, or one of the two is NaN.
        unordered = op(Operation.NOT, op(Operation.LE, better, worse))
        wins = op(Operation.AND, unordered, op(Operation.EQ, value, value))
        both = (op(Operation.NE, v, v) for v in (value, other))
        equal = op(Operation.OR, equal, op(Operation.AND, *both))
    else:
        wins = op(Operation.LT, worse, better)
    nearer = op(Operation.LT, position, place) if last else op(Operation.LT, place, position)
    wins = op(Operation.OR, wins, op(Operation.AND, equal, nearer))
    start = semantics.neutral(combiner, dtype).item()
    return Fold(
        (Const(start, dtype), Const(-1 if last else _LAST, DType.INT32)),
        (op(Operation.SELECT, wins, other, value), op(Operation.SELECT, wins, place, position)),
    )


def _expression(largest: bool) -> Callable[..., Expr]:
    def expression(
        operands: Sequence[Source],
        types: Sequence[TensorType],
        attrs: Attrs,
        index: tuple[Affine, ...],
        fresh: Fresh,
    ) -> Expr:
        shape = types[0].shape
        axis = axis_of(attrs, len(shape), 0)
        after = axis + 1 if integer(attrs, "keepdims", 1) else axis
        along = fresh("k", shape[axis])
        element = operands[0]((*index[:axis], affine(along), *index[after:]))
        if element.dtype in _NARROW:
            element = Cast(element, DType.FLOAT32)
        body = Items((element, IndexValue(affine(along), DType.INT32)))
        last = bool(integer(attrs, "last", 0))
        fold = _fold(element.dtype, largest=largest, last=last)
        return Cast(Item(Reduce(fold, (along,), body), 1), DType.INT64)

    return expression


def _onnx(op_name: str) -> Callable[[OnnxNode], str]:
    def emit(node: OnnxNode) -> str:
        x = node.input(0)
        rank, axis = len(node.shape(x)), node.integer("axis", 0)
        if not -rank <= axis < rank:
            raise node.invalid(f"axis {axis} is out of range for rank {rank}")
        keepdims = int(node.integer("keepdims", 1) != 0)
        last = int(node.integer("select_last_index", 0) != 0)
        return node.emit(op_name, [x], axis=axis % rank, keepdims=keepdims, last=last)

    return emit


OPERATORS = tuple(
    Operator(
        name,
        OpKind.REDUCTION,
        _infer,
        _reference(largest),
        _expression(largest),
        (OnnxRule(op_type, _onnx(name)),),
    )
    for name, op_type, largest in (("arg_max", "ArgMax", True), ("arg_min", "ArgMin", False))
)
