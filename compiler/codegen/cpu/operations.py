"""Emission of all operations of an expression, both single instructions and longer sequences."""

from __future__ import annotations

from tilewright.compiler.codegen.cpu import arithmetic
from tilewright.compiler.codegen.cpu.dot_instructions import multiply_add
from tilewright.compiler.codegen.cpu.remainder import float_remainder
from tilewright.compiler.codegen.cpu.ssa import Emitter, Value
from tilewright.compiler.dtypes import DType
from tilewright.compiler.loops.expr import Operation


def apply(emitter: Emitter, operation: Operation, *args: Value) -> Value:
    """Emit an operation on values of one type, and return its result.

    Scalars are broadcast if another argument is a vector.
    """
    dtype = args[-1].dtype
    if operation is Operation.DOT:
        return _dot(emitter, *args)
    if operation is Operation.REM and dtype is not None and dtype.is_float:
        return float_remainder(emitter, *args)
    return arithmetic.apply(emitter, operation, *args)


def _dot(emitter: Emitter, x: Value, y: Value, total: Value) -> Value:
    """Emit the operation DOT: dot products of four 8-bit integers each, added to `total`.

    Scalar operands use the same vector instructions.
    """
    lanes = max(x.lanes, y.lanes, total.lanes)
    total = emitter.splat(total, lanes)
    return multiply_add(emitter, (DType.UINT8, DType.INT8), total, x, y)
