"""Semantics of every operation in NumPy: the reference for generated code.

Values are NumPy scalars or arrays of the expression's type. float16 is computed in its own NumPy
type, bfloat16 in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, assert_never

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.loops.expr import (
    Accumulator,
    Cast,
    Combiner,
    Const,
    Expr,
    Fold,
    Incoming,
    IndexValue,
    Items,
    Load,
    Op,
    Operation,
    Reduce,
    Tee,
)

Array = np.ndarray[Any, Any]


def compute_type(dtype: DType) -> np.dtype[Any]:
    """Return the NumPy type in which values of a type are computed.

    This is float32 for bfloat16, and the NumPy type of the same name for other types.
    """
    return np.dtype(np.float32) if dtype is DType.BFLOAT16 else dtype.numpy


def from_memory(raw: Array, dtype: DType) -> Array:
    """Convert stored elements to values for computation: bfloat16's raw bits become float32."""
    if dtype is DType.BFLOAT16:
        return (raw.astype(np.uint32) << 16).view(np.float32)
    return raw


def to_memory(value: Array, dtype: DType) -> Array:
    """Convert computed values to stored elements; bfloat16 rounds half to even."""
    if dtype is not DType.BFLOAT16:
        return np.asarray(value, dtype.numpy)
    bits = np.asarray(value, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(value), (bits >> 16) | 0x40, rounded).astype(np.uint16)


def evaluate_expression(
    expr: Expr,
    read: Callable[[Load], Array],
    accumulators: Sequence[Array] = (),
    index: Callable[[IndexValue], Array] | None = None,
    write: Callable[[Tee, Array], None] | None = None,
    fused: bool = True,
    incoming: Sequence[Array] = (),
) -> Array:
    """Evaluate an expression without reductions.

    Args:
        expr: the expression.
        read: returns the value of a load.
        accumulators: the value of each `Accumulator`, by number.
        index: returns the value of an `IndexValue`.
        write: stores the value of a `Tee`.
        fused: whether FMA rounds once, as with an FMA instruction, or else twice.
        incoming: the value of each `Incoming`, by number.

    Raises:
        ValueError: if the expression has a node for which the arguments have no value.
    """
    memo: dict[Expr, Array] = {}

    def visit(node: Expr) -> Array:
        if node not in memo:
            memo[node] = compute(node)
        return memo[node]

    def compute(node: Expr) -> Array:
        match node:
            case Load():
                return read(node)
            case Const(value=value, type=dtype):
                return np.asarray(value, compute_type(dtype))
            case Op(operation=operation, args=args):
                constants = tuple(isinstance(a, Const) for a in args)
                return apply(operation, tuple(map(visit, args)), constants, fused)
            case Cast(value=value, type=dtype):
                return cast(visit(value), dtype)
            case Accumulator(number=number) if number < len(accumulators):
                return accumulators[number]
            case Incoming(number=number) if number < len(incoming):
                return incoming[number]
            case IndexValue() if index is not None:
                return index(node)
            case Tee(value=value) if write is not None:
                result = visit(value)
                write(node, result)
                return result
            case Reduce():
                raise ValueError("a reduction inside an expression; a schedule makes loops of it")
            case _:
                raise ValueError(f"no value for {type(node).__name__}")

    return visit(expr)


def apply(
    operation: Operation,
    args: tuple[Array, ...],
    constants: tuple[bool, ...] = (),
    fused: bool = True,
) -> Array:
    """Apply an operation to values of one type, and return the result in the same type.

    Args:
        operation: the operation.
        args: the operands.
        constants: for each operand, whether it is a constant. MAX and MIN with a constant propagate
            a NaN. Without a constant, they return the second operand if either is NaN.
        fused: whether FMA rounds once instead of twice.
    """
    with np.errstate(all="ignore"):
        return _apply(operation, args, constants, fused)


