"""Elementwise operators with one operand: arithmetic, Clip, IsNaN, IsInf and others."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import InvalidModelError
from tilewright.compiler.graph.ir import Attrs, attr
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.loops import maths, semantics
from tilewright.compiler.loops.expr import Const, Expr, Operation, constant, op
from tilewright.compiler.ops.attributes import integer, number, optional
from tilewright.compiler.ops.elementwise import discontinuous, floats_only, native, pointwise, same
from tilewright.compiler.ops.onnx_node import OnnxNode
from tilewright.compiler.ops.registry import ElementCost, OnnxRule, Operator
from tilewright.compiler.ops.shapes import operand_count

Function = Callable[[np.ndarray], np.ndarray]


def infer_float(types: Sequence[TensorType], _attrs: Attrs) -> TensorType:
    """Return the type of the single operand.

    Raises:
        InvalidModelError: if it is not a float, or there is another number of operands.
    """
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


def plain(
    name: str,
    op_type: str,
    function: Function,
    scalar: Callable[[Expr], Expr],
    cost: ElementCost = ElementCost.ORDINARY,
    *,
    idempotent: bool = False,
) -> Operator:
    """Declare an elementwise float operator with one operand and no attributes.

    Args:
        name: the operator's name.
        op_type: the ONNX operator that is imported as this operator.
        function: computes the operator on a NumPy array.
        scalar: returns the operator's expression for one element.
        cost: the cost class of computing one element.
        idempotent: whether applying the operator to its own result changes nothing.
    """
    return pointwise(
        name,
        1,
        lambda arrays, _attrs: function(arrays[0]),
        lambda values, _attrs: scalar(values[0]),
        (OnnxRule(op_type, same(name)),),
        infer_float,
        cost=cost,
        idempotent=idempotent,
    )


def _any_type(
    name: str, op_type: str, function: Function, operation: Operation, *, idempotent: bool = False
) -> Operator:
    """Declare an elementwise operator with one operand that also supports integers.

    Args:
        name: the operator's name.
        op_type: the ONNX operator that is imported as this operator.
        function: computes the operator on a NumPy array.
        operation: the native operation that computes one element.
        idempotent: whether applying the operator to its own result changes nothing.
    """
    return pointwise(
        name,
        1,
        lambda arrays, _attrs: function(arrays[0]),
        native(operation),
        (OnnxRule(op_type, same(name)),),
        cost=ElementCost.CHEAP,
        idempotent=idempotent,
    )


def zero(x: Expr) -> Expr:
    """Return the constant 0 in the type of `x`."""
    return Const(0, x.dtype)


def _sign(values: Sequence[Expr], _attrs: Attrs) -> Expr:
    (x,) = values
    one = constant(1, x.dtype)
    positive = op(Operation.LT, zero(x), x)
    if not x.dtype.is_signed:
        return maths.select(positive, one, zero(x))
    # 0 and NaN stay as they are.
    negative = maths.select(op(Operation.LT, x, zero(x)), constant(-1, x.dtype), x)
    return maths.select(positive, one, negative)


def _bound(attrs: Attrs, key: str, dtype: np.dtype[Any]) -> float | None:
    """Return the attribute `key` ("min" or "max") of a clip; None if it is missing.

    For an integer type, the bound is an exact integer, limited to the type's range.
    """
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
    # In this order, max wins if the range is empty.
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
            # The bounds are computed at run time; like in Clip, the lower one is applied first.
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


_ERF = np.frompyfunc(math.erf, 1, 1)


def erf(x: np.ndarray) -> np.ndarray:
    """Return the error function of each element, in float64.

    It calls `math.erf` for each element, because NumPy has no error function.
    """
    return np.asarray(_ERF(np.asarray(x, np.float64)), np.asarray(x).dtype)


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
    return TensorType(DType.BOOL, infer_float(types, attrs).shape)


OPERATORS = (
    _any_type("neg", "Neg", np.negative, Operation.NEG),
    _any_type("abs", "Abs", np.abs, Operation.ABS, idempotent=True),
    discontinuous(
        pointwise(
            "sign",
            1,
            lambda arrays, _attrs: np.sign(arrays[0]),
            _sign,
            (OnnxRule("Sign", same("sign")),),
            idempotent=True,
        )
    ),
    plain("exp", "Exp", np.exp, maths.exp, ElementCost.COSTLY),
    plain("log", "Log", np.log, maths.log, ElementCost.COSTLY),
    plain("sqrt", "Sqrt", np.sqrt, maths.sqrt, ElementCost.COSTLY),
    plain("reciprocal", "Reciprocal", np.reciprocal, _reciprocal, ElementCost.COSTLY),
    plain("erf", "Erf", erf, maths.erf, ElementCost.COSTLY),
    discontinuous(
        plain("floor", "Floor", np.floor, lambda x: op(Operation.FLOOR, x), idempotent=True)
    ),
    discontinuous(plain("ceil", "Ceil", np.ceil, lambda x: op(Operation.CEIL, x), idempotent=True)),
    discontinuous(
        plain("round", "Round", np.rint, lambda x: op(Operation.RINT, x), idempotent=True)
    ),
    pointwise(
        "clip",
        1,
        _clip_reference,
        _clip,
        (OnnxRule("Clip", _onnx_clip),),
        _infer_clip,
        cost=ElementCost.CHEAP,
    ),
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
