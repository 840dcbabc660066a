"""Matrix products: MatMul and Gemm."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import InvalidModelError
from tilewright.compiler.graph.ir import Attrs
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.loops.expr import Combiner, Const, Expr, Reduce, widened
from tilewright.compiler.loops.index import Affine, affine
from tilewright.compiler.ops.attributes import integer, number
from tilewright.compiler.ops.onnx_node import OnnxNode
from tilewright.compiler.ops.products import accumulated, computed_type, exactly
from tilewright.compiler.ops.registry import Fresh, OnnxRule, Operator, OpKind, Source
from tilewright.compiler.ops.shapes import (
    broadcast,
    broadcast_index,
    operand_count,
    same_dtype,
    show,
)
from tilewright.compiler.sizes import equal, same_extents


def _infer_matmul(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    operand_count(types, 2, 3)
    dtype = computed_type(types, attrs)
    a, b = types[0].shape, types[1].shape
    if not a or not b:
        raise InvalidModelError(f"operands {show(a)} and {show(b)}: a scalar is not a matrix")
    inner = b[-2] if len(b) > 1 else b[0]
    if not equal(a[-1], inner):
        raise InvalidModelError(f"K differs, {a[-1]} against {inner}")
    rows = (a[-2],) if len(a) > 1 else ()
    columns = (b[-1],) if len(b) > 1 else ()
    shape = (*broadcast(a[:-2], b[:-2]), *rows, *columns)
    if len(types) == 3 and not same_extents(broadcast(shape, types[2].shape), shape):
        raise InvalidModelError(
            f"the bias {show(types[2].shape)} does not broadcast to the result {show(shape)}"
        )
    return TensorType(dtype, shape)


def _matmul_reference(arrays: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    a, b, *bias = exactly(arrays, attrs)
    result = np.matmul(a, b)
    if bias:
        result = result + bias[0]
    return accumulated(result, attrs, arrays[0].dtype)


def _matmul_expression(
    operands: Sequence[Source],
    types: Sequence[TensorType],
    attrs: Attrs,
    index: tuple[Affine, ...],
    fresh: Fresh,
) -> Expr:
    """Return the expression: sum over k of a[..., m, k] * b[..., k, n], plus the bias if any."""
    dtype = computed_type(types, attrs)
    a, b = types[0].shape, types[1].shape
    outer = list(index)
    columns = [outer.pop()] if len(b) > 1 else []
    rows = [outer.pop()] if len(a) > 1 else []
    axis = fresh("k", a[-1])
    left = operands[0]((*broadcast_index(outer, a[:-2]), *rows, affine(axis)))
    right = operands[1]((*broadcast_index(outer, b[:-2]), affine(axis), *columns))
    body = widened(left, dtype) * widened(right, dtype)
    result: Expr = Reduce(Combiner.SUM, (axis,), body)
    if len(operands) == 3:
        result = result + operands[2](broadcast_index(index, types[2].shape))
    return result


def _infer_gemm(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    operand_count(types, 2, 3)
    dtype = same_dtype(types)
    a, b = types[0].shape, types[1].shape
    if len(a) != 2 or len(b) != 2:
        raise InvalidModelError(f"operands {show(a)} and {show(b)} are not matrices")
    a = a[::-1] if integer(attrs, "trans_a", 0) else a
    b = b[::-1] if integer(attrs, "trans_b", 0) else b
    if not equal(a[1], b[0]):
        raise InvalidModelError(f"K differs, {a[1]} against {b[0]}")
    shape = a[0], b[1]
    if len(types) == 3 and not same_extents(broadcast(shape, types[2].shape), shape):
        raise InvalidModelError(
            f"C is {show(types[2].shape)}, which does not broadcast to the result {show(shape)}"
        )
    return TensorType(dtype, shape)


def _gemm_reference(arrays: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    a = arrays[0].T if integer(attrs, "trans_a", 0) else arrays[0]
    b = arrays[1].T if integer(attrs, "trans_b", 0) else arrays[1]
    kind = a.dtype.type
    result = np.matmul(a, b) * kind(number(attrs, "alpha", 1.0))
    if len(arrays) == 3:
        result = result + arrays[2] * kind(number(attrs, "beta", 1.0))
    return np.asarray(result, a.dtype)


def _gemm_expression(
    operands: Sequence[Source],
    types: Sequence[TensorType],
    attrs: Attrs,
    index: tuple[Affine, ...],
    fresh: Fresh,
) -> Expr:
    """Return the expression: alpha * sum over k of a[m, k] * b[k, n], plus beta * c if present.

    The attributes `trans_a` and `trans_b` exchange the indices of a and b.
    """
    row, column = index
    trans_a, trans_b = integer(attrs, "trans_a", 0), integer(attrs, "trans_b", 0)
    k = fresh("k", types[0].shape[0 if trans_a else 1])
    left = operands[0]((affine(k), row) if trans_a else (row, affine(k)))
    right = operands[1]((column, affine(k)) if trans_b else (affine(k), column))
    result = _scaled(Reduce(Combiner.SUM, (k,), left * right), number(attrs, "alpha", 1.0))
    if len(operands) == 3:
        addend = operands[2](broadcast_index(index, types[2].shape))
        result = result + _scaled(addend, number(attrs, "beta", 1.0))
    return result


def _scaled(value: Expr, factor: float) -> Expr:
    if factor == 1.0:
        return value
    return value * Const(factor if value.dtype.is_float else int(factor), value.dtype)


def _onnx_matmul(node: OnnxNode) -> str:
    return product(node, node.input(0), node.input(1))


def product(node: OnnxNode, a: str, b: str, accumulator: DType | None = None) -> str:
    """Emit `np.matmul(a, b)`, also for vector operands, and return the name of the result.

    `accumulator` is the type of products and sums, if it differs from the operands' type.
    """
    row, column = len(node.shape(a)) == 1, len(node.shape(b)) == 1
    left = node.reshape(a, (1, *node.shape(a))) if row else a
    right = node.reshape(b, (*node.shape(b), 1)) if column else b
    result = node.emit("matmul", [left, right], accumulator=accumulator and accumulator.value)
    shape = list(node.shape(result))
    if column:
        shape.pop()
    if row:
        shape.pop(-1 if column else -2)
    return node.reshape(result, shape)


def _onnx_gemm(node: OnnxNode) -> str:
    c = node.optional(2)
    operands = [node.input(0), node.input(1)]
    return node.emit(
        "gemm",
        operands if c is None else [*operands, c],
        alpha=node.number("alpha", 1.0),
        beta=node.number("beta", 1.0),
        trans_a=int(node.integer("transA", 0) != 0),
        trans_b=int(node.integer("transB", 0) != 0),
    )


OPERATORS = (
    Operator(
        "matmul",
        OpKind.CONTRACTION,
        _infer_matmul,
        _matmul_reference,
        _matmul_expression,
        (OnnxRule("MatMul", _onnx_matmul),),
        terms=lambda types, _attrs: types[0].shape[-1],
    ),
    Operator(
        "gemm",
        OpKind.CONTRACTION,
        _infer_gemm,
        _gemm_reference,
        _gemm_expression,
        (OnnxRule("Gemm", _onnx_gemm),),
        terms=lambda types, attrs: types[0].shape[0 if integer(attrs, "trans_a", 0) else -1],
    ),
)