def _apply(
    operation: Operation, args: tuple[Array, ...], constants: tuple[bool, ...], fused: bool
) -> Array:
    match operation:
        case Operation.FMA:
            return _fma(*args, fused=fused)
        case Operation.DOT:
            return _dot(*args)
        case Operation.MAX | Operation.MIN:
            a, b = args[::-1] if constants[1:] == (True,) else args
            return np.where(a > b if operation is Operation.MAX else a < b, a, b)
        case Operation.DIV if _is_integer(args[0]):
            return _truncating_divide(*args)
        case Operation.REM:
            return np.fmod(*args)
        case Operation.SCALE:
            return _scale(*args)
        case Operation.EXPONENT:
            return (np.frexp(args[0])[1] - 1).astype(args[0].dtype)
        case Operation.MANTISSA:
            return np.asarray(np.frexp(args[0])[0] * 2, args[0].dtype)
        case Operation.SELECT:
            return np.where(*args)
        case Operation.SQRT | Operation.FLOOR | Operation.CEIL | Operation.RINT if _is_integer(
            args[0]
        ):
            return args[0]
        case Operation.NEG if args[0].dtype.kind == "u":
            return np.asarray(np.invert(args[0]) + 1, args[0].dtype)
        case (
            Operation.ADD
            | Operation.SUB
            | Operation.MUL
            | Operation.DIV
            | Operation.NEG
            | Operation.ABS
            | Operation.SQRT
            | Operation.FLOOR
            | Operation.CEIL
            | Operation.RINT
            | Operation.LT
            | Operation.LE
            | Operation.EQ
            | Operation.NE
            | Operation.AND
            | Operation.OR
            | Operation.XOR
            | Operation.NOT
        ):
            return np.asarray(_UFUNCS[operation](*args))
    assert_never(operation)


def cast(value: Array, dtype: DType) -> Array:
    """Convert values to a type as in C, except for floats outside the range of an integer type.

    Such floats saturate, and NaN becomes the lowest integer, as in ONNX Runtime's quantisation, and
    in NumPy on x86.
    """
    target = compute_type(dtype)
    value = np.asarray(value)
    if dtype is DType.BOOL:
        return np.asarray(value != 0)
    if dtype is DType.BFLOAT16:
        return from_memory(to_memory(value.astype(np.float32), dtype), dtype)
    if value.dtype.kind != "f" or target.kind == "f":
        with np.errstate(all="ignore"):
            return value.astype(target)
    limits = np.iinfo(target)
    whole = np.trunc(np.nan_to_num(value.astype(np.float64), nan=-np.inf))
    low, high = whole <= float(limits.min), whole >= float(limits.max)
    inside = np.where(low | high, 0.0, whole).astype(target)
    return np.asarray(np.where(low, limits.min, np.where(high, limits.max, inside)), target)


def items_of(expr: Expr) -> tuple[Expr, ...]:
    """Return the items of a tuple; for any other expression, the expression alone."""
    return expr.values if isinstance(expr, Items) else (expr,)


def join(
    combiner: Combiner | Fold, first: Sequence[Array], second: Sequence[Array]
) -> tuple[Array, ...]:
    """Combine two partial results of a reduction.

    Each result is a tuple of arrays: one array per item of a `Fold`, and one array for a
    `Combiner`.
    """
    if isinstance(combiner, Fold):
        unread = _no_load
        return tuple(
            evaluate_expression(e, unread, first, incoming=second) for e in combiner.joined
        )
    ((a,), (b,)) = first, second
    return (apply_combiner(combiner, np.stack(np.broadcast_arrays(a, b), axis=-1))[..., 0],)


def _no_load(load: Load) -> Array:
    raise ValueError(f"a fold reads '{load.tensor.name}'")


def neutral_items(combiner: Combiner | Fold, dtype: DType) -> tuple[Array, ...]:
    """Return the neutral element of a reduction, one array per item."""
    if isinstance(combiner, Fold):
        return tuple(np.asarray(c.value, compute_type(c.type)) for c in combiner.neutral)
    return (neutral(combiner, dtype),)


def apply_combiner(combiner: Combiner, values: Array) -> Array:
    """Reduce an array along its last axis by a combiner; the last axis keeps length 1."""
    match combiner:
        case Combiner.SUM:
            joined = np.sum(values, axis=-1, keepdims=True, dtype=values.dtype)
        case Combiner.PRODUCT:
            joined = np.prod(values, axis=-1, keepdims=True, dtype=values.dtype)
        case Combiner.MAX:
            joined = np.max(values, axis=-1, keepdims=True)
        case Combiner.MIN:
            joined = np.min(values, axis=-1, keepdims=True)
        case _:
            assert_never(combiner)
    return np.asarray(joined)


