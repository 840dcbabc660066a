"""Operators of com.microsoft on uint8 and int8 tensors, with one scale and zero point per tensor.

The import replaces each operator by DequantizeLinear, the corresponding float operator and
QuantizeLinear, as ONNX Runtime's documentation defines it. Passes then convert this form to integer
arithmetic, as in QDQ models.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tilewright.compiler.dtypes import DType
from tilewright.compiler.ops.cast import ONNX_TYPES
from tilewright.compiler.ops.onnx_node import OnnxNode
from tilewright.compiler.ops.products import INT8_TYPES
from tilewright.compiler.ops.registry import FLOATS, OnnxRule
from tilewright.compiler.ops.shapes import show

DOMAIN = "com.microsoft"

_NUMBERS = {dtype: number for number, dtype in ONNX_TYPES.items()}


def one_number(node: OnnxNode, position: int, what: str) -> str:
    """Return the operand at `position`; raises InvalidModelError unless it has one element.

    `what` names the operand in the error.
    """
    value = node.input(position)
    if node.type(value).elements != 1:
        raise node.invalid(f"{what} (input {position}) is {show(node.shape(value))}, not a scalar")
    return value


def require_int8(node: OnnxNode, position: int) -> str:
    """Return the operand at `position`; raises InvalidModelError unless it is uint8 or int8."""
    value = node.input(position)
    if node.type(value).dtype not in INT8_TYPES:
        raise node.invalid(f"input {position} is of {node.type(value).dtype}, not uint8 or int8")
    return value


def zero_point(node: OnnxNode, position: int, value: str) -> str | None:
    """Return the zero point at `position`, or None if it is omitted.

    Raises InvalidModelError if its type differs from the type of `value`.
    """
    zero = node.optional(position)
    if zero is not None and node.type(zero).dtype is not node.type(value).dtype:
        raise node.invalid(
            f"the zero point (input {position}) has element type {node.type(zero).dtype}, expected "
            f"{node.type(value).dtype} as its operand"
        )
    return zero


def dequantised(node: OnnxNode, position: int, value: str | None = None) -> str:
    """Dequantise the operand at `position` to float32.

    The operands at the next two positions are its scale and its zero point. With `value`, that
    value is dequantised in place of the operand, for example the operand's transpose.
    """
    stored = require_int8(node, position)
    scale = one_number(node, position + 1, "a scale")
    zero = zero_point(node, position + 2, stored)
    if zero is not None:
        one_number(node, position + 2, "a zero point")
    return node.call("DequantizeLinear", value or stored, scale, zero)


def quantised(node: OnnxNode, value: str, position: int, like: str) -> str:
    """Quantise a float32 value to the element type of the value `like`.

    The scale is the operand at `position`, the zero point is the next operand.
    """
    scale = one_number(node, position, "a scale")
    zero = zero_point(node, position + 1, like)
    if zero is None:
        number = _NUMBERS[node.type(like).dtype]
        return node.call("QuantizeLinear", value, scale, output_dtype=number)
    one_number(node, position + 1, "a zero point")
    return node.call("QuantizeLinear", value, scale, zero)


def _binary(op_type: str, node: OnnxNode) -> str:
    """Import an operator of two quantised operands, such as QLinearAdd.

    The float operator is applied to the dequantised operands, and its result is quantised. Inputs:
    A, its scale and zero point; B, its scale and zero point; scale and zero point of the result.
    """
    result = node.call(op_type, dequantised(node, 0), dequantised(node, 3))
    return quantised(node, result, 6, node.input(0))


def _unary(op_type: str, node: OnnxNode) -> str:
    """Import an operator of one quantised operand, such as QLinearSigmoid.

    The float operator is applied to the dequantised operand, and its result is quantised. Inputs:
    X, its scale and zero point; scale and zero point of the result.
    """
    attrs = {"alpha": node.number("alpha", 0.01)} if op_type == "LeakyRelu" else {}
    return quantised(node, node.call(op_type, dequantised(node, 0), **attrs), 3, node.input(0))


def _softmax(node: OnnxNode) -> str:
    """Import QLinearSoftmax.

    The attribute `opset` is the version of ONNX's Softmax that was quantised. Before 13, Softmax
    flattens the dimensions from `axis` on.
    """
    opset = node.integer("opset")
    axis = node.integer("axis", -1 if opset >= 13 else 1)
    rows = node.call_at(opset, "Softmax", dequantised(node, 0), axis=axis)
    return quantised(node, rows, 3, node.input(0))


def _where(node: OnnxNode) -> str:
    chosen = node.call("Where", node.input(0), dequantised(node, 1), dequantised(node, 4))
    return quantised(node, chosen, 7, node.input(1))


def _concat(node: OnnxNode) -> str:
    """Import QLinearConcat.

    Inputs: scale and zero point of the result, then three for each part: the part, its scale and
    zero point.
    """
    count = len(node.inputs) - 2
    if count < 3 or count % 3:
        raise node.invalid(f"it has {len(node.inputs)} inputs, expected 2 and then 3 for each part")
    parts = [dequantised(node, position) for position in range(2, 2 + count, 3)]
    whole = node.call("Concat", *parts, axis=node.integer("axis"))
    return quantised(node, whole, 0, node.input(2))


def _pool(op_type: str, node: OnnxNode) -> str:
    """Import pooling of a quantised tensor (N, C, ...), or (N, ..., C) with `channels_last`.

    `op_type` is the ONNX operator that pools the dequantised tensor.
    """
    x = require_int8(node, 0)
    rank = len(node.shape(x))
    if rank < 3:
        raise node.invalid(f"the input has rank {rank}, not 3 or more")
    last = node.integer("channels_last", 0) != 0
    image = node.call("Transpose", x, perm=(0, rank - 1, *range(1, rank - 1))) if last else x
    attrs = {key: value for key, value in node.attrs.items() if key != "channels_last"}
    pooled = node.call(op_type, dequantised(node, 0, image), **attrs)
    made = quantised(node, pooled, 3, x)
    return node.call("Transpose", made, perm=(0, *range(2, rank), 1)) if last else made


def _standard(op_type: str, node: OnnxNode) -> str:
    """Import a com.microsoft operator as the ONNX operator `op_type` with the same definition.

    Scale and zero point have one element, or one element per index along `axis`.
    """
    return node.call(op_type, *node.inputs, **node.attrs)


def _rule(op_type: str, emit: Callable[[OnnxNode], str]) -> OnnxRule:
    types = {"QuantizeLinear": FLOATS, "QLinearWhere": (DType.BOOL,)}
    return OnnxRule(op_type, emit, DOMAIN, types=types.get(op_type, INT8_TYPES))


RULES = (
    _rule("QLinearAdd", partial(_binary, "Add")),
    _rule("QLinearMul", partial(_binary, "Mul")),
    _rule("QLinearSigmoid", partial(_unary, "Sigmoid")),
    _rule("QLinearLeakyRelu", partial(_unary, "LeakyRelu")),
    _rule("QLinearSoftmax", _softmax),
    _rule("QLinearWhere", _where),
    _rule("QLinearConcat", _concat),
    _rule("QLinearAveragePool", partial(_pool, "AveragePool")),
    _rule("QLinearGlobalAveragePool", partial(_pool, "GlobalAveragePool")),
    _rule("QuantizeLinear", partial(_standard, "QuantizeLinear")),
    _rule("DequantizeLinear", partial(_standard, "DequantizeLinear")),
)
