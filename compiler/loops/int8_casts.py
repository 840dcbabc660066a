"""Removal of int8 conversions between quantisation and dequantisation inside a kernel.

Before: `cast<float32>(cast<int32>(cast<uint8>(rint(x) + 3)) - 3)`.
After:  `let r = rint(x): min(select(-3 < r, r, -3), 252)`.

A value that a kernel quantises to 8 bits and dequantises again stays a float: it is rounded and
clamped to the range of the 8-bit type, whose integers float32 represents exactly. NaN becomes the
smallest integer, as in the conversion.
"""

from __future__ import annotations

from math import isfinite

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.loops.elementary import less, minimum, select
from tilewright.compiler.loops.expr import Cast, Const, Expr, Op, Operation, constant
from tilewright.compiler.loops.rewriting import rewrite

_BYTES = (DType.UINT8, DType.INT8)
_EXACT = 2.0**24
"""Limit up to which float32 represents all integers exactly. The sum of two integers below half of
it is exact too."""


def remove_int8_casts(expr: Expr) -> Expr:
    """Return the expression without casts to uint8 or int8 whose results are cast back to float32.

    Each pair of casts is replaced by a clamp of the rounded float to the range of the 8-bit type.
    """
    return rewrite(expr, _widened)


def _widened(node: Expr) -> Expr | None:
    """Replace `float32(int32(uint8(x + c)) - z)` by a clamped float, if x is a rounded float.

    The replacement is x clamped to [low - c, high - c], plus c - z; [low, high] is the range of the
    8-bit type, uint8 or int8. Returns None for other nodes.
    """
    if not isinstance(node, Cast) or node.type is not DType.FLOAT32:
        return None
    value, zero = _less(node.value)
    while isinstance(value, Cast) and value.type in (DType.INT32, DType.INT16):
        value = value.value
    if not isinstance(value, Cast) or value.type not in _BYTES:
        return None
    whole, shift = _plus(value.value)
    if abs(zero) >= _EXACT / 2:
        return None
    if whole.dtype is not DType.FLOAT32 or not _is_rounded(whole):
        return None
    limits = np.iinfo(value.type.numpy)
    low = limits.min - shift
    clamped = minimum(
        select(less(low, whole), whole, constant(low, whole.dtype)), limits.max - shift
    )
    return clamped if shift == zero else clamped + (shift - zero)


def _less(value: Expr) -> tuple[Expr, float]:
    """Split an int32 expression `x - c` into x and the constant c; c is 0 for other expressions."""
    if value.dtype is not DType.INT32:
        return value, 0  # narrower integers wrap
    match value:
        case Op(operation=Operation.SUB, args=(left, Const(value=number))):
            return left, number
        case Op(operation=Operation.ADD, args=(left, Const(value=number))):
            return left, -number
    return value, 0


def _plus(value: Expr) -> tuple[Expr, float]:
    """Split a float expression `x + c` into x and the integer constant c.

    For other expressions, c is 0.
    """
    match value:
        case (
            Op(operation=Operation.ADD, args=(left, Const(value=number)))
            | Op(operation=Operation.ADD, args=(Const(value=number), left))
        ) if isfinite(number) and number == round(number) and abs(number) < _EXACT / 2:
            return left, number
    return value, 0


def _is_rounded(value: Expr) -> bool:
    return isinstance(value, Op) and value.operation is Operation.RINT