def neutral(combiner: Combiner, dtype: DType) -> Array:
    """Return the neutral element of a combiner, from which a reduction starts."""
    target = compute_type(dtype)
    if combiner in (Combiner.SUM, Combiner.PRODUCT):
        return np.asarray(0 if combiner is Combiner.SUM else 1, target)
    lowest = combiner is Combiner.MAX
    if target.kind == "b":
        return np.asarray(not lowest)
    if target.kind == "f":
        return np.asarray(-np.inf if lowest else np.inf, target)
    limits = np.iinfo(target)
    return np.asarray(limits.min if lowest else limits.max, target)


_UFUNCS: dict[Operation, np.ufunc] = {
    Operation.ADD: np.add,
    Operation.SUB: np.subtract,
    Operation.MUL: np.multiply,
    Operation.DIV: np.divide,
    Operation.NEG: np.negative,
    Operation.ABS: np.abs,
    Operation.SQRT: np.sqrt,
    Operation.FLOOR: np.floor,
    Operation.CEIL: np.ceil,
    Operation.RINT: np.rint,
    Operation.LT: np.less,
    Operation.LE: np.less_equal,
    Operation.EQ: np.equal,
    Operation.NE: np.not_equal,
    Operation.AND: np.bitwise_and,
    Operation.OR: np.bitwise_or,
    Operation.XOR: np.bitwise_xor,
    Operation.NOT: np.bitwise_not,
}


def _is_integer(value: Array) -> bool:
    return value.dtype.kind in "iub"


def _fma(x: Array, y: Array, z: Array, *, fused: bool) -> Array:
    """Return x*y + z, rounded once if `fused`, else after the product and after the sum.

    float32 is computed in float64, in which the product is exact; very rarely, the sum is rounded
    twice.
    """
    if not fused or x.dtype.kind != "f":
        return np.asarray(x * y + z)
    if x.dtype.itemsize == 8:
        return _fma_double(*np.broadcast_arrays(x, y, z))
    return np.asarray(x.astype(np.float64) * y.astype(np.float64) + z.astype(np.float64), x.dtype)


def _dot(x: Array, y: Array, z: Array) -> Array:
    """Return z + the dot product of four uint8 from x and four int8 from y, elementwise.

    Each 32-bit element of x or y holds four packed 8-bit integers.
    """
    total = np.asarray(z, np.int32)
    for shift in range(0, 32, 8):
        total = total + ((x >> shift) & 0xFF) * ((y >> shift) & 0xFF).astype(np.int8)
    return np.asarray(total, np.int32)


def _fma_double(x: Array, y: Array, z: Array) -> Array:
    """Return x*y + z for float64, rounded once except in rare cases.

    The product and the sum are computed as sums of two numbers (Dekker, Knuth).
    """
    (x_part, x_power), (y_part, y_power) = np.frexp(x), np.frexp(y)
    power = x_power + y_power
    product = x_part * y_part
    (a, a_low), (b, b_low) = _split(x_part), _split(y_part)
    error = ((a * b - product) + a * b_low + a_low * b) + a_low * b_low
    # Beyond these powers of 2, one of the two numbers is too small to change the other.
    addend = np.ldexp(z, np.clip(-power, -2000, 2000))
    total = product + addend
    part = total - product
    rest = (product - (total - part)) + (addend - part)
    fused = np.ldexp(total + (rest + error), power)
    plain = x * y + z
    exact = np.isfinite(plain) & np.isfinite(addend) & np.isfinite(fused) & (product != 0)
    return np.asarray(np.where(exact & (plain != z), fused, plain))


def _split(x: Array) -> tuple[Array, Array]:
    """Split float64 values into sums of two float64 with significands of at most 26 bits."""
    large = x * 134217729.0
    high = large - (large - x)
    return high, x - high


def _scale(x: Array, n: Array) -> Array:
    """Return x * 2**n.

    As in generated code, n is clamped to a range beyond which every finite x over- or underflows.
    """
    limit = 3000 if x.dtype.itemsize == 8 else 300
    exponent = np.nan_to_num(np.clip(n, -limit, limit)).astype(np.int32)
    return np.asarray(np.ldexp(x, exponent), x.dtype)


def _truncating_divide(a: Array, b: Array) -> Array:
    """Divide integers, with the quotient rounded toward zero.

    Division by zero, which is undefined in C, gives x / 0 = x.
    """
    if a.dtype.kind == "u":
        return np.asarray(a // np.where(b == 0, 1, b), a.dtype)
    safe = np.where(b == 0, 1, b).astype(a.dtype)
    return np.asarray((a - np.fmod(a, safe)) // safe, a.dtype)
