"""The remainder of a float division, exact for every quotient, without a C library.

LLVM's frem is a call to fmod on every target.
"""

from __future__ import annotations

from typing import Protocol

from tilewright.compiler.codegen.cpu.arithmetic import apply, cast, cast_unchecked
from tilewright.compiler.codegen.cpu.combining import combine, join_lanes
from tilewright.compiler.codegen.cpu.ssa import Emitter, Value
from tilewright.compiler.dtypes import DType
from tilewright.compiler.loops.expr import Combiner, Operation

_STEP = 25
"""Number of bits of the quotient that one iteration computes. The product of such a quotient and
half of a float64 mantissa is exact."""
_HALF = 2.0**25
_INFINITY = float("inf")
_SMALLEST = 2.2250738585072014e-308


class _Do(Protocol):
    def __call__(self, operation: Operation, *args: Value | float) -> Value: ...


def float_remainder(emitter: Emitter, a: Value, b: Value) -> Value:
    """Emit fmod(a, b) = a - trunc(a / b) b, with the sign of a; NaN if a is infinite or b is 0.

    With mantissas in [1, 2) and d = exponent(a) - exponent(b), the result is 2**exponent(b) times
    (mantissa(a) 2**d) mod mantissa(b). A loop multiplies by 2**d in steps of at most 2**25, and
    reduces modulo mantissa(b) after each step. The lane with the largest d determines the number of
    iterations, mostly one or two.
    """
    dtype = a.dtype
    assert dtype is not None
    if dtype is not DType.FLOAT64:
        # Exact: float64 holds every narrower number, and the remainder has no more bits than b.
        wide = (cast(emitter, value, DType.FLOAT64) for value in (a, b))
        return cast(emitter, float_remainder(emitter, *wide), dtype)
    lanes = max(a.lanes, b.lanes)
    a, b = (emitter.splat(value, lanes) for value in (a, b))

    def do(operation: Operation, *args: Value | float) -> Value:
        return apply(
            emitter,
            operation,
            *(v if isinstance(v, Value) else emitter.const(v, DType.FLOAT64, lanes) for v in args),
        )

    dividend, divisor = do(Operation.ABS, a), do(Operation.ABS, b)
    (a_power, a_part), (b_power, b_part) = _split(do, dividend), _split(do, divisor)
    bits = do(Operation.MAX, do(Operation.SUB, a_power, b_power), 0.0)
    high = do(Operation.DIV, do(Operation.FLOOR, do(Operation.MUL, b_part, _HALF)), _HALF)
    low = do(Operation.SUB, b_part, high)

    def reduced(rest: Value) -> Value:
        """Emit `rest` modulo the mantissa of b, exact for quotients of at most 25 bits."""
        whole = do(Operation.FLOOR, do(Operation.DIV, rest, b_part))
        rest = do(Operation.SUB, rest, do(Operation.MUL, whole, high))
        rest = do(Operation.SUB, rest, do(Operation.MUL, whole, low))
        # The quotient may have been rounded up to an integer.
        return do(
            Operation.SELECT, do(Operation.LT, rest, 0.0), do(Operation.ADD, rest, b_part), rest
        )

    def step(_counter: Value, carried: list[Value]) -> list[Value]:
        rest, left = carried
        now = do(Operation.MIN, left, float(_STEP))
        shifted = reduced(do(Operation.SCALE, rest, now))
        return [shifted, do(Operation.SUB, left, now)]

    (most,) = join_lanes(
        emitter, (bits,), lambda low, high: (combine(emitter, Combiner.MAX, *low, *high),)
    )
    turns = apply(
        emitter,
        Operation.CEIL,
        apply(emitter, Operation.DIV, most, emitter.const(float(_STEP), DType.FLOAT64)),
    )
    zero = emitter.const(0, DType.INT64)
    count = cast_unchecked(emitter, turns, DType.INT64)
    rest, _ = emitter.loop(zero, count, [reduced(a_part), bits], step, may_be_empty=True)
    rest = do(Operation.SCALE, rest, b_power)
    signed = do(Operation.SELECT, do(Operation.LT, a, 0.0), do(Operation.NEG, rest), rest)
    result = do(Operation.SELECT, do(Operation.LT, dividend, divisor), a, signed)
    defined = do(
        Operation.AND,
        do(Operation.LT, dividend, _INFINITY),
        do(Operation.LT, 0.0, divisor),
    )
    nan = do(Operation.MUL, do(Operation.SUB, a, a), do(Operation.DIV, b, b))
    return do(Operation.SELECT, defined, result, nan)


def _split(do: _Do, x: Value) -> tuple[Value, Value]:
    """Emit the exponent and the mantissa of a positive number, which may be subnormal."""
    subnormal = do(Operation.LT, x, _SMALLEST)
    normal = do(Operation.SELECT, subnormal, do(Operation.MUL, x, 2.0**54), x)
    power = do(Operation.EXPONENT, normal)
    power = do(Operation.SELECT, subnormal, do(Operation.SUB, power, 54.0), power)
    return power, do(Operation.MANTISSA, normal)
