"""Bitwise operators and bit shifts on integers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import InvalidModelError
from tilewright.compiler.graph.ir import Attrs
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.loops.expr import Expr, Operation
from tilewright.compiler.loops.index import Affine
from tilewright.compiler.ops.attributes import word
from tilewright.compiler.ops.cast import ONNX_TYPES, onnx_type_name
from tilewright.compiler.ops.elementwise import native, pointwise, same
from tilewright.compiler.ops.integers import shift_left, shift_right
from tilewright.compiler.ops.onnx_node import OnnxNode
from tilewright.compiler.ops.registry import Fresh, OnnxRule, Operator, OpKind, Source
from tilewright.compiler.ops.shapes import broadcast, operand_count, same_dtype, show


def _infer(count: int) -> Callable[[Sequence[TensorType], Attrs], TensorType]:
    def infer(types: Sequence[TensorType], _attrs: Attrs) -> TensorType:
        operand_count(types, count)
        dtype = same_dtype(types)
        if dtype.numpy.kind not in "iu" or dtype.is_float:
            raise InvalidModelError(f"element type {dtype} where an integer is needed")
        return TensorType(dtype, broadcast(*(t.shape for t in types)))

    return infer


def _bitwise(
    name: str, op_type: str, count: int, function: np.ufunc, operation: Operation
) -> Operator:
    return pointwise(
        name,
        count,
        lambda arrays, _attrs: np.asarray(function(*arrays)),
        native(operation),
        (OnnxRule(op_type, same(name)),),
        _infer(count),
    )


def _shift(name: str, function: np.ufunc, scalar: Callable[[Expr, Expr], Expr]) -> Operator:
    """Declare the operator `name`, which shifts each integer by its own number of bits.

    `function` is NumPy's shift, and `scalar` returns the expression of one element. If the number
    of bits is negative, or at least the width of the type, the result is 0, or -1 for the right
    shift of a negative element.
    """

    def reference(arrays: Sequence[np.ndarray], _attrs: Attrs) -> np.ndarray:
        x, amount = arrays
        width = 8 * x.dtype.itemsize
        inside = (amount >= 0) & (amount < width)
        shifted = function(x, np.where(inside, amount, 0))
        sign = x < 0 if name == "shift_right" else np.zeros(x.shape, bool)
        return np.where(inside, shifted, np.where(sign, -1, 0)).astype(x.dtype)

    return pointwise(name, 2, reference, lambda values, _attrs: scalar(*values), (), _infer(2))


def _onnx_shift(node: OnnxNode) -> str:
    direction = node.choice("direction", ("LEFT", "RIGHT"))
    return node.emit(f"shift_{direction.lower()}", [node.input(0), node.input(1)])


def _infer_bitcast(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    operand_count(types, 1)
    to = DType(word(attrs, "to"))
    source, shape = types[0].dtype, types[0].shape
    if to.bytes == source.bytes:
        return TensorType(to, shape)
    if not shape or shape[-1] * source.bytes % to.bytes:
        raise InvalidModelError(
            f"rows of {source}{show(shape)} do not divide into elements of {to}"
        )
    return TensorType(to, (*shape[:-1], shape[-1] * source.bytes // to.bytes))


def _bitcast_reference(arrays: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    return np.ascontiguousarray(arrays[0]).view(DType(word(attrs, "to")).numpy)


def _bitcast_expression(
    operands: Sequence[Source],
    types: Sequence[TensorType],
    attrs: Attrs,
    index: tuple[Affine, ...],
    fresh: Fresh,
) -> Expr:
    """Raise ValueError: a bit cast is a view of its operand's bytes and has no expression."""
    raise ValueError("a view has no expression")


def _onnx_bitcast(node: OnnxNode) -> str:
    number = node.integer("to")
    dtype = ONNX_TYPES.get(number)
    source = node.type(node.input(0)).dtype
    if dtype is None or DType.BFLOAT16 in (dtype, source):
        raise node.unsupported(f"from {source} to ONNX element type {onnx_type_name(number)}")
    if dtype.bytes != source.bytes:
        raise node.invalid(f"the element types {source} and {dtype} differ in size")
    return node.input(0) if dtype is source else node.emit("bitcast", [node.input(0)], to=dtype)


OPERATORS = (
    _bitwise("bit_and", "BitwiseAnd", 2, np.bitwise_and, Operation.AND),
    _bitwise("bit_or", "BitwiseOr", 2, np.bitwise_or, Operation.OR),
    _bitwise("bit_xor", "BitwiseXor", 2, np.bitwise_xor, Operation.XOR),
    _bitwise("bit_not", "BitwiseNot", 1, np.bitwise_not, Operation.NOT),
    _shift("shift_left", np.left_shift, shift_left),
    _shift("shift_right", np.right_shift, shift_right),
    Operator(
        "bitcast",
        OpKind.VIEW,
        _infer_bitcast,
        _bitcast_reference,
        _bitcast_expression,
        (OnnxRule("BitCast", _onnx_bitcast, limits="not bfloat16"),),
    ),
)

RULES = (OnnxRule("BitShift", _onnx_shift),)
