"""Elementwise operators of one operand: arithmetic and activations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from math import pi, sqrt
from typing import Any

import numpy as np

from compiler.dtypes import DType
from compiler.errors import InvalidModelError
from compiler.graph.ir import Attrs, attr
from compiler.graph.types import TensorType
from compiler.loops import maths, semantics
from compiler.loops.expr import Const, Expr, Operation, constant, op
from compiler.ops.attributes import integer, number, optional, word
from compiler.ops.elementwise import Scalar, floats_only, native, pointwise, same
from compiler.ops.onnx_node import OnnxNode
from compiler.ops.registry import OnnxRule, Operator, Reference
from compiler.ops.shapes import operand_count

Function = Callable[[np.ndarray], np.ndarray]


def _infer_float(types: Sequence[TensorType], _attrs: Attrs) -> TensorType:
    operand_count(types, 1)
    floats_only(types)
    return types[0]


def _infer_clip(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    operand_count(types, 1)
    optional(attrs, "min")
    optional(attrs, "max")
    if types[0].dtype is DType.BOOL:
        raise InvalidModelError("element type bool where a number is needed")
    return types[0]


def _activation(name: str, reference: Reference, scalar: Scalar, *onnx: OnnxRule) -> Operator:
    return pointwise(name, 1, reference, scalar, onnx, _infer_float)


def _plain(name: str, op_type: str, function: Function, scalar: Callable[[Expr], Expr]) -> Operator:
    """A float function without attributes."""
    return _activation(
        name,
        lambda arrays, _attrs: function(arrays[0]),
        lambda values, _attrs: scalar(values[0]),
        OnnxRule(op_type, same(name)),
    )


def _any_type(name: str, op_type: str, function: Function, operation: Operation) -> Operator:
    """A native operation that integers have too."""
    return pointwise(
        name,
        1,
        lambda arrays, _attrs: function(arrays[0]),
        native(operation),
        (OnnxRule(op_type, same(name)),),
    )


def _with_numbers(op_name: str, **defaults: float) -> Callable[[OnnxNode], str]:
    """An ONNX operator of one operand whose float attributes keep their names."""

    def emit(node: OnnxNode) -> str:
        attrs = {key: node.number(key, default) for key, default in defaults.items()}
        return node.emit(op_name, [node.input(0)], **attrs)

    return emit


def _zero(x: Expr) -> Expr:
    return Const(0, x.dtype)


def _sign(values: Sequence[Expr], _attrs: Attrs) -> Expr:
    (x,) = values
    one = constant(1, x.dtype)
    positive = op(Operation.LT, _zero(x), x)
    if not x.dtype.is_signed:
        return maths.select(positive, one, _zero(x))
    # 0 and NaN give themselves
    negative = maths.select(op(Operation.LT, x, _zero(x)), constant(-1, x.dtype), x)
    return maths.select(positive, one, negative)


def _relu_reference(arrays: Sequence[np.ndarray], _attrs: Attrs) -> np.ndarray:
    return np.asarray(np.maximum(arrays[0], arrays[0].dtype.type(0)))


def _leaky_relu_reference(arrays: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    x = arrays[0]
    return np.where(x < 0, x * x.dtype.type(number(attrs, "alpha", 0.01)), x)


def _leaky_relu(values: Sequence[Expr], attrs: Attrs) -> Expr:
    (x,) = values
    return maths.select(op(Operation.LT, x, _zero(x)), x * number(attrs, "alpha", 0.01), x)


def _elu_reference(arrays: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    x = arrays[0]
    alpha = x.dtype.type(number(attrs, "alpha", 1.0))
    return np.where(x < 0, alpha * np.expm1(np.minimum(x, 0)), x)


def _elu(values: Sequence[Expr], attrs: Attrs) -> Expr:
    (x,) = values
    below = maths.expm1(x) * number(attrs, "alpha", 1.0)
    return maths.select(op(Operation.LT, x, _zero(x)), below, x)


def _selu_reference(arrays: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    x = arrays[0]
    alpha, gamma = (x.dtype.type(number(attrs, key)) for key in ("alpha", "gamma"))
    return np.asarray(gamma * np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0))))


def _selu(values: Sequence[Expr], attrs: Attrs) -> Expr:
    (x,) = values
    below = maths.expm1(x) * number(attrs, "alpha")
    return maths.select(op(Operation.LT, _zero(x), x), x, below) * number(attrs, "gamma")


def _bound(attrs: Attrs, key: str, dtype: np.dtype[Any]) -> float | None:
    """A bound of clip within what the type holds; exact for integers."""
    value = attr(attrs, key)
    if value is None:
        return None
    if dtype.kind == "f":
        return number(attrs, key)
    limits = np.iinfo(dtype)
    if not isinstance(value, int):
        whole = number(attrs, key)
        value = int(whole) if abs(whole) < 2.0**63 else int(limits.max if whole > 0 else limits.min)
    return min(max(value, int(limits.min)), int(limits.max))


def _clip_reference(arrays: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    x = arrays[0]
    low, high = (_bound(attrs, key, x.dtype) for key in ("min", "max"))
    # in this order, so that max wins where the range is empty
    if low is not None:
        x = np.maximum(x, np.asarray(low, x.dtype))
    if high is not None:
        x = np.minimum(x, np.asarray(high, x.dtype))
    return np.asarray(x)


def _clip(values: Sequence[Expr], attrs: Attrs) -> Expr:
    (x,) = values
    kind = semantics.compute_type(x.dtype)
    low, high = (_bound(attrs, key, kind) for key in ("min", "max"))
    if low is not None:
        x = maths.maximum(x, Const(low, x.dtype))
    if high is not None:
        x = maths.minimum(x, Const(high, x.dtype))
    return x


def _onnx_clip(node: OnnxNode) -> str:
    x = node.input(0)
    bounds: dict[str, float | None] = {}
    for position, key in ((1, "min"), (2, "max")):
        if key in node.attrs:
            bounds[key] = node.number(key)
            continue
        value = node.optional(position)
        if value is None:
            continue
        array = node.builder.constants.get(value)
        if array is None or node.type(x).dtype is DType.BFLOAT16:
            # bounds computed at run time: max first, as the order of Clip is
            return _dynamic_clip(node, x)
        if array.size != 1:
            raise node.invalid(f"{key} is not a scalar")
        bounds[key] = array.reshape(-1)[0].item()
    return node.emit("clip", [x], **bounds)


def _dynamic_clip(node: OnnxNode, x: str) -> str:
    low, high = node.optional(1), node.optional(2)
    if low is not None:
        x = node.emit("max", [x, low])
    return x if high is None else node.emit("min", [x, high])


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


_ERF = np.frompyfunc(math.erf, 1, 1)


def erf(x: np.ndarray) -> np.ndarray:
    """The error function, in float64: NumPy has none, so Python's is called for each element."""
    return np.asarray(_ERF(np.asarray(x, np.float64)), np.asarray(x).dtype)


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
    return _infer_float(types, attrs)


