"""Softmax and its logarithm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from tilewright.compiler.graph.ir import Attrs
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.loops import maths
from tilewright.compiler.loops.expr import Combiner, Expr, Reduce, constant
from tilewright.compiler.loops.index import Affine, affine
from tilewright.compiler.ops.attributes import axis_of
from tilewright.compiler.ops.elementwise import floats_only
from tilewright.compiler.ops.onnx_node import OnnxNode
from tilewright.compiler.ops.registry import Fresh, OnnxRule, Operator, OpKind, Source
from tilewright.compiler.ops.shapes import operand_count


def _infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    operand_count(types, 1)
    floats_only(types)
    axis_of(attrs, len(types[0].shape), -1)
    return types[0]


def _shifted(x: np.ndarray, attrs: Attrs) -> tuple[np.ndarray, int]:
    axis = axis_of(attrs, x.ndim, -1)
    return x - x.max(axis=axis, keepdims=True), axis


def _softmax_reference(arrays: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    shifted, axis = _shifted(arrays[0], attrs)
    powers = np.exp(shifted)
    return np.asarray(powers / powers.sum(axis=axis, keepdims=True), arrays[0].dtype)


def _log_softmax_reference(arrays: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    shifted, axis = _shifted(arrays[0], attrs)
    total = np.exp(shifted).sum(axis=axis, keepdims=True)
    return np.asarray(shifted - np.log(total), arrays[0].dtype)


def _expression(logarithm: bool) -> Callable[..., Expr]:
    """Return the function that builds the expression of softmax, or of its logarithm.

    Softmax is exp(x - m) / sum(exp(x - m)), and its logarithm x - m - log(sum(exp(x - m))), where m
    is the row's maximum.
    """

    def expression(
        operands: Sequence[Source],
        types: Sequence[TensorType],
        attrs: Attrs,
        index: tuple[Affine, ...],
        fresh: Fresh,
    ) -> Expr:
        shape = types[0].shape
        axis = axis_of(attrs, len(shape), -1)

        def element(position: Affine) -> Expr:
            return operands[0]((*index[:axis], position, *index[axis + 1 :]))

        first, second = fresh("k", shape[axis]), fresh("k", shape[axis])
        largest = Reduce(Combiner.MAX, (first,), element(affine(first)))
        powers = maths.exp_of_negative(element(affine(second)) - largest)
        total = Reduce(Combiner.SUM, (second,), powers)
        shifted = element(index[axis]) - largest
        return (
            # One of the terms is 1, so the sum is a normal number.
            shifted - maths.log_normal(total)
            if logarithm
            else maths.exp_of_negative(shifted) * (constant(1.0, total.dtype) / total)
        )

    return expression


def _onnx(op_name: str) -> Callable[[OnnxNode], str]:
    """Return the import rule of Softmax or LogSoftmax.

    Before opset 13, all dimensions from `axis` (default 1) on form one row.
    """

    def emit(node: OnnxNode) -> str:
        x = node.input(0)
        shape = node.shape(x)
        if not shape:
            raise node.invalid("a scalar has no axis")
        axis = node.integer("axis", -1 if node.opset >= 13 else 1)
        last = len(shape) - 1
        if node.opset >= 13 or axis in (last, -1):
            return node.emit(op_name, [x], axis=axis)
        if not -len(shape) <= axis <= len(shape):
            raise node.invalid(f"axis {axis} is out of range for rank {len(shape)}")
        start = axis if axis == len(shape) else axis % len(shape)
        matrix = node.reshape(x, (prod(shape[:start]), prod(shape[start:])))
        return node.reshape(node.emit(op_name, [matrix], axis=1), shape)

    return emit


OPERATORS = (
    Operator(
        "softmax",
        OpKind.ROW,
        _infer,
        _softmax_reference,
        _expression(logarithm=False),
        (OnnxRule("Softmax", _onnx("softmax")),),
    ),
    Operator(
        "log_softmax",
        OpKind.ROW,
        _infer,
        _log_softmax_reference,
        _expression(logarithm=True),
        (OnnxRule("LogSoftmax", _onnx("log_softmax")),),
    ),
)
