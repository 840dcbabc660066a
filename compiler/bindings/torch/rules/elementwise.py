"""Translation rules to ONNX for elementwise ATen operators."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import fx

from tilewright.compiler.bindings.torch.symbolic import NotTranslatedError
from tilewright.compiler.bindings.torch.translation import Rule, Translator

aten = torch.ops.aten
Given: TypeAlias = "fx.Node | float"


def _unary(kind: str, **attributes: Any) -> Rule:
    """Return a translation rule to the unary ONNX operator `kind`.

    The operand is cast to the result's type: for example, an integer becomes a float before its
    sine.
    """

    def rule(t: Translator, node: fx.Node, x: fx.Node) -> str:
        return t.op(kind, t.value(x, t.dtype(node)), **attributes)

    return rule


_TRUTHS = {"Add": "Or", "Max": "Or", "Mul": "And", "Min": "And"}
"""Boolean operators that replace ONNX's arithmetic operators for booleans. In PyTorch, True + True
is True."""


def _binary(kind: str) -> Rule:
    """Return a translation rule to the binary ONNX operator `kind`.

    The operands are cast to the result's type, and the second one is multiplied by PyTorch's
    argument `alpha`. For booleans, `Or` and `And` replace arithmetic.
    """

    def rule(t: Translator, node: fx.Node, left: Given, right: Given, alpha: float = 1) -> str:
        dtype = t.dtype(node)
        second = t.value(right, dtype)
        if dtype is torch.bool:
            if alpha != 1 or kind not in _TRUTHS:
                raise NotTranslatedError("of booleans")
            return t.op(_TRUTHS[kind], t.value(left, dtype), second)
        if alpha != 1:
            second = t.op("Mul", second, t.value(alpha, dtype))
        return t.op(kind, t.value(left, dtype), second)

    return rule


def common_type(t: Translator, left: Given, right: Given) -> Any:
    """Return the type to which PyTorch casts both operands of a comparison."""
    given = [each.meta["val"] if isinstance(each, fx.Node) else each for each in (left, right)]
    # sizes count as plain numbers
    given = [int(each.node.hint) if isinstance(each, torch.SymInt) else each for each in given]
    return torch.result_type(*given)


def _comparison(kind: str, *, negated: bool = False) -> Rule:
    def rule(t: Translator, node: fx.Node, left: Given, right: Given) -> str:
        dtype = common_type(t, left, right)
        if dtype is torch.bool and kind != "Equal":
            dtype = torch.int32
        found = t.op(kind, t.value(left, dtype), t.value(right, dtype))
        return t.op("Not", found) if negated else found

    return rule


def _sub_from(t: Translator, node: fx.Node, x: fx.Node, other: Given, alpha: float = 1) -> str:
    dtype = t.dtype(node)
    first = t.value(x, dtype)
    if alpha != 1:
        first = t.op("Mul", first, t.value(alpha, dtype))
    return t.op("Sub", t.value(other, dtype), first)


def _divided(
    t: Translator, node: fx.Node, left: Given, right: Given, rounding_mode: str | None = None
) -> str:
    dtype = t.dtype(node)
    first, second = t.value(left, dtype), t.value(right, dtype)
    quotient = t.op("Div", first, second)
    if rounding_mode is None:
        return quotient
    if dtype.is_floating_point:
        if rounding_mode == "floor":
            return _whole_quotient(t, dtype, first, second, quotient)
        return truncated(t, quotient, dtype)
    if rounding_mode == "trunc" or not dtype.is_signed:
        return quotient
    # ONNX rounds towards zero: subtract one if there is a remainder and the signs differ
    rest = t.op("Sub", first, t.op("Mul", quotient, second))
    zero = t.constant(0, dtype)
    negative = t.op("Less", t.op("Mul", rest, second), zero)
    return t.op("Sub", quotient, t.cast(negative, dtype))


def truncated(t: Translator, value: str, dtype: Any) -> str:
    """Emit the rounding of a float value towards zero, and return the name of the result."""
    below = t.op("Less", value, t.constant(0, dtype))
    return t.op("Where", below, t.op("Ceil", value), t.op("Floor", value))


def _floor_divided(t: Translator, node: fx.Node, left: Given, right: Given) -> str:
    return _divided(t, node, left, right, "floor")


def _remainder(t: Translator, node: fx.Node, left: Given, right: Given) -> str:
    dtype = t.dtype(node)
    first, second = t.value(left, dtype), t.value(right, dtype)
    if not dtype.is_floating_point:
        return t.op("Mod", first, second)
    rest, moved = _rest(t, dtype, first, second)
    return t.op("Where", moved, t.op("Add", rest, second), rest)


def _rest(t: Translator, dtype: Any, first: str, second: str) -> tuple[str, str]:
    """Emit the remainder of a float division, with the sign of the dividend.

    Return the names of two values: the remainder, and a boolean that is true if the remainder is
    not 0 and its sign differs from the divisor's. The remainder is exact, as in PyTorch. The
    formula `x - floor(x / y) * y` is not exact: for x = 1 and y = 0.1, it gives 0, although the
    remainder is almost 0.1.
    """
    rest, zero = t.op("Mod", first, second, fmod=1), t.constant(0, dtype)
    differ = t.op("Xor", t.op("Less", rest, zero), t.op("Less", second, zero))
    return rest, t.op("And", differ, t.op("Not", t.op("Equal", rest, zero)))


def _whole_quotient(t: Translator, dtype: Any, first: str, second: str, quotient: str) -> str:
    """Emit floor(first / second) for floats, with the same result as PyTorch.

    The remainder is subtracted from the dividend before the division, and the result is rounded to
    an integer. For a divisor of 0, the result is `quotient`, the float quotient without rounding.
    """
    rest, moved = _rest(t, dtype, first, second)
    whole = t.op("Round", t.op("Div", t.op("Sub", first, rest), second))
    found = t.op("Sub", whole, t.cast(moved, dtype))
    return t.op("Where", t.op("Equal", second, t.constant(0, dtype)), quotient, found)


def _logical(kind: str) -> Rule:
    def rule(t: Translator, node: fx.Node, left: Given, right: Given) -> str:
        kinds = t.dtype(node) if kind.startswith("Bitwise") else torch.bool
        name = kind.removeprefix("Bitwise") if kinds is torch.bool else kind
        return t.op(name, t.value(left, kinds), t.value(right, kinds))

    return rule


def _not(t: Translator, node: fx.Node, x: fx.Node) -> str:
    if t.dtype(node) is torch.bool:
        return t.op("Not", t.value(x, torch.bool))
    return t.op("BitwiseNot", t.value(x))


def _power(t: Translator, node: fx.Node, base: Given, exponent: Given) -> str:
    dtype = t.dtype(node)
    value = t.value(base, dtype)
    if exponent == 2 and isinstance(base, fx.Node):
        return t.op("Mul", value, value)
    if exponent == 1:
        return value
    return t.op("Pow", value, t.value(exponent, dtype))


def _rounded(t: Translator, node: fx.Node, x: fx.Node) -> str:
    return t.op("Round", t.value(x)) if t.dtype(x).is_floating_point else t.value(x)


def _rsqrt(t: Translator, node: fx.Node, x: fx.Node) -> str:
    root = t.op("Sqrt", t.value(x, t.dtype(node)))
    return t.op("Reciprocal", root)


def _gelu(t: Translator, node: fx.Node, x: fx.Node, approximate: str = "none") -> str:
    return t.op("Gelu", t.value(x), approximate=approximate)


def _silu(t: Translator, node: fx.Node, x: fx.Node) -> str:
    return t.op("Mul", t.value(x), t.op("Sigmoid", t.value(x)))


def _clamped(
    t: Translator, node: fx.Node, x: fx.Node, low: Given | None = None, high: Given | None = None
) -> str:
    dtype, value = t.dtype(node), t.value(x, t.dtype(node))
    if isinstance(low, fx.Node) or isinstance(high, fx.Node):
        if low is not None:
            value = t.op("Max", value, t.value(low, dtype))
        return value if high is None else t.op("Min", value, t.value(high, dtype))
    bounds = [None if each is None else _bound(t, each, dtype) for each in (low, high)]
    return t.op("Clip", value, *bounds)


def _bound(t: Translator, value: float, dtype: Any) -> str | None:
    if math.isinf(value) and not dtype.is_floating_point:
        return None
    return t.constant(value, dtype)


def _hardtanh(t: Translator, node: fx.Node, x: fx.Node, low: float = -1, high: float = 1) -> str:
    return _clamped(t, node, x, low, high)


def _relu6(t: Translator, node: fx.Node, x: fx.Node) -> str:
    return _clamped(t, node, x, 0, 6)


def _leaky_relu(t: Translator, node: fx.Node, x: fx.Node, negative_slope: float = 0.01) -> str:
    return t.op("LeakyRelu", t.value(x), alpha=float(negative_slope))


def _elu(
    t: Translator, node: fx.Node, x: fx.Node, alpha: float = 1, scale: float = 1, step: float = 1
) -> str:
    if step != 1:
        raise NotTranslatedError(f"input_scale {step}")
    found = t.op("Elu", t.value(x), alpha=float(alpha))
    return found if scale == 1 else t.op("Mul", found, t.value(scale, t.dtype(node)))


def _softplus(
    t: Translator, node: fx.Node, x: fx.Node, beta: float = 1, threshold: float = 20
) -> str:
    if beta != 1:
        raise NotTranslatedError(f"beta {beta}")
    value = t.value(x)
    found = t.op("Softplus", value)
    if threshold >= 20:  # both equal the number itself there, also in float32
        return found
    above = t.op("Greater", value, t.constant(threshold, t.dtype(x)))
    return t.op("Where", above, value, found)


def _prelu(t: Translator, node: fx.Node, x: fx.Node, weight: fx.Node) -> str:
    """Translate PReLU. `weight` has the same rank as x, so ONNX broadcasts it as PyTorch does."""
    return t.op("PRelu", t.value(x), t.value(weight))


def _where(t: Translator, node: fx.Node, seen: fx.Node, x: Given, y: Given) -> str:
    dtype = t.dtype(node)
    condition = t.value(seen, torch.bool)
    return t.op("Where", condition, t.value(x, dtype), t.value(y, dtype))


def _masked_fill(t: Translator, node: fx.Node, x: fx.Node, mask: fx.Node, value: Given) -> str:
    return _where(t, node, mask, value, x)


def _converted(t: Translator, node: fx.Node, x: fx.Node, *_: Any, **__: Any) -> str:
    return t.value(x, t.dtype(node))


def _same(t: Translator, node: fx.Node, x: fx.Node, *_: Any, **__: Any) -> str:
    return t.value(x)


def _copied(t: Translator, node: fx.Node, x: fx.Node, source: fx.Node, *_: Any) -> str:
    value = t.value(source, t.dtype(node))
    if t.shape(source) == t.shape(node):
        return value
    return t.op("Expand", value, t.numbers(t.shape(node)))


def _addc(kind: str) -> Rule:
    def rule(
        t: Translator, node: fx.Node, x: fx.Node, a: fx.Node, b: fx.Node, value: float = 1
    ) -> str:
        dtype = t.dtype(node)
        term = t.op(kind, t.value(a, dtype), t.value(b, dtype))
        if value != 1:
            term = t.op("Mul", term, t.value(value, dtype))
        return t.op("Add", t.value(x, dtype), term)

    return rule


_UNARY = {
    "relu": "Relu",
    "sigmoid": "Sigmoid",
    "tanh": "Tanh",
    "exp": "Exp",
    "log": "Log",
    "sqrt": "Sqrt",
    "neg": "Neg",
    "abs": "Abs",
    "erf": "Erf",
    "sin": "Sin",
    "cos": "Cos",
    "tan": "Tan",
    "asin": "Asin",
    "acos": "Acos",
    "atan": "Atan",
    "sinh": "Sinh",
    "cosh": "Cosh",
    "asinh": "Asinh",
    "acosh": "Acosh",
    "atanh": "Atanh",
    "floor": "Floor",
    "ceil": "Ceil",
    "sign": "Sign",
    "reciprocal": "Reciprocal",
    "hardswish": "HardSwish",
    "mish": "Mish",
}
_COMPARISONS = {
    "eq": ("Equal", False),
    "ne": ("Equal", True),
    "lt": ("Less", False),
    "le": ("LessOrEqual", False),
    "gt": ("Greater", False),
    "ge": ("GreaterOrEqual", False),
}
_LOGICAL = {
    "logical_and": "And",
    "logical_or": "Or",
    "logical_xor": "Xor",
    "bitwise_and": "BitwiseAnd",
    "bitwise_or": "BitwiseOr",
    "bitwise_xor": "BitwiseXor",
}
_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "add": _binary("Add"),
    "sub": _binary("Sub"),
    "mul": _binary("Mul"),
    "div": _divided,
    "remainder": _remainder,
    "maximum": _binary("Max"),
    "minimum": _binary("Min"),
    "pow": _power,
    "rsub": _sub_from,
}


def overloads(name: str) -> list[Any]:
    """Return those overloads of an ATen operator that return a new tensor, such as `add.Tensor`."""
    packet = getattr(aten, name)
    forms: tuple[str, ...] = (
        "default",
        "Tensor",
        "Scalar",
        "Tensor_Tensor",
        "Tensor_Scalar",
        "Tensor_mode",
    )
    forms += ("Scalar_mode",)
    return [getattr(packet, form) for form in forms if form in packet.overloads()]


_SAME = (
    aten.clone.default,
    aten.alias.default,
    aten.detach.default,
    aten.contiguous.default,
    aten.lift_fresh.default,
    aten.lift_fresh_copy.default,
)

RULES: dict[Any, Rule] = {
    **{form: _unary(kind) for name, kind in _UNARY.items() for form in overloads(name)},
    **{
        form: _comparison(kind, negated=negated)
        for name, (kind, negated) in _COMPARISONS.items()
        for form in overloads(name)
    },
    **{form: _logical(kind) for name, kind in _LOGICAL.items() for form in overloads(name)},
    **{form: rule for name, rule in _ARITHMETIC.items() for form in overloads(name)},
    aten.pow.Scalar: _power,
    aten.floor_divide.default: _floor_divided,
    aten.bitwise_not.default: _not,
    aten.logical_not.default: lambda t, node, x: t.op("Not", t.value(x, torch.bool)),
    aten.round.default: _rounded,
    aten.rsqrt.default: _rsqrt,
    aten._neg_view.default: _unary("Neg"),
    aten.gelu.default: _gelu,
    aten.silu.default: _silu,
    aten.hardsigmoid.default: _unary("HardSigmoid", alpha=1 / 6, beta=0.5),
    aten.hardtanh.default: _hardtanh,
    aten.relu6.default: _relu6,
    aten.leaky_relu.default: _leaky_relu,
    aten.elu.default: _elu,
    aten.softplus.default: _softplus,
    aten._prelu_kernel.default: _prelu,
    aten.clamp.default: _clamped,
    aten.clamp.Tensor: _clamped,
    aten.clamp_min.default: lambda t, node, x, low: _clamped(t, node, x, low),
    aten.clamp_max.default: lambda t, node, x, high: _clamped(t, node, x, None, high),
    aten.where.self: _where,
    aten.where.ScalarSelf: _where,
    aten.where.ScalarOther: _where,
    aten.where.Scalar: _where,
    aten.masked_fill.Scalar: _masked_fill,
    aten.masked_fill.Tensor: _masked_fill,
    aten.addcmul.default: _addc("Mul"),
    aten.addcdiv.default: _addc("Div"),
    aten.isnan.default: lambda t, node, x: t.op("IsNaN", t.value(x)),
    aten.isinf.default: lambda t, node, x: t.op("IsInf", t.value(x)),
    aten._to_copy.default: _converted,
    torch.ops.prims.convert_element_type.default: _converted,
    aten.copy.default: _copied,
    **dict.fromkeys(_SAME, _same),
}
