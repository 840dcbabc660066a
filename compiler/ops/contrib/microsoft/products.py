"""Matrix products of com.microsoft, with quantised operands or with fused operations.

Each operator is imported as several ONNX operators. ONNX Runtime's docs/ContribOperators.md defines
the operands and attributes; details that it leaves out follow ONNX Runtime's kernels.
"""

from __future__ import annotations

from tilewright.compiler.dtypes import DType
from tilewright.compiler.ops.cast import cast_to
from tilewright.compiler.ops.contrib.microsoft.quantised import (
    DOMAIN,
    one_number,
    quantised,
    require_int8,
    zero_point,
)
from tilewright.compiler.ops.onnx_node import OnnxNode
from tilewright.compiler.ops.products import INT8_TYPES
from tilewright.compiler.ops.registry import OnnxRule
from tilewright.compiler.ops.shapes import show
from tilewright.compiler.sizes import same_extents

MOST_BYTE = 255.0


def integer_product(
    node: OnnxNode, a: str, b: str, zeros: tuple[str | None, str | None], scale: str
) -> str:
    """Emit float32((a - zeros[0]) @ (b - zeros[1])) * scale, with int32 products.

    The zero point of `a` is a scalar. The zero point of `b`, and the scale, may have one element
    per column of `b`.
    """
    left, right = zeros
    if left is not None and node.type(left).elements != 1:
        raise node.invalid(f"the zero point of A is {show(node.shape(left))}, expected a scalar")
    _of_columns(node, "zero point", right, b)
    total = node.call("MatMulInteger", a, b, left, right)
    return node.call("Mul", cast_to(node, total, DType.FLOAT32), scale)


def _of_columns(node: OnnxNode, what: str, parameter: str | None, b: str) -> None:
    """Check that a parameter of the matrix `b` has one element, or one per column of `b`.

    `what` names the parameter in the error.

    Raises:
        InvalidModelError: if it has another number of elements.
    """
    shape = node.shape(b)
    if parameter is None or node.type(parameter).elements == 1:
        return
    if len(shape) < 2 or not same_extents(node.shape(parameter), shape[-1:]):
        raise node.invalid(
            f"the {what} of B is {show(node.shape(parameter))}, expected a scalar or one number "
            f"for each column of B {show(shape)}"
        )


def column_scales(node: OnnxNode, a: str, b: str, matrix: str) -> str:
    """Emit the product of two scales, `a` and `b`.

    `a` is a scalar. `b` has one element, or one element per column of the operand `matrix`.
    """
    if node.type(a).elements != 1:
        raise node.invalid(f"the scale of A is {show(node.shape(a))}, expected a scalar")
    _of_columns(node, "scale", b, matrix)
    return node.call("Mul", node.reshape(a, ()), b)


def _biased(node: OnnxNode, value: str, position: int) -> str:
    bias = node.optional(position)
    return value if bias is None else node.call("Add", value, bias)


def dynamically_quantised(node: OnnxNode, x: str) -> tuple[str, str, str]:
    """Quantise a float32 value to uint8, with a scale from its smallest and largest element.

    Returns the uint8 value, the scale and the zero point. They equal DynamicQuantizeLinear's, but a
    tensor of zeros has the scale 1, as in ONNX Runtime.
    """
    kind = node.type(x)
    if kind.dtype is not DType.FLOAT32 or not kind.elements:
        raise node.invalid(f"input 0 is {kind}, not elements of float32")
    none = node.scalar(0.0, DType.FLOAT32)
    low = node.call("Min", node.call("ReduceMin", x, keepdims=0), none)
    high = node.call("Max", node.call("ReduceMax", x, keepdims=0), none)
    width = node.call("Sub", high, low)
    step = node.call("Div", width, node.scalar(MOST_BYTE, DType.FLOAT32))
    one = node.scalar(1.0, DType.FLOAT32)
    scale = node.call("Where", node.call("Equal", width, none), one, step)
    zero = node.call("Round", node.call("Div", node.call("Neg", low), scale))
    bytes_ = cast_to(node, zero, DType.UINT8)
    return node.call("QuantizeLinear", x, scale, bytes_), scale, bytes_


def _dynamic_quantize_matmul(node: OnnxNode) -> str:
    """Import DynamicQuantizeMatMul: A @ B + bias, where A is quantised at run time.

    Inputs: A (float32), B (int8 or uint8), scale of B, zero point of B, bias.
    """
    b = require_int8(node, 1)
    a, scale, zero = dynamically_quantised(node, node.input(0))
    zeros = zero, zero_point(node, 3, b)
    return _biased(
        node, integer_product(node, a, b, zeros, column_scales(node, scale, node.input(2), b)), 4
    )


def _matmul_integer_to_float(node: OnnxNode) -> str:
    """Import MatMulIntegerToFloat: the product of two dequantised 8-bit tensors, plus a bias.

    Inputs: A, B, scale of A, scale of B, zero point of A, zero point of B, bias. The result is
    float32.
    """
    a, b = require_int8(node, 0), require_int8(node, 1)
    zeros = zero_point(node, 4, a), zero_point(node, 5, b)
    scale = column_scales(node, node.input(2), node.input(3), b)
    return _biased(node, integer_product(node, a, b, zeros, scale), 6)


