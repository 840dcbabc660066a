"""Rounding of floats to whole numbers, and its fusion with a conversion to integers.

Targets without a rounding instruction use additions. If a float type has n fraction bits (23 for
float32), each number of at least 2**n is an integer. For a smaller number, adding 2**n rounds the
fraction away, half to even, and subtracting 2**n again is exact.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.compiler.codegen.cpu.ssa import Emitter, Value, suffix
from tilewright.compiler.dtypes import DType
from tilewright.compiler.loops.expr import Operation

_FARTHEST = 1 << 16
"""Maximum magnitude of an integer that is added to a rounded float. float32 holds the sum exactly
if the float is in the 16-bit range."""

_FRACTION_BITS = {DType.FLOAT32: 23, DType.FLOAT64: 52}


def rounded(emitter: Emitter, operation: Operation, x: Value, apply: Callable[..., Value]) -> Value:
    """Emit RINT, FLOOR or CEIL of a float32 or float64 on a target without a rounding instruction.

    The result has the sign of `x`, also for zero. `apply` is the function `arithmetic.apply`,
    passed as an argument because that module imports this one.
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
    fractional = do(Operation.LT, magnitude, least)  # false for a NaN, which is kept
    nearest = do(Operation.SELECT, fractional, signed(shifted), x)
    if operation is Operation.RINT:
        return nearest
    one = emitter.const(1.0, dtype, lanes)
    if operation is Operation.FLOOR:
        beyond, corrected = do(Operation.LT, x, nearest), do(Operation.SUB, nearest, one)
    else:
        beyond, corrected = do(Operation.LT, nearest, x), do(Operation.ADD, nearest, one)
    return signed(do(Operation.SELECT, beyond, corrected, nearest))


def note_shifted(emitter: Emitter, result: Value, x: Value, added: Value) -> None:
    """Record that `result` is `x + added`, so that `nearest` can convert `result` to an integer.

    `nearest` replaces the rounding of the float and its conversion by one instruction. Nothing is
    recorded unless `x` is a float that was rounded to a whole number, and `added` a small integer
    constant.
    """
    source, number = emitter.rounded.get(x.name), added.const
    if source is None or number is None or not abs(number) <= _FARTHEST:
        return
    if number == int(number):
        emitter.shifted[result.name] = source, int(number)


def note_above(emitter: Emitter, result: Value, number: Value, x: Value) -> None:
    """Record that `result` is the comparison `number < x`; `note_floor` uses the record.

    Nothing is recorded unless `number` is a constant, and `x` a float that was rounded to a whole
    number.
    """
    if number.const is not None and x.name in emitter.rounded:
        emitter.above[result.name] = x.name, number.const


def note_floor(emitter: Emitter, result: Value, above: Value, x: Value, number: Value) -> None:
    """Record that `result` is the maximum of `x` and `number`, a lower limit.

    If the program then limits `result` from above, `limited` uses the record to apply both limits
    with the rounding. `result` is a selection: `x` where the condition `above` is true, `number`
    elsewhere. Nothing is recorded unless `x` is a float that was rounded to a whole number,
    `number` is an integer constant, and `above` is the comparison `number < x`.
    """
    limit = number.const
    if limit is None or emitter.above.get(above.name) != (x.name, limit):
        return
    if abs(limit) <= _FARTHEST and limit == int(limit):
        emitter.floors[result.name] = emitter.rounded[x.name], int(limit)


def limited(emitter: Emitter, operation: Operation, x: Value, limit: Value) -> Value | None:
    """Emit the minimum of `x` and `limit`, if it can be computed on rounded integers.

    `x` must be the maximum of a rounded float and an integer constant, as `note_floor` recorded.
    The original float is then clamped to the two limits, converted to an integer by an instruction
    that rounds, and converted back. Return None for any other `x`, or if the target has no such
    instruction.

    A result of 0 is always +0, never -0. The float stands for an 8-bit integer
    (`loops/int8_casts.py`), which has only one zero.
    """
    if operation is not Operation.MIN or x.name not in emitter.floors or limit.const is None:
        return None
    source, low = emitter.floors[x.name]
    if not low <= limit.const <= _FARTHEST or limit.const != int(limit.const):
        return None
    whole = _nearest(emitter, source, low, int(limit.const))
    if whole is None:
        return None
    text = f"sitofp {whole.type} %s to {x.type}"
    return emitter.emit(x.dtype, x.lanes, text, whole)


def nearest(emitter: Emitter, x: Value, low: int, high: int) -> Value | None:
    """Emit a rounded float `x` as int32, clamped to [low, high], by an instruction that rounds.

    `x` may be the sum of a rounded float and an integer constant, as `note_shifted` recorded. NaN
    gives `low`. Return None for any other `x`, or if the target has no such instruction.

    The limits are applied before the sum: `min(max(rint(source) + added, low), high)` equals
    `min(max(rint(source), low - added), high - added) + added`.
    """
    source, added = emitter.shifted.get(x.name, (emitter.rounded.get(x.name), 0))
    whole = source and _nearest(emitter, source, low - added, high - added)
    if whole is None or added == 0:
        return whole
    number = emitter.const(added, DType.INT32, whole.lanes)
    return emitter.emit(DType.INT32, whole.lanes, f"add {whole.type} %s, %s", whole, number)


def _nearest(emitter: Emitter, source: Value, low: int, high: int) -> Value | None:
    """Emit a float32 vector clamped to [low, high], then rounded and converted to int32 at once.

    NaN gives `low`. The limits are applied before rounding; this is exact, because they are
    integers. Return None if the target has no instruction that rounds and converts, or `source` is
    a scalar or another type.
    """
    feature, lanes = emitter.target.family.nearest, source.lanes
    if not emitter.target.has(feature):
        return None
    if lanes == 1 or source.dtype is not DType.FLOAT32:
        return None
    kind = suffix(DType.FLOAT32, lanes)
    for name, limit in (("maxnum", low), ("minnum", high)):
        bound = emitter.const(float(limit), DType.FLOAT32, lanes)
        source = emitter.call(DType.FLOAT32, lanes, f"llvm.{name}.{kind}", source, bound)
    function = f"llvm.lrint.{suffix(DType.INT32, lanes)}.{kind}"
    return emitter.call(DType.INT32, lanes, function, source)