def _onnx_gelu(node: OnnxNode) -> str:
    return node.emit("gelu", [node.input(0)], approximate=node.word("approximate", "none"))


def _reciprocal(x: Expr) -> Expr:
    return constant(1.0, x.dtype) / x


def _is_inf(values: Sequence[Expr], attrs: Attrs) -> Expr:
    (x,) = values
    positive = op(Operation.EQ, x, Const(math.inf, x.dtype))
    negative = op(Operation.EQ, x, Const(-math.inf, x.dtype))
    if not integer(attrs, "positive", 1):
        return negative
    return op(Operation.OR, positive, negative) if integer(attrs, "negative", 1) else positive


def _is_inf_reference(arrays: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    x = arrays[0]
    found = np.zeros(x.shape, bool)
    if integer(attrs, "positive", 1):
        found = found | (x == np.inf)
    return found | (x == -np.inf) if integer(attrs, "negative", 1) else found


def _onnx_is_inf(node: OnnxNode) -> str:
    positive, negative = (node.integer(f"detect_{key}", 1) for key in ("positive", "negative"))
    x = node.input(0)
    if not positive and not negative:
        return node.constant(np.zeros(node.shape(x), bool))
    return node.emit("is_inf", [x], positive=int(positive != 0), negative=int(negative != 0))


def _is_nan(values: Sequence[Expr], _attrs: Attrs) -> Expr:
    return op(Operation.NE, values[0], values[0])


def _infer_bool(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    return TensorType(DType.BOOL, _infer_float(types, attrs).shape)


OPERATORS = (
    _any_type("neg", "Neg", np.negative, Operation.NEG),
    _any_type("abs", "Abs", np.abs, Operation.ABS),
    pointwise(
        "sign",
        1,
        lambda arrays, _attrs: np.sign(arrays[0]),
        _sign,
        (OnnxRule("Sign", same("sign")),),
    ),
    _plain("exp", "Exp", np.exp, maths.exp),
    _plain("log", "Log", np.log, maths.log),
    _plain("sqrt", "Sqrt", np.sqrt, maths.sqrt),
    _plain("reciprocal", "Reciprocal", np.reciprocal, _reciprocal),
    _plain("sin", "Sin", np.sin, maths.sin),
    _plain("cos", "Cos", np.cos, maths.cos),
    _plain("tanh", "Tanh", np.tanh, maths.tanh),
    _plain("erf", "Erf", erf, maths.erf),
    _plain("sigmoid", "Sigmoid", _sigmoid_reference, maths.sigmoid),
    _plain("softplus", "Softplus", _softplus_reference, maths.softplus),
    _plain("floor", "Floor", np.floor, lambda x: op(Operation.FLOOR, x)),
    _plain("ceil", "Ceil", np.ceil, lambda x: op(Operation.CEIL, x)),
    _plain("round", "Round", np.rint, lambda x: op(Operation.RINT, x)),
    pointwise(
        "relu",
        1,
        _relu_reference,
        lambda values, _attrs: maths.maximum(values[0], _zero(values[0])),
        (OnnxRule("Relu", same("relu")),),
    ),
    _activation(
        "leaky_relu",
        _leaky_relu_reference,
        _leaky_relu,
        OnnxRule("LeakyRelu", _with_numbers("leaky_relu", alpha=0.01)),
    ),
    _activation("elu", _elu_reference, _elu, OnnxRule("Elu", _with_numbers("elu", alpha=1.0))),
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
    ),
    pointwise("clip", 1, _clip_reference, _clip, (OnnxRule("Clip", _onnx_clip),), _infer_clip),
    pointwise(
        "is_inf",
        1,
        _is_inf_reference,
        _is_inf,
        (OnnxRule("IsInf", _onnx_is_inf),),
        _infer_bool,
    ),
    pointwise(
        "is_nan",
        1,
        lambda arrays, _attrs: np.isnan(arrays[0]),
        _is_nan,
        (OnnxRule("IsNaN", same("is_nan")),),
        _infer_bool,
    ),
)


def _onnx_hard_swish(node: OnnxNode) -> str:
    """x * max(0, min(1, x / 6 + 1 / 2))"""
    x = node.input(0)
    return node.emit("mul", [x, node.emit("hard_sigmoid", [x], alpha=1 / 6, beta=0.5)])


def _onnx_swish(node: OnnxNode) -> str:
    """x * sigmoid(alpha x)"""
    x = node.input(0)
    alpha = node.number("alpha", 1.0)
    scaled = x if alpha == 1.0 else node.emit("mul", [x, node.scalar(alpha, node.type(x).dtype)])
    return node.emit("mul", [x, node.emit("sigmoid", [scaled])])


def _onnx_mish(node: OnnxNode) -> str:
    """x * tanh(softplus(x))"""
    x = node.input(0)
    return node.emit("mul", [x, node.emit("tanh", [node.emit("softplus", [x])])])


def _onnx_softsign(node: OnnxNode) -> str:
    """x / (1 + |x|)"""
    x = node.input(0)
    one = node.scalar(1.0, node.type(x).dtype)
    return node.emit("div", [x, node.emit("add", [node.emit("abs", [x]), one])])


def _onnx_prelu(node: OnnxNode) -> str:
    """x where it is not negative, else slope * x"""
    x, slope = node.input(0), node.input(1)
    zero = node.scalar(0, node.type(x).dtype)
    negative = node.emit("less", [x, zero])
    return node.emit("where", [negative, node.emit("mul", [x, slope]), x])


def _onnx_thresholded_relu(node: OnnxNode) -> str:
    """x where it is above alpha, else 0"""
    x = node.input(0)
    dtype = node.type(x).dtype
    above = node.emit("greater", [x, node.scalar(node.number("alpha", 1.0), dtype)])
    return node.emit("where", [above, x, node.scalar(0, dtype)])


RULES = (
    OnnxRule("HardSwish", _onnx_hard_swish),
    OnnxRule("Swish", _onnx_swish),
    OnnxRule("Mish", _onnx_mish),
    OnnxRule("Softsign", _onnx_softsign),
    OnnxRule("PRelu", _onnx_prelu),
    OnnxRule("ThresholdedRelu", _onnx_thresholded_relu),
)
