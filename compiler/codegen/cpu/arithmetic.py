"""Scalar and vector operations as LLVM instructions.

The semantics are those of `compiler.loops.expr.Operation`. Operations are simplified only if the
result is exactly the same in IEEE arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import copysign, inf
from typing import assert_never

import numpy as np

from tilewright.compiler.codegen.cpu import halves, rounding
from tilewright.compiler.codegen.cpu.ssa import Emitter, Value, element, suffix, type_text
from tilewright.compiler.dtypes import DType
from tilewright.compiler.loops import semantics
from tilewright.compiler.loops.expr import Operation
from tilewright.compiler.targets.families import LaneIntrinsic

_FLOAT_PREDICATES = {
    Operation.LT: "olt",
    Operation.LE: "ole",
    Operation.EQ: "oeq",
    Operation.NE: "une",
}
_INTEGER_PREDICATES = {
    Operation.LT: "lt",
    Operation.LE: "le",
    Operation.EQ: "eq",
    Operation.NE: "ne",
}


_BITWISE = (Operation.SELECT, Operation.NEG, Operation.ABS)
"""Operations on 16-bit floats that need only their bits, and no conversion to float32."""


def apply(emitter: Emitter, operation: Operation, *args: Value) -> Value:
    """Emit an operation on values of one type, and return its result.

    Scalars are broadcast if another argument is a vector. The operation DOT, and REM of floats, are
    not accepted: they take several instructions, which `operations.apply` emits.
    """
    lanes = max([a.lanes for a in args])
    values = args if lanes == 1 else tuple([emitter.splat(a, lanes) for a in args])
    dtype = values[-1].dtype
    assert dtype is not None
    if dtype.bytes == 2 and not _computes(emitter, dtype):
        if operation in _BITWISE:
            return halves.on_bits(emitter, operation, values)
        return _in_float32(emitter, operation, values)
    text = type_text(dtype, lanes)
    match operation:
        case Operation.FMA:
            return _fma(emitter, *values)
        case Operation.DOT:
            raise TypeError("bytes are multiplied by dot_instructions")
        case Operation.REM if dtype.is_float:
            raise TypeError("floats have no remainder instruction")
        case Operation.ADD | Operation.SUB | Operation.MUL | Operation.DIV | Operation.REM:
            simple = _identity(emitter, operation, *values)
            if simple is not None:
                return simple
            if not dtype.is_float and operation in (Operation.DIV, Operation.REM):
                return _integer_division(emitter, operation, *values)
            name = _arithmetic_name(operation, dtype)
            result = emitter.emit(dtype, lanes, f"{name} {text} %s, %s", *values)
            if operation is Operation.ADD:
                _note_added(emitter, result, *values)
            elif operation is Operation.MUL:
                _note_limits(emitter, operation, result, *values)
            return result
        case Operation.MAX | Operation.MIN:
            limited = rounding.limited(emitter, operation, *values)
            result = limited or _extremum(emitter, operation, *values)
            _note_limits(emitter, operation, result, *values)
            return result
        case Operation.NEG if dtype.is_float:
            return emitter.emit(dtype, lanes, f"fneg {text} %s", *values)
        case Operation.NEG:
            return emitter.emit(dtype, lanes, f"sub {text} zeroinitializer, %s", *values)
        case Operation.ABS if not dtype.is_float:
            if not dtype.is_signed:
                return values[0]
            negative = emitter.emit(dtype, lanes, f"sub {text} zeroinitializer, %s", *values)
            return _extremum(emitter, Operation.MAX, values[0], negative)
        case Operation.ABS | Operation.SQRT | Operation.FLOOR | Operation.CEIL | Operation.RINT:
            if not dtype.is_float:
                return values[0]
            rounds = operation not in (Operation.ABS, Operation.SQRT)
            if rounds and not emitter.target.has_rounding:
                return rounding.rounded(emitter, operation, values[0], apply)
            name = "fabs" if operation is Operation.ABS else operation.value
            result = emitter.call(dtype, lanes, f"llvm.{name}.{suffix(dtype, lanes)}", *values)
            if operation is Operation.RINT:
                emitter.rounded[result.name] = values[0]
                low, high = _limits(emitter, values[0])
                emitter.limits[result.name] = low - 0.5, high + 0.5
            return result
        case Operation.SCALE:
            return _scale(emitter, *values)
        case Operation.EXPONENT | Operation.MANTISSA:
            return _float_parts(emitter, operation, values[0])
        case Operation.LT | Operation.LE | Operation.EQ | Operation.NE:
            result = _compare(emitter, operation, *values)
            if operation is Operation.LT:
                rounding.note_above(emitter, result, *values)
            return result
        case Operation.AND | Operation.OR | Operation.XOR:
            result = emitter.emit(dtype, lanes, f"{operation.value} {text} %s, %s", *values)
            masks = [int(v.const) for v in values if v.const is not None]
            if operation is Operation.AND and masks:
                emitter.masks[result.name] = masks[0]
            return result
        case Operation.NOT:
            ones = emitter.const(1 if dtype is DType.BOOL else -1, dtype, lanes)
            return emitter.emit(dtype, lanes, f"xor {text} %s, %s", values[0], ones)
        case Operation.SELECT:
            condition = type_text(DType.BOOL, lanes)
            template = f"select {condition} %s, {text} %s, {text} %s"
            result = emitter.emit(dtype, lanes, template, *values)
            rounding.note_floor(emitter, result, *values)
            return result
    assert_never(operation)


def _note_added(emitter: Emitter, result: Value, a: Value, b: Value) -> None:
    """Record that `result` is the sum of a rounded float and a constant, for later simplifications.

    `a` and `b` are the operands of the addition. Nothing is recorded unless one of them is a
    constant. The other one must be a float that was rounded to a whole number, or an 8-bit integer
    to which a float was rounded.
    """
    if a.const is not None:
        a, b = b, a
    rounding.note_shifted(emitter, result, a, b)
    if b.const is not None and a.name in emitter.bytes:
        source, added = emitter.bytes[a.name]
        emitter.bytes[result.name] = source, added + int(b.const)


def _limits(emitter: Emitter, value: Value) -> tuple[float, float]:
    """Return the recorded lower and upper bounds of a float, which hold unless it is NaN.

    A value without recorded bounds has -inf and inf.
    """
    return emitter.limits.get(value.name, (-inf, inf))


def _note_limits(emitter: Emitter, operation: Operation, result: Value, a: Value, b: Value) -> None:
    """Record a lower and an upper bound of a float result, if `a` or `b` is a constant.

    `result` is the minimum, the maximum or the product of `a` and `b`. For a product, bounds are
    recorded only if the constant is positive.
    """
    if a.const is not None:
        a, b = b, a
    limit = b.const
    if limit is None or result.dtype is None or not result.dtype.is_float or limit != limit:
        return
    low, high = _limits(emitter, a)
    if operation is Operation.MAX:
        emitter.limits[result.name] = max(low, limit), max(high, limit)
    elif operation is Operation.MIN:
        emitter.limits[result.name] = min(low, limit), min(high, limit)
    elif limit > 0:
        emitter.limits[result.name] = low * limit, high * limit


def _computes(emitter: Emitter, dtype: DType) -> bool:
    """Return whether LLVM computes in a type without calls to C library functions."""
    return not dtype.is_float or halves.has_instructions(emitter, dtype)


def _in_float32(emitter: Emitter, operation: Operation, values: Sequence[Value]) -> Value:
    """Emit an operation on 16-bit floats in float32, and round the result to 16 bits.

    Sums, products, quotients and square roots are as exact as if they were rounded once, because
    float32 has more than twice the digits of a 16-bit float.
    """
    dtype = values[-1].dtype
    assert dtype is not None
    wide = [cast(emitter, v, DType.FLOAT32) if v.dtype is dtype else v for v in values]
    result = apply(emitter, operation, *wide)
    return result if result.dtype is DType.BOOL else cast(emitter, result, dtype)


def cast(emitter: Emitter, value: Value, to: DType) -> Value:
    """Emit a conversion to another type, as in C.

    Where C leaves the result of a float-to-integer conversion undefined, floats out of range
    saturate, and NaN becomes the lowest integer.
    """
    source = value.dtype
    assert source is not None
    if source is to:
        return value
    lanes, text = value.lanes, type_text(to, value.lanes)
    wide = emitter.wide.get((value.name, source))
    if wide is not None and to.bytes >= 4:
        return cast(emitter, wide, to)
    if value.const is not None:
        exact = np.asarray(value.const, semantics.compute_type(source))
        return emitter.const(semantics.cast(exact, to).item(), to, lanes)
    if to is DType.BOOL:
        zero = emitter.const(0, source, lanes)
        return apply(emitter, Operation.NE, value, zero)
    if source.is_float and to.is_float:
        # LLVM 22 has no code from bfloat16 to float64 in SVE registers of a known length.
        if source.bytes == to.bytes or (source is DType.BFLOAT16 and to is DType.FLOAT64):
            return cast(emitter, cast(emitter, value, DType.FLOAT32), to)
        if source is DType.FLOAT64 and to.bytes == 2:
            return cast(emitter, _rounded_to_odd(emitter, value), to)
        narrow = to if to.bytes < source.bytes else source
        if narrow.bytes == 2 and not halves.has_instructions(emitter, narrow):
            if to.bytes < source.bytes:
                return halves.truncated(emitter, value, to)
            return cast(emitter, halves.extended(emitter, value), to)
        name = "fpext" if to.bytes > source.bytes else "fptrunc"
    elif 2 in (source.bytes * source.is_float, to.bytes * to.is_float) and not (
        halves.has_instructions(emitter, source if source.is_float else to)
    ):
        return cast(emitter, cast(emitter, value, DType.FLOAT32), to)
    elif (
        source.bytes >= 4
        and source.is_float
        and (to.bytes < 4 or not emitter.target.family.saturates)
    ):
        return _saturated(emitter, value, to)
    elif source.is_float:
        kind = "fptosi" if to.is_signed else "fptoui"
        function = f"llvm.{kind}.sat.{suffix(to, lanes)}.{suffix(source, lanes)}"
        whole = emitter.call(to, lanes, function, value)
        if not to.is_signed:
            return whole
        # LLVM's conversion returns 0 for NaN.
        missing = _compare_floats(emitter, "uno", value, value)
        lowest = emitter.const(int(np.iinfo(to.numpy).min), to, lanes)
        return apply(emitter, Operation.SELECT, missing, lowest, whole)
    elif to.is_float:
        name = "sitofp" if source.is_signed else "uitofp"
    elif element(source) == element(to):
        return Value(value.name, to, lanes, value.depth)
    elif source is not DType.BOOL and to.bytes < source.bytes:
        name = "trunc"
    else:
        name = "sext" if source.is_signed else "zext"
    return emitter.emit(to, lanes, f"{name} {value.type} %s to {text}", value)


def _saturated(emitter: Emitter, value: Value, to: DType) -> Value:
    """Emit a conversion of a float to an integer that saturates; NaN becomes the lowest integer.

    The float is limited to the integer's range first, so that one plain conversion remains. LLVM's
    own saturating conversion is slower. It works lane by lane if the target has no saturating
    instruction (x86), and for 8-bit integers also on other targets.
    """
    source, lanes = value.dtype, value.lanes
    assert source is not None
    exact = emitter.rounded.get(value.name)
    limits = np.iinfo(to.numpy)
    if to.bytes < 4:
        whole = rounding.nearest(emitter, value, int(limits.min), int(limits.max))
        if whole is not None:
            result = cast(emitter, whole, to)
            emitter.wide[result.name, to] = whole
            return result
    highest = source.numpy.type(limits.max)
    if int(highest) > limits.max:  # it was rounded up
        highest = np.nextafter(highest, source.numpy.type(0))
    low, high = (emitter.const(float(n), source, lanes) for n in (limits.min, highest))
    # A comparison with NaN is false: NaN becomes the lower limit.
    inside = value
    for predicate, limit in (("ogt", low), ("olt", high)):
        within = _compare_floats(emitter, predicate, inside, limit)
        inside = apply(emitter, Operation.SELECT, within, inside, limit)
    if to.bytes >= 4:
        result = cast_unchecked(emitter, inside, to)
        if int(highest) == limits.max:
            return result
        beyond = _compare_floats(emitter, "ogt", value, high)
        most = emitter.const(int(limits.max), to, lanes)
        return apply(emitter, Operation.SELECT, beyond, most, result)
    result = cast(emitter, cast_unchecked(emitter, inside, DType.INT32), to)
    if to is DType.UINT8 and source is DType.FLOAT32 and exact is not None:
        emitter.bytes[result.name] = exact, 0
    return result


def _rounded_to_odd(emitter: Emitter, value: Value) -> Value:
    """Emit the rounding of a float64 to float32 towards zero; set the last bit of inexact results.

    A second rounding, to a 16-bit float, then gives the same number as a single rounding of the
    float64 (Boldo and Melquiond, Emulation of FMA and correctly rounded sums, 2008). The direct
    conversion to a 16-bit float is a call to a C library function on most targets.
    """
    lanes = value.lanes
    number, text = type_text(DType.FLOAT32, lanes), type_text(DType.INT32, lanes)
    narrow = emitter.emit(DType.FLOAT32, lanes, f"fptrunc {value.type} %s to {number}", value)
    back = cast(emitter, narrow, DType.FLOAT64)
    bits = emitter.emit(DType.INT32, lanes, f"bitcast {number} %s to {text}", narrow)
    one = emitter.const(1, DType.INT32, lanes)
    away = _compare(
        emitter,
        Operation.LT,
        apply(emitter, Operation.ABS, value),
        apply(emitter, Operation.ABS, back),
    )
    shorter = apply(emitter, Operation.SUB, bits, one)
    bits = apply(emitter, Operation.SELECT, away, shorter, bits)
    lost = _compare(emitter, Operation.NE, back, value)
    odd = apply(emitter, Operation.OR, bits, one)
    bits = apply(emitter, Operation.SELECT, lost, odd, bits)
    return emitter.emit(DType.FLOAT32, lanes, f"bitcast {text} %s to {number}", bits)


def extract_lane(emitter: Emitter, value: Value, lane: int) -> Value:
    """Emit the extraction of one lane of a vector as a scalar."""
    return emitter.emit(value.dtype, 1, f"extractelement {value.type} %s, i32 {lane}", value)


def _arithmetic_name(operation: Operation, dtype: DType) -> str:
    if dtype.is_float:
        return f"f{operation.value}"
    match operation:
        case Operation.DIV:
            return "sdiv" if dtype.is_signed else "udiv"
        case Operation.REM:
            return "srem" if dtype.is_signed else "urem"
        case _:
            return operation.value


def _identity(emitter: Emitter, operation: Operation, a: Value, b: Value) -> Value | None:
    """Return the result of an operation that needs no instruction, or only a negation, else None.

    One operand is then a constant, as in `x * 1`, which is `x`, or `x * -1`, which is `-x` for
    floats. The simplifications are exact.
    """
    is_float = a.dtype is not None and a.dtype.is_float
    match operation:
        case Operation.ADD if a.const == 0 and not is_float:
            return b
        case Operation.ADD | Operation.SUB if b.const == 0 and not is_float:
            return a
        case Operation.MUL if a.const == 1:
            return b
        case Operation.MUL | Operation.DIV if b.const == 1:
            return a
        case Operation.MUL if is_float and -1 in (a.const, b.const):
            return apply(emitter, Operation.NEG, b if a.const == -1 else a)
        case _:
            return None


def _fma(emitter: Emitter, x: Value, y: Value, z: Value) -> Value:
    dtype = z.dtype
    assert dtype is not None
    if not dtype.is_float:
        return apply(emitter, Operation.ADD, apply(emitter, Operation.MUL, x, y), z)
    if x.const is not None:
        x, y = y, x
    if z.const == 0 and copysign(1, z.const) < 0:
        # Adding -0.0 changes no product; adding 0.0 would change the sign of -0.0.
        return apply(emitter, Operation.MUL, x, y)
    if y.const == 1:
        return apply(emitter, Operation.ADD, z, x)
    if y.const == -1:
        return apply(emitter, Operation.SUB, z, x)
    if not emitter.target.fma:
        # Without the instruction, llvm.fma is a call into a C library.
        sum_ = apply(emitter, Operation.ADD, apply(emitter, Operation.MUL, x, y), z)
        return _held(emitter, sum_)
    if dtype.bytes == 2 and not emitter.target.has(emitter.target.family.fused.get(dtype, "")):
        # The product is exact in float32; LLVM would go through float64 and a C library.
        wide = (cast(emitter, operand, DType.FLOAT32) for operand in (x, y, z))
        return cast(emitter, _fma(emitter, *wide), dtype)
    name = f"{emitter.target.family.fma_intrinsic}.{suffix(dtype, z.lanes)}"
    return _held(emitter, emitter.call(dtype, z.lanes, name, x, y, z))


def _held(emitter: Emitter, value: Value) -> Value:
    """Return the sum `value`, and prevent LLVM from moving its computation to a later place.

    This is necessary on some target families (`Family.holds_sums`). LLVM would delay the additions
    of an unrolled loop, so that the factors of all iterations occupy registers at once. On other
    families, `value` is returned unchanged.
    """
    if not emitter.target.family.holds_sums or value.const is not None or value.dtype is None:
        return value
    if value.lanes * value.dtype.bytes * 8 != emitter.target.vector_bits:
        return value
    # No instruction, but to LLVM one with effects, which keeps its place among all others.
    text = f'call {value.type} asm sideeffect "", "=r,0"({value.type} %s)'
    return emitter.emit(value.dtype, value.lanes, text, value)


def _integer_division(emitter: Emitter, operation: Operation, a: Value, b: Value) -> Value:
    """Emit an integer quotient or remainder that never traps.

    x / 0 is x, x % 0 is 0, and the smallest integer / -1 wraps around. C leaves these results
    undefined, and x86 faults, also for the unused lanes of a partly filled vector.
    """
    dtype, lanes = b.dtype, b.lanes
    assert dtype is not None
    name, text = _arithmetic_name(operation, dtype), type_text(dtype, lanes)
    if b.const is not None and b.const not in (0, -1):
        return emitter.emit(dtype, lanes, f"{name} {text} %s, %s", a, b)
    one = emitter.const(1, dtype, lanes)
    unsafe = _compare(emitter, Operation.EQ, b, emitter.const(0, dtype, lanes))
    negating = None
    if dtype.is_signed:
        negating = _compare(emitter, Operation.EQ, b, emitter.const(-1, dtype, lanes))
        unsafe = apply(emitter, Operation.OR, unsafe, negating)
    divisor = apply(emitter, Operation.SELECT, unsafe, one, b)
    result = emitter.emit(dtype, lanes, f"{name} {text} %s, %s", a, divisor)
    if negating is None or operation is Operation.REM:
        return result
    negated = apply(emitter, Operation.NEG, a)
    return apply(emitter, Operation.SELECT, negating, negated, result)


def _extremum(emitter: Emitter, operation: Operation, a: Value, b: Value) -> Value:
    dtype = a.dtype
    assert dtype is not None
    if not dtype.is_float:
        sign = "s" if dtype.is_signed else "u"
        name = f"llvm.{sign}{operation.value}.{suffix(dtype, a.lanes)}"
        return emitter.call(dtype, a.lanes, name, a, b)
    # `a > b ? a : b` is one maxps, and returns b if either is NaN. With a constant as `a`, a NaN
    # passes through, as ReLU and Clip require.
    if b.const is not None:
        a, b = b, a
    limited = a.const is not None and a.const == a.const and dtype.bytes >= 4
    if limited and emitter.target.family.extrema_of_nan:
        # Of zeros of both signs it returns 0.0 as the larger one, whereas a selection returns `b`.
        name = f"llvm.{operation.value}imum.{suffix(dtype, a.lanes)}"
        return emitter.call(dtype, a.lanes, name, a, b)
    predicate = "ogt" if operation is Operation.MAX else "olt"
    condition = _compare_floats(emitter, predicate, a, b)
    return apply(emitter, Operation.SELECT, condition, a, b)


def _compare(emitter: Emitter, operation: Operation, a: Value, b: Value) -> Value:
    dtype = a.dtype
    assert dtype is not None
    if dtype.is_float:
        return _compare_floats(emitter, _FLOAT_PREDICATES[operation], a, b)
    predicate = _INTEGER_PREDICATES[operation]
    if operation in (Operation.LT, Operation.LE):
        predicate = ("s" if dtype.is_signed else "u") + predicate
    return emitter.emit(DType.BOOL, a.lanes, f"icmp {predicate} {a.type} %s, %s", a, b)


def _compare_floats(emitter: Emitter, predicate: str, a: Value, b: Value) -> Value:
    """Emit a comparison of floats, with an LLVM predicate such as `olt`.

    bfloat16 is compared in float32, which represents all of its values, because LLVM 22 cannot
    generate a comparison of bfloat16 in SVE registers of a known length.
    """
    if a.dtype is DType.BFLOAT16:
        a, b = (cast(emitter, value, DType.FLOAT32) for value in (a, b))
    return emitter.emit(DType.BOOL, a.lanes, f"fcmp {predicate} {a.type} %s, %s", a, b)


def _scale(emitter: Emitter, x: Value, n: Value) -> Value:
    """Emit x * 2**n for a float n with an integer value.

    Without an instruction for this, x is multiplied by two powers of two in sequence, because 2**n
    alone may overflow.
    """
    dtype, lanes = x.dtype, x.lanes
    assert dtype is not None
    if dtype is DType.FLOAT32:
        for intrinsic in emitter.target.family.scale:
            if intrinsic.lanes == lanes and emitter.target.has(intrinsic.feature):
                return _call_lanes(emitter, intrinsic, x, n)
    integer, mantissa, bias = _format(dtype)
    limit = 2 * bias + mantissa
    least, most = _limits(emitter, n)
    if least < -limit:
        n = _extremum(emitter, Operation.MAX, n, emitter.const(-limit, dtype, lanes))
    if most > limit:
        n = _extremum(emitter, Operation.MIN, n, emitter.const(limit, dtype, lanes))
    whole = cast_unchecked(emitter, n, integer)
    half = emitter.emit(
        integer, lanes, f"ashr {whole.type} %s, %s", whole, emitter.const(1, integer, lanes)
    )
    rest = apply(emitter, Operation.SUB, whole, half)
    for part in (half, rest):
        biased = apply(emitter, Operation.ADD, part, emitter.const(bias, integer, lanes))
        shift = emitter.const(mantissa, integer, lanes)
        shifted = emitter.emit(integer, lanes, f"shl {biased.type} %s, %s", biased, shift)
        power = emitter.emit(
            dtype, lanes, f"bitcast {shifted.type} %s to {type_text(dtype, lanes)}", shifted
        )
        x = apply(emitter, Operation.MUL, x, power)
    return x


def _call_lanes(emitter: Emitter, intrinsic: LaneIntrinsic, *values: Value) -> Value:
    """Emit a call of a target family's intrinsic, with vectors of one type as arguments.

    The constant arguments that the intrinsic requires are passed after the vectors.
    """
    text = values[0].type
    types = ", ".join([v.type for v in values] + [kind for kind, _ in intrinsic.constants])
    emitter.declarations.add(f"declare {text} @{intrinsic.name}({types})")
    arguments = [f"{value.type} %s" for value in values]
    arguments += [f"{kind} {constant}" for kind, constant in intrinsic.constants]
    call = f"call {text} @{intrinsic.name}({', '.join(arguments)})"
    return emitter.emit(values[0].dtype, values[0].lanes, call, *values)


def cast_unchecked(emitter: Emitter, value: Value, to: DType) -> Value:
    """Emit one instruction that converts a float to an integer.

    The float must be in the integer's range; otherwise, the result is undefined.
    """
    kind = "fptosi" if to.is_signed else "fptoui"
    return emitter.emit(
        to, value.lanes, f"{kind} {value.type} %s to {type_text(to, value.lanes)}", value
    )


def _float_parts(emitter: Emitter, operation: Operation, x: Value) -> Value:
    dtype, lanes = x.dtype, x.lanes
    assert dtype is not None
    integer, mantissa, bias = _format(dtype)
    bits = emitter.emit(integer, lanes, f"bitcast {x.type} %s to {type_text(integer, lanes)}", x)
    if operation is Operation.EXPONENT:
        shift = emitter.const(mantissa, integer, lanes)
        biased = emitter.emit(integer, lanes, f"lshr {bits.type} %s, %s", bits, shift)
        unbiased = apply(emitter, Operation.SUB, biased, emitter.const(bias, integer, lanes))
        return cast(emitter, unbiased, dtype)
    fraction = apply(
        emitter, Operation.AND, bits, emitter.const((1 << mantissa) - 1, integer, lanes)
    )
    one = emitter.const(bias << mantissa, integer, lanes)
    joined = apply(emitter, Operation.OR, fraction, one)
    return emitter.emit(
        dtype, lanes, f"bitcast {joined.type} %s to {type_text(dtype, lanes)}", joined
    )


def _format(dtype: DType) -> tuple[DType, int, int]:
    """Return the layout of a float type: its integer type, mantissa bits and exponent bias."""
    match dtype:
        case DType.FLOAT32:
            return DType.INT32, 23, 127
        case DType.FLOAT64:
            return DType.INT64, 52, 1023
        case _:
            raise TypeError(f"no vector maths for {dtype}")
