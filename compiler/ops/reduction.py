"""Reductions along axes, including global pooling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.graph.ir import Attrs
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.loops import semantics
from tilewright.compiler.loops.expr import Combiner, Const, Expr, Operation, Reduce, constant, op
from tilewright.compiler.loops.index import Affine, affine
from tilewright.compiler.ops.attributes import dimensions, integer, ints
from tilewright.compiler.ops.onnx_node import OnnxNode
from tilewright.compiler.ops.registry import Fresh, OnnxRule, Operator, OpKind, Source
from tilewright.compiler.ops.shapes import operand_count
from tilewright.compiler.sizes import is_dynamic


def _axes(attrs: Attrs, rank: int) -> tuple[int, ...]:
    return dimensions(ints(attrs, "axes", tuple(range(rank))), rank)


def _infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    operand_count(types, 1)
    shape = types[0].shape
    axes = _axes(attrs, len(shape))
    if integer(attrs, "keepdims", 1):
        kept = tuple(1 if dim in axes else extent for dim, extent in enumerate(shape))
    else:
        kept = tuple(extent for dim, extent in enumerate(shape) if dim not in axes)
    return TensorType(types[0].dtype, kept)


def _reduction(
    name: str,
    function: Callable[..., np.ndarray],
    combiner: Combiner,
    finish: Callable[[Expr, int], Expr],
    *onnx: OnnxRule,
) -> Operator:
    """Declare the operator `name`, which reduces its operand along axes.

    `function` is the NumPy reference. `finish` computes the result from the combined elements and
    their number. A reduction of no elements gives the combiner's neutral element.
    """

    def reference(arrays: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
        x = arrays[0]
        if not x.size:
            shape = _infer([TensorType(DType(x.dtype.name), x.shape)], attrs).shape
            return np.full(shape, semantics.neutral(combiner, DType(x.dtype.name)))
        keep = bool(integer(attrs, "keepdims", 1))
        result = function(x, axis=_axes(attrs, x.ndim), keepdims=keep)
        return np.asarray(result).astype(x.dtype, copy=False)

    def expression(
        operands: Sequence[Source],
        types: Sequence[TensorType],
        attrs: Attrs,
        index: tuple[Affine, ...],
        fresh: Fresh,
    ) -> Expr:
        shape = types[0].shape
        axes = _axes(attrs, len(shape))
        reduced = {axis: fresh(f"r{axis}", shape[axis]) for axis in axes}
        kept = list(index)
        if integer(attrs, "keepdims", 1):
            kept = [i for dim, i in enumerate(index) if dim not in axes]
        position = tuple(
            affine(reduced[dim]) if dim in reduced else kept.pop(0) for dim in range(len(shape))
        )
        total = Reduce(combiner, tuple(reduced.values()), operands[0](position))
        return finish(total, prod(shape[axis] for axis in axes))

    return Operator(name, OpKind.REDUCTION, _infer, reference, expression, onnx)


def _mean(total: Expr, count: int) -> Expr:
    if is_dynamic(count):
        return op(Operation.DIV, total, constant(count, total.dtype))
    if total.dtype.is_float:
        return total * Const(1.0 / count, total.dtype)
    return op(Operation.DIV, total, Const(count, total.dtype))


def _plain(total: Expr, _count: int) -> Expr:
    return total


def reduce(node: OnnxNode, op_name: str, value: str) -> str:
    """Emit the reduction `op_name` of `value`, with the ONNX node's axes and keepdims."""
    rank = len(node.shape(value))
    axes = node.ints_or_input("axes", 1)
    if not axes:
        if node.integer("noop_with_empty_axes", 0):
            return value
        axes = tuple(range(rank))
    if rank == 0:
        return value
    # checked here, so that the message has the axes that the model states
    for axis in axes:
        if not -rank <= axis < rank:
            raise node.invalid(f"axis {axis} is out of range for rank {rank}")
    keepdims = int(node.integer("keepdims", 1) != 0)
    return node.emit(op_name, [value], axes=dimensions(axes, rank), keepdims=keepdims)


def _onnx(op_name: str) -> Callable[[OnnxNode], str]:
    return lambda node: reduce(node, op_name, node.input(0))


def _around(before: str | None, op_name: str, after: str | None) -> Callable[[OnnxNode], str]:
    """Return an import rule for a reduction with an elementwise operator before or after it.

    For example, ReduceSumSquare is `reduce_sum` with "square" before it. `before` or `after` is
    None if there is no such operator.
    """

    def emit(node: OnnxNode) -> str:
        value = node.input(0)
        if before == "square":
            value = node.emit("mul", [value, value])
        elif before is not None:
            value = node.emit(before, [value])
        value = reduce(node, op_name, value)
        return value if after is None else node.emit(after, [value])

    return emit


def _onnx_log_sum_exp(node: OnnxNode) -> str:
    """Import ReduceLogSumExp as m + log(sum(exp(x - m))), where m is the largest element.

    Subtracting m prevents an overflow.
    """
    x = node.input(0)
    rank = len(node.shape(x))
    axes = node.ints_or_input("axes", 1) or tuple(range(rank))
    largest = node.emit("reduce_max", [x], axes=dimensions(axes, rank), keepdims=1)
    powers = node.emit("exp", [node.emit("sub", [x, largest])])
    total = reduce(node, "reduce_sum", powers)
    return node.emit("add", [node.emit("log", [total]), node.reshape(largest, node.shape(total))])


def _global(op_name: str) -> Callable[[OnnxNode], str]:
    def emit(node: OnnxNode) -> str:
        x = node.input(0)
        rank = len(node.shape(x))
        if rank < 3:
            raise node.invalid(f"the input has rank {rank}, not 3 or more")
        return node.emit(op_name, [x], axes=tuple(range(2, rank)), keepdims=1)

    return emit


OPERATORS = (
    _reduction(
        "reduce_sum", np.sum, Combiner.SUM, _plain, OnnxRule("ReduceSum", _onnx("reduce_sum"))
    ),
    _reduction(
        "reduce_mean",
        np.mean,
        Combiner.SUM,
        _mean,
        OnnxRule("ReduceMean", _onnx("reduce_mean")),
        OnnxRule("GlobalAveragePool", _global("reduce_mean")),
    ),
    _reduction(
        "reduce_max",
        np.max,
        Combiner.MAX,
        _plain,
        OnnxRule("ReduceMax", _onnx("reduce_max")),
        OnnxRule("GlobalMaxPool", _global("reduce_max")),
    ),
    _reduction(
        "reduce_min", np.min, Combiner.MIN, _plain, OnnxRule("ReduceMin", _onnx("reduce_min"))
    ),
    _reduction(
        "reduce_prod",
        np.prod,
        Combiner.PRODUCT,
        _plain,
        OnnxRule("ReduceProd", _onnx("reduce_prod")),
    ),
)

RULES = (
    OnnxRule("ReduceL1", _around("abs", "reduce_sum", None)),
    OnnxRule("ReduceL2", _around("square", "reduce_sum", "sqrt")),
    OnnxRule("ReduceSumSquare", _around("square", "reduce_sum", None)),
    OnnxRule("ReduceLogSum", _around(None, "reduce_sum", "log")),
    OnnxRule("ReduceLogSumExp", _onnx_log_sum_exp),
)
