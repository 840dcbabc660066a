"""Rounding floats to integers where a target has no instruction for it.

A float of n fraction bits that is 2**n or more is an integer; below, adding 2**n rounds what is
behind the point away, half to even, and subtracting it again is exact.
"""

from __future__ import annotations

from collections.abc import Callable

from compiler.codegen.cpu.ssa import Emitter, Value, suffix
from compiler.dtypes import DType
from compiler.loops.expr import Operation

_FRACTION_BITS = {DType.FLOAT32: 23, DType.FLOAT64: 52}


def rounded(emitter: Emitter, operation: Operation, x: Value, apply: Callable[..., Value]) -> Value:
    """RINT, FLOOR or CEIL of a float32 or float64; the sign stays, also that of a zero.

    `apply` is `arithmetic.apply`, which calls this.
    """
    dtype, lanes = x.dtype, x.lanes
    assert dtype is not None

    def do(operation: Operation, *values: Value) -> Value:
        return apply(emitter, operation, *values)

    def signed(magnitude: Value) -> Value:
        return emitter.call(dtype, lanes, f"llvm.copysign.{suffix(dtype, lanes)}", magnitude, x)

    least = emitter.const(2.0 ** _FRACTION_BITS[dtype], dtype, lanes)
    magnitude = do(Operation.ABS, x)
    shifted = do(Operation.SUB, do(Operation.ADD, magnitude, least), least)
    fractional = do(Operation.LT, magnitude, least)  # false of a NaN, which stays
    nearest = do(Operation.SELECT, fractional, signed(shifted), x)
    if operation is Operation.RINT:
        return nearest
    one = emitter.const(1.0, dtype, lanes)
    if operation is Operation.FLOOR:
        beyond, corrected = do(Operation.LT, x, nearest), do(Operation.SUB, nearest, one)
    else:
        beyond, corrected = do(Operation.LT, nearest, x), do(Operation.ADD, nearest, one)
    return signed(do(Operation.SELECT, beyond, corrected, nearest))
