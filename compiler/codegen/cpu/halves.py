"""Conversion between 16-bit floats and float32 by integer arithmetic.

It is used on targets without conversion instructions. Extension to float32 is exact; rounding to 16
bits is to nearest, ties to even. Subnormal numbers and infinities are preserved, and NaN stays NaN.
The method follows Giesen, "Half to float done quic" (2012).
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.compiler.codegen.cpu.ssa import Emitter, Value, type_text
from tilewright.compiler.dtypes import DType
from tilewright.compiler.loops.expr import Operation

_INFINITY = 0x7F800000
_SIGN = 0x80000000
_QUIET = 0x40
"""A mantissa bit of bfloat16, which is set in every truncated NaN. Without it, a NaN whose upper
mantissa bits are 0 would become an infinity."""

_REBIAS = 112 << 23
"""The difference between the exponent biases of float32 and float16 (127 - 15), shifted to the
exponent bits of float32."""
_HALF_INFINITY = 0x47800000
"""The bits of 2**16 as a float32. Numbers of this magnitude or more become infinite in float16."""
_HALF_NORMAL = 0x38800000
"""The bits of 2**-14 as a float32, which is the smallest normal float16."""
_ONE_HALF = 0x3F000000
"""The bits of 0.5 as a float32. The last bit of its mantissa is worth 2**-24, which is the smallest
positive float16. Adding 0.5 therefore rounds a number to a subnormal float16."""


def has_instructions(emitter: Emitter, dtype: DType) -> bool:
    """Return whether the target has instructions that convert a 16-bit float type."""
    feature = emitter.target.family.conversions.get(dtype)
    return feature is not None and (not feature or emitter.target.has(feature))


def bits(emitter: Emitter, value: Value) -> Value:
    """Return the bits of a 16-bit float as uint16."""
    return emitter.bits.get(value.name) or _reinterpreted(emitter, value, DType.UINT16)


def of_bits(emitter: Emitter, whole: Value, dtype: DType) -> Value:
    """Return the 16-bit float whose bits are the uint16 `whole`.

    On a target without instructions for the type, `emitter.bits` also records these bits. Loops
    then carry the bits in place of the float, because LLVM would call a library function to pass a
    vector of bfloat16 from one basic block to another.
    """
    value = _reinterpreted(emitter, whole, dtype)
    if not has_instructions(emitter, dtype):
        emitter.bits[value.name] = whole
    return value


def extended(emitter: Emitter, value: Value) -> Value:
    """Emit the conversion of a 16-bit float to float32, which is exact."""
    number = _Bits(emitter, _cast(emitter, "zext", bits(emitter, value), DType.UINT32))
    if value.dtype is DType.BFLOAT16:
        return number("shl", 16).number
    magnitude = number("and", 0x7FFF)
    wide = magnitude("shl", 13)
    normal = wide("add", _REBIAS)
    small = _cast(emitter, "uitofp", magnitude.value, DType.FLOAT32)
    smallest = emitter.const(2.0**-24, DType.FLOAT32, value.lanes)
    small = emitter.emit(DType.FLOAT32, value.lanes, f"fmul {small.type} %s, %s", small, smallest)
    found = magnitude.choose("ult", 0x400, _Bits.of(emitter, small), normal)
    found = magnitude.choose("ult", 0x7C00, found, wide("or", _INFINITY))
    return found("or", number("and", 0x8000)("shl", 16)).number


def truncated(emitter: Emitter, value: Value, to: DType) -> Value:
    """Emit the rounding of a float32 to the 16-bit type `to`, to nearest with ties to even."""
    given = _Bits.of(emitter, value)
    magnitude, sign = given("and", ~_SIGN), given("and", _SIGN)("lshr", 16)
    if to is DType.BFLOAT16:
        cut = magnitude("lshr", 16)
        rounded = magnitude("add", 0x7FFF)("add", cut("and", 1))("lshr", 16)
        found = magnitude.choose("ule", _INFINITY, rounded, cut("or", _QUIET))
    else:
        odd = magnitude("lshr", 13)("and", 1)
        normal = magnitude("add", 0xFFF - _REBIAS)("add", odd)("lshr", 13)
        half = emitter.const(0.5, DType.FLOAT32, value.lanes)
        number = magnitude.number
        summed = emitter.emit(
            DType.FLOAT32, value.lanes, f"fadd {number.type} %s, %s", number, half
        )
        small = _Bits.of(emitter, summed)("sub", _ONE_HALF)
        special = magnitude.choose("ule", _INFINITY, 0x7C00, 0x7E00)
        found = magnitude.choose("ult", _HALF_NORMAL, small, normal)
        found = magnitude.choose("ult", _HALF_INFINITY, found, special)
    whole = _cast(emitter, "trunc", found("or", sign).value, DType.UINT16)
    return of_bits(emitter, whole, to)


def on_bits(emitter: Emitter, operation: Operation, values: Sequence[Value]) -> Value:
    """Emit SELECT, NEG or ABS of 16-bit floats as operations on their bits, without arithmetic."""
    dtype, lanes = values[-1].dtype, values[-1].lanes
    assert dtype is not None
    operands = [bits(emitter, value) for value in values if value.dtype is dtype]
    text = type_text(DType.UINT16, lanes)
    if operation is Operation.SELECT:
        template = f"select {values[0].type} %s, {text} %s, {text} %s"
        found = emitter.emit(DType.UINT16, lanes, template, values[0], *operands)
    else:
        name, mask = ("xor", 0x8000) if operation is Operation.NEG else ("and", 0x7FFF)
        constant = emitter.const(mask, DType.UINT16, lanes)
        found = emitter.emit(DType.UINT16, lanes, f"{name} {text} %s, %s", *operands, constant)
    return of_bits(emitter, found, dtype)


class _Bits:
    """The bits of float32 numbers as uint32 values, with methods that emit integer operations."""

    def __init__(self, emitter: Emitter, value: Value) -> None:
        self._emitter = emitter
        self.value = value

    @classmethod
    def of(cls, emitter: Emitter, number: Value) -> _Bits:
        return cls(emitter, _reinterpreted(emitter, number, DType.UINT32))

    @property
    def number(self) -> Value:
        """The float32 numbers with these bits."""
        return _reinterpreted(self._emitter, self.value, DType.FLOAT32)

    def __call__(self, instruction: str, other: _Bits | int) -> _Bits:
        """Emit an integer instruction, such as `add`, with these bits and another operand."""
        text = f"{instruction} {self.value.type} %s, %s"
        operand = self._operand(other)
        made = self._emitter.emit(DType.UINT32, self.value.lanes, text, self.value, operand)
        return _Bits(self._emitter, made)

    def choose(self, predicate: str, bound: int, first: _Bits | int, second: _Bits | int) -> _Bits:
        """Emit a selection: `first` where the comparison of these bits with `bound` holds, else
        `second`.

        `predicate` is LLVM's name of the comparison, such as `ult`.
        """
        emitter, lanes, kind = self._emitter, self.value.lanes, self.value.type
        text = f"icmp {predicate} {kind} %s, %s"
        is_so = emitter.emit(DType.BOOL, lanes, text, self.value, self._operand(bound))
        text = f"select {is_so.type} %s, {kind} %s, {kind} %s"
        operands = self._operand(first), self._operand(second)
        return _Bits(emitter, emitter.emit(DType.UINT32, lanes, text, is_so, *operands))

    def _operand(self, other: _Bits | int) -> Value:
        if isinstance(other, _Bits):
            return other.value
        return self._emitter.const(other & 0xFFFFFFFF, DType.UINT32, self.value.lanes)


def _reinterpreted(emitter: Emitter, value: Value, to: DType) -> Value:
    """Emit a reinterpretation of a value's bits as another type of the same width."""
    return _cast(emitter, "bitcast", value, to)


def _cast(emitter: Emitter, instruction: str, value: Value, to: DType) -> Value:
    text = type_text(to, value.lanes)
    return emitter.emit(to, value.lanes, f"{instruction} {value.type} %s to {text}", value)
