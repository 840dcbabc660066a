"""Translation rules for elementwise ATen functions that ONNX lacks, to several ONNX operators."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from tilewright.compiler.bindings.torch.rules.elementwise import Given, overloads, truncated
from tilewright.compiler.bindings.torch.symbolic import NotTranslatedError
from tilewright.compiler.bindings.torch.translation import Rule, Translator

aten = torch.ops.aten


def _trunc(t: Translator, node: fx.Node, x: fx.Node) -> str:
    value = t.value(x)
    return truncated(t, value, t.dtype(node)) if t.dtype(node).is_floating_point else value


def _expm1(t: Translator, node: fx.Node, x: fx.Node) -> str:
    """Translate exp(x) - 1 as tanh(x / 2) (exp(x) + 1), which loses no precision near 0."""
    dtype = t.dtype(node)
    value = t.value(x, dtype)
    half = t.op("Tanh", t.op("Mul", value, t.constant(0.5, dtype)))
    return t.op("Mul", half, t.op("Add", t.op("Exp", value), t.constant(1, dtype)))


def _log1p(t: Translator, node: fx.Node, x: fx.Node) -> str:
    """Translate log(1 + x).

    Near 0, where 1 + x would lose precision, it becomes 2 atanh(x / (x + 2)).
    """
    dtype = t.dtype(node)
    value, one = t.value(x, dtype), t.constant(1, dtype)
    part = t.op("Div", value, t.op("Add", value, t.constant(2, dtype)))
    small = t.op("Mul", t.op("Atanh", part), t.constant(2, dtype))
    near = t.op("Less", t.op("Abs", value), t.constant(0.5, dtype))
    return t.op("Where", near, small, t.op("Log", t.op("Add", value, one)))


def _log_of_base(base: float) -> Rule:
    def rule(t: Translator, node: fx.Node, x: fx.Node) -> str:
        dtype = t.dtype(node)
        return t.op("Mul", t.op("Log", t.value(x, dtype)), t.constant(1 / math.log(base), dtype))

    return rule


def _exp2(t: Translator, node: fx.Node, x: fx.Node) -> str:
    dtype = t.dtype(node)
    return t.op("Pow", t.constant(2, dtype), t.value(x, dtype))


def _is_negative(t: Translator, value: str, dtype: Any) -> str:
    """Emit a test of a float's sign bit, which is also set for -0, and return its name."""
    zero = t.constant(0, dtype)
    return t.op("Or", t.op("Less", value, zero), t.op("Less", t.op("Reciprocal", value), zero))


def _signbit(t: Translator, node: fx.Node, x: fx.Node) -> str:
    dtype = t.dtype(x)
    if dtype is torch.bool:
        raise NotTranslatedError("of booleans")
    if dtype.is_floating_point:
        return _is_negative(t, t.value(x), dtype)
    return t.op("Less", t.value(x), t.constant(0, dtype))


def _copysign(t: Translator, node: fx.Node, x: Given, sign: Given) -> str:
    dtype = t.dtype(node)
    size = t.op("Abs", t.value(x, dtype))
    negative = _is_negative(t, t.value(sign, dtype), dtype)
    return t.op("Where", negative, t.op("Neg", size), size)


def _atan2(t: Translator, node: fx.Node, y: Given, x: Given) -> str:
    dtype = t.dtype(node)
    return angle_of(t, t.value(y, dtype), t.value(x, dtype), dtype)


def _angle(t: Translator, node: fx.Node, x: fx.Node) -> str:
    """Translate the angle of a real number: pi if it is negative, 0 otherwise, and NaN for NaN."""
    dtype = t.dtype(node)
    value = t.value(x, dtype)
    zero, half = t.constant(0, dtype), t.constant(math.pi, dtype)
    above = t.op("Where", t.op("IsNaN", value), value, zero)
    return t.op("Where", t.op("Less", value, zero), half, above)


def angle_of(t: Translator, first: str, second: str, dtype: Any) -> str:
    """Emit atan2(first, second), and return its name: the angle of the point (x=second, y=first).

    The angle is atan(first / second), plus or minus pi if `second` is negative.
    """
    endless = t.op("And", t.op("IsInf", first), t.op("IsInf", second))
    first = t.op("Where", endless, t.op("Sign", first), first)
    second = t.op("Where", endless, t.op("Sign", second), second)
    zero = t.constant(0, dtype)
    none = t.op("And", t.op("Equal", first, zero), t.op("Equal", second, zero))
    angle = t.op("Where", none, first, t.op("Atan", t.op("Div", first, second)))
    above, below = t.constant(math.pi, dtype), t.constant(-math.pi, dtype)
    half = t.op("Where", _is_negative(t, first, dtype), below, above)
    turned = t.op("Add", angle, half)
    return t.op("Where", _is_negative(t, second, dtype), turned, angle)


def _fmod(t: Translator, node: fx.Node, left: Given, right: Given) -> str:
    dtype = t.dtype(node)
    return t.op("Mod", t.value(left, dtype), t.value(right, dtype), fmod=1)


def _number_if_any(kind: str) -> Rule:
    """Return a translation rule for `fmax` or `fmin`; `kind` is `Max` or `Min`.

    If one operand is NaN, the result is the other operand.
    """

    def rule(t: Translator, node: fx.Node, left: Given, right: Given) -> str:
        dtype = t.dtype(node)
        first, second = t.value(left, dtype), t.value(right, dtype)
        if not dtype.is_floating_point:
            return t.op(kind, first, second)
        known = t.op("Where", t.op("IsNaN", second), first, t.op(kind, first, second))
        return t.op("Where", t.op("IsNaN", first), second, known)

    return rule


def _rounded(t: Translator, node: fx.Node, x: fx.Node, decimals: int = 0) -> str:
    """Translate rounding to `decimals` decimal places; -1 rounds to tens, -2 to hundreds."""
    dtype, value = t.dtype(node), t.value(x)
    if not dtype.is_floating_point:
        raise NotTranslatedError("of integers")
    if not decimals:
        return t.op("Round", value)
    there, back = ("Mul", "Div") if decimals > 0 else ("Div", "Mul")
    factor = t.constant(10.0 ** abs(decimals), dtype)
    return t.op(back, t.op("Round", t.op(there, value, factor)), factor)


RULES: dict[Any, Rule] = {
    aten.trunc.default: _trunc,
    aten.expm1.default: _expm1,
    aten.log1p.default: _log1p,
    aten.log2.default: _log_of_base(2),
    aten.log10.default: _log_of_base(10),
    aten.exp2.default: _exp2,
    aten.signbit.default: _signbit,
    aten.round.decimals: _rounded,
    aten.atan2.default: _atan2,
    aten.angle.default: _angle,
    **dict.fromkeys(overloads("copysign"), _copysign),
    **dict.fromkeys(overloads("fmod"), _fmod),
    aten.fmax.default: _number_if_any("Max"),
    aten.fmin.default: _number_if_any("Min"),
}
