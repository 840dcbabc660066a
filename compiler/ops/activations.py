"""Activation functions, elementwise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import pi, sqrt

import numpy as np

from tilewright.compiler.errors import InvalidModelError
from tilewright.compiler.graph.ir import Attrs
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.loops import maths
from tilewright.compiler.loops.expr import Expr, Operation, op
from tilewright.compiler.ops.attributes import number, word
from tilewright.compiler.ops.elementwise import Scalar, pointwise, same
from tilewright.compiler.ops.onnx_node import OnnxNode
from tilewright.compiler.ops.registry import ElementCost, OnnxRule, Operator, Reference
from tilewright.compiler.ops.unary import erf, infer_float, plain, zero


def _activation(
    name: str,
    reference: Reference,
    scalar: Scalar,
    onnx: OnnxRule,
    cost: ElementCost = ElementCost.ORDINARY,
) -> Operator:
    return pointwise(name, 1, reference, scalar, (onnx,), infer_float, cost=cost)


def _with_numbers(op_name: str, **defaults: float) -> Callable[[OnnxNode], str]:
    """Return a rule that imports an ONNX operator of one operand as the operator `op_name`.

    `defaults` maps the float attributes of the ONNX operator to their default values. The imported
    node has attributes of the same names.
    """

    def emit(node: OnnxNode) -> str:
        attrs = {key: node.number(key, default) for key, default in defaults.items()}
        return node.emit(op_name, [node.input(0)], **attrs)

    return emit


def _relu_reference(arrays: Sequence[np.ndarray], _attrs: Attrs) -> np.ndarray:
    return np.asarray(np.maximum(arrays[0], arrays[0].dtype.type(0)))


def _leaky_relu_reference(arrays: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    x = arrays[0]
    return np.where(x < 0, x * x.dtype.type(number(attrs, "alpha", 0.01)), x)


def _leaky_relu(values: Sequence[Expr], attrs: Attrs) -> Expr:
    (x,) = values
    return maths.select(op(Operation.LT, x, zero(x)), x * number(attrs, "alpha", 0.01), x)


def _elu_reference(arrays: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    x = arrays[0]
    alpha = x.dtype.type(number(attrs, "alpha", 1.0))
    return np.where(x < 0, alpha * np.expm1(np.minimum(x, 0)), x)


def _elu(values: Sequence[Expr], attrs: Attrs) -> Expr:
    (x,) = values
    below = maths.expm1(x) * number(attrs, "alpha", 1.0)
    return maths.select(op(Operation.LT, x, zero(x)), below, x)


def _selu_reference(arrays: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    x = arrays[0]
    alpha, gamma = (x.dtype.type(number(attrs, key)) for key in ("alpha", "gamma"))
    return np.asarray(gamma * np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0))))


def _selu(values: Sequence[Expr], attrs: Attrs) -> Expr:
    (x,) = values
    below = maths.expm1(x) * number(attrs, "alpha")
    return maths.select(op(Operation.LT, zero(x), x), x, below) * number(attrs, "gamma")


def _softplus_reference(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.logaddexp(x, x.dtype.type(0)))


def _sigmoid_reference(x: np.ndarray) -> np.ndarray:
    tail = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, 1 / (1 + tail), tail / (1 + tail)), x.dtype)


def _hard_sigmoid_reference(arrays: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    x = arrays[0]
    alpha, beta = number(attrs, "alpha", 0.2), number(attrs, "beta", 0.5)
    return np.asarray(np.clip(x * x.dtype.type(alpha) + x.dtype.type(beta), 0, 1))


def _hard_sigmoid(values: Sequence[Expr], attrs: Attrs) -> Expr:
    (x,) = values
    line = x * number(attrs, "alpha", 0.2) + number(attrs, "beta", 0.5)
    return maths.minimum(maths.maximum(line, 0.0), 1.0)


def _gelu_reference(arrays: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    x = arrays[0]
    wide = x.astype(np.float64)
    if word(attrs, "approximate", "none") == "tanh":
        gate = np.tanh(sqrt(2 / pi) * (wide + 0.044715 * wide**3))
    else:
        gate = erf(wide * sqrt(0.5))
    return np.asarray(0.5 * wide * (1 + gate), x.dtype)


def _gelu(values: Sequence[Expr], attrs: Attrs) -> Expr:
    tanh = word(attrs, "approximate", "none") == "tanh"
    return maths.gelu_tanh(values[0]) if tanh else maths.gelu(values[0])


def _infer_gelu(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    if word(attrs, "approximate", "none") not in ("none", "tanh"):
        raise InvalidModelError(f"approximate is '{word(attrs, 'approximate')}', not none or tanh")
    return infer_float(types, attrs)


def _onnx_gelu(node: OnnxNode) -> str:
    return node.emit("gelu", [node.input(0)], approximate=node.word("approximate", "none"))


OPERATORS = (
    plain("sigmoid", "Sigmoid", _sigmoid_reference, maths.sigmoid, ElementCost.COSTLY),
    plain("softplus", "Softplus", _softplus_reference, maths.softplus, ElementCost.COSTLY),
    pointwise(
        "relu",
        1,
        _relu_reference,
        lambda values, _attrs: maths.maximum(values[0], zero(values[0])),
        (OnnxRule("Relu", same("relu")),),
        cost=ElementCost.CHEAP,
        idempotent=True,
    ),
    _activation(
        "leaky_relu",
        _leaky_relu_reference,
        _leaky_relu,
        OnnxRule("LeakyRelu", _with_numbers("leaky_relu", alpha=0.01)),
        ElementCost.CHEAP,
    ),
    _activation(
        "elu",
        _elu_reference,
        _elu,
        OnnxRule("Elu", _with_numbers("elu", alpha=1.0)),
        ElementCost.COSTLY,
    ),
    _activation(
        "selu",
        _selu_reference,
        _selu,
        OnnxRule(
            "Selu",
            _with_numbers("selu", alpha=1.67326319217681884766, gamma=1.05070102214813232422),
        ),
    ),
    _activation(
        "hard_sigmoid",
        _hard_sigmoid_reference,
        _hard_sigmoid,
        OnnxRule("HardSigmoid", _with_numbers("hard_sigmoid", alpha=0.2, beta=0.5)),
    ),
    pointwise(
        "gelu",
        1,
        _gelu_reference,
        _gelu,
        (OnnxRule("Gelu", _onnx_gelu), OnnxRule("Gelu", same("gelu"), "com.microsoft")),
        _infer_gelu,
        cost=ElementCost.COSTLY,
    ),
)


def _onnx_celu(node: OnnxNode) -> str:
    """Import Celu as alpha * elu(x / alpha).

    This rule replaces the function body in ONNX's schema, which would turn a scalar into a vector.
    """
    x = node.input(0)
    alpha = node.scalar(node.number("alpha", 1.0), node.type(x).dtype)
    inner = node.emit("elu", [node.emit("div", [x, alpha])], alpha=1.0)
    return node.emit("mul", [inner, alpha])


def _onnx_hard_swish(node: OnnxNode) -> str:
    """Import HardSwish as x * max(0, min(1, x / 6 + 1 / 2))."""
    x = node.input(0)
    return node.emit("mul", [x, node.emit("hard_sigmoid", [x], alpha=1 / 6, beta=0.5)])


def _onnx_swish(node: OnnxNode) -> str:
    """Import Swish as x * sigmoid(alpha x)."""
    x = node.input(0)
    alpha = node.number("alpha", 1.0)
    scaled = x if alpha == 1.0 else node.emit("mul", [x, node.scalar(alpha, node.type(x).dtype)])
    return node.emit("mul", [x, node.emit("sigmoid", [scaled])])


def _onnx_mish(node: OnnxNode) -> str:
    """Import Mish as x * tanh(softplus(x))."""
    x = node.input(0)
    return node.emit("mul", [x, node.emit("tanh", [node.emit("softplus", [x])])])


def _onnx_softsign(node: OnnxNode) -> str:
    """Import Softsign as x / (1 + |x|)."""
    x = node.input(0)
    one = node.scalar(1.0, node.type(x).dtype)
    return node.emit("div", [x, node.emit("add", [node.emit("abs", [x]), one])])


def _onnx_prelu(node: OnnxNode) -> str:
    """Import PRelu: x if x is not negative, else slope * x."""
    x, slope = node.input(0), node.input(1)
    zero = node.scalar(0, node.type(x).dtype)
    negative = node.emit("less", [x, zero])
    return node.emit("where", [negative, node.emit("mul", [x, slope]), x])


def _onnx_thresholded_relu(node: OnnxNode) -> str:
    """Import ThresholdedRelu: x if x is above alpha, else 0."""
    x = node.input(0)
    dtype = node.type(x).dtype
    above = node.emit("greater", [x, node.scalar(node.number("alpha", 1.0), dtype)])
    return node.emit("where", [above, x, node.scalar(0, dtype)])


RULES = (
    OnnxRule("Celu", _onnx_celu),
    OnnxRule("HardSwish", _onnx_hard_swish),
    OnnxRule("Swish", _onnx_swish),
    OnnxRule("Mish", _onnx_mish),
    OnnxRule("Softsign", _onnx_softsign),
    OnnxRule("PRelu", _onnx_prelu),
    OnnxRule("ThresholdedRelu", _onnx_thresholded_relu),
)