def _transposed(node: OnnxNode, value: str, key: str) -> str:
    """Return a matrix, transposed if the attribute `key` is not 0."""
    if len(node.shape(value)) != 2:
        raise node.invalid(
            f"the operand of '{key}' is {show(node.shape(value))}, expected a matrix"
        )
    return node.call("Transpose", value, perm=(1, 0)) if node.integer(key, 0) else value


def _qgemm(node: OnnxNode) -> str:
    """Import QGemm: alpha * a_scale * b_scale * (A @ B + C), in float32 or quantised.

    Inputs: A, scale and zero point of A, B, scale and zero point of B, C (int32), scale and zero
    point of the result. Without the last two inputs, the result is float32.
    """
    a = _transposed(node, require_int8(node, 0), "transA")
    b = _transposed(node, require_int8(node, 3), "transB")
    scale = column_scales(node, one_number(node, 1, "a scale"), node.input(4), b)
    _of_columns(node, "zero point", node.optional(5), b)
    total = node.call("MatMulInteger", a, b, zero_point(node, 2, a), zero_point(node, 5, b))
    total = _biased(node, total, 6)
    alpha = node.scalar(node.number("alpha", 1.0), DType.FLOAT32)
    result = node.call("Mul", cast_to(node, total, DType.FLOAT32), node.call("Mul", scale, alpha))
    if node.optional(7) is None:
        return result
    return quantised(node, result, 7, a)


def _fused_matmul(node: OnnxNode) -> str:
    """Import FusedMatMul: alpha * A @ B, with optional transpositions of A and B.

    transA and transB exchange the last two dimensions. transBatchA and transBatchB move the first
    dimension to the position before the last.
    """
    left, right = (
        _turned(node, node.input(position), f"trans{key}", f"transBatch{key}")
        for position, key in enumerate("AB")
    )
    product, alpha = node.call("MatMul", left, right), node.number("alpha", 1.0)
    if alpha == 1.0:
        return product
    return node.call("Mul", product, node.scalar(alpha, node.type(product).dtype))


def _turned(node: OnnxNode, value: str, key: str, batch_key: str) -> str:
    rank = len(node.shape(value))
    order = list(range(rank))
    if node.integer(batch_key, 0):
        if rank < 3:
            raise node.invalid(
                f"attribute '{batch_key}' needs an operand of three dimensions or more, this one "
                f"is {show(node.shape(value))}"
            )
        order = [*order[1:-1], 0, order[-1]]
    if node.integer(key, 0) and rank > 1:
        order[-2:] = order[:-3:-1]
    return value if order == sorted(order) else node.call("Transpose", value, perm=tuple(order))


def _activated(node: OnnxNode, value: str, parameters: tuple[float, ...]) -> str:
    """Apply the activation that the attribute `activation` names, with its parameters, to a value.

    Raises:
        UnsupportedOperatorError: if the activation is unknown.
    """
    name = node.word("activation", "")
    first = {"alpha": parameters[0]} if parameters else {}
    match name:
        case "":
            return value
        case "Relu" | "Tanh" | "Sigmoid":
            return node.call(name, value)
        case "LeakyRelu":
            return node.call(name, value, **first)
        case "HardSigmoid":
            both = dict(zip(("alpha", "beta"), parameters, strict=False))
            return node.call(name, value, **both)
        case "Clip":
            if len(parameters) != 2:
                raise node.invalid(f"activation Clip has {len(parameters)} parameters, expected 2")
            bounds = (node.scalar(bound, node.type(value).dtype) for bound in parameters)
            return node.call("Clip", value, *bounds)
        case _:
            raise node.unsupported(f"attribute 'activation' is '{name}'")


def _fused_gemm(node: OnnxNode) -> str:
    attrs = {k: v for k, v in node.attrs.items() if not k.startswith("activation")}
    keys = [f"activation_{key}" for key in ("alpha", "beta", "gamma")]
    parameters = tuple(node.number(key) for key in keys if key in node.attrs)
    return _activated(node, node.call("Gemm", *node.inputs, **attrs), parameters)


def _fused_conv(node: OnnxNode) -> str:
    """Import FusedConv: Conv of the first three inputs, plus the fourth, then an activation."""
    attrs = {k: v for k, v in node.attrs.items() if not k.startswith("activation")}
    total = _biased(node, node.call("Conv", *node.inputs[:3], **attrs), 3)
    return _activated(node, total, tuple(node.numbers("activation_params")))


_WIDE = (DType.FLOAT32,)

RULES = (
    OnnxRule("DynamicQuantizeMatMul", _dynamic_quantize_matmul, DOMAIN, types=_WIDE),
    OnnxRule(
        "MatMulIntegerToFloat", _matmul_integer_to_float, DOMAIN, "scales of float32", INT8_TYPES
    ),
    OnnxRule("QGemm", _qgemm, DOMAIN, types=INT8_TYPES),
    OnnxRule("FusedMatMul", _fused_matmul, DOMAIN),
    # FusedMatMul had this name before it supported batches
    OnnxRule("TransposeMatMul", _fused_matmul, DOMAIN),
    OnnxRule("FusedGemm", _fused_gemm, DOMAIN),
    OnnxRule("FusedConv", _fused_conv, DOMAIN),
)
