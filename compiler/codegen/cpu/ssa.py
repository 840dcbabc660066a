"""SSA values, and structured scopes (loop bodies) into which instructions are emitted.

Every value has the depth of the innermost loop that it depends on. Its instruction is emitted into
the open scope of that depth, so loop-invariant code is outside the loop from the start. Each scope
records its instructions, so that a common subexpression is emitted only once. No LLVM optimisation
pass is needed afterwards.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.sizes import (
    Dimension,
    Quotient,
    Size,
    ValueDimension,
    bounds,
    dynamic_size,
)
from tilewright.compiler.targets.target import Target

_ELEMENTS = {
    DType.FLOAT16: "half",
    DType.BFLOAT16: "bfloat",
    DType.FLOAT32: "float",
    DType.FLOAT64: "double",
    DType.BOOL: "i1",
}
_SUFFIXES = {"half": "f16", "bfloat": "bf16", "float": "f32", "double": "f64"}


def element(dtype: DType) -> str:
    """Return LLVM's name of an element type in registers, such as `float`.

    For a bool, it is `i1`, although a bool is one byte in memory.
    """
    return _ELEMENTS.get(dtype) or f"i{dtype.bytes * 8}"


@cache
def type_text(dtype: DType, lanes: int) -> str:
    """Return LLVM's name of a type, such as `float` for one lane or `<16 x float>` for a vector."""
    return element(dtype) if lanes == 1 else f"<{lanes} x {element(dtype)}>"


@cache
def suffix(dtype: DType, lanes: int) -> str:
    """Return a type's name in the names of overloaded intrinsics, such as `v16f32`."""
    name = _SUFFIXES.get(element(dtype), element(dtype))
    return name if lanes == 1 else f"v{lanes}{name}"


class Value(NamedTuple):
    """An SSA value or a constant.

    Attributes:
        name: its text as an operand in LLVM IR, such as `%t1`.
        dtype: type of its elements; None for a pointer.
        lanes: number of lanes; 1 for a scalar.
        depth: depth of the innermost loop that it depends on.
        const: the value of a constant; None for any other value.
    """

    name: str
    dtype: DType | None
    lanes: int = 1
    depth: int = 0
    const: float | int | None = None

    @property
    def type(self) -> str:
        return "ptr" if self.dtype is None else type_text(self.dtype, self.lanes)


_SCALES = (1, 2, 4, 8)
"""Factors by which an address can scale an index without another instruction, on x86 and ARM."""


@dataclass(slots=True)
class _Scope:
    label: str
    counter: str = ""
    multiples: dict[int, Value] = field(default_factory=dict)
    """Multiples of the loop counter that the loop's body uses, by factor."""
    pointers: dict[tuple[Value, int], Value] = field(default_factory=dict)
    """Pointers that are moved by a multiple of the loop counter, by the original pointer and the
    factor in bytes."""
    lines: list[str] = field(default_factory=list)
    memo: dict[str, Value] = field(default_factory=dict)


def _literal(value: float, dtype: DType) -> str:
    match dtype:
        case DType.FLOAT32:
            bits = struct.unpack("<Q", struct.pack("<d", float(np.float32(value))))[0]
            return f"0x{bits:016X}"
        case DType.FLOAT64:
            return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"
        case DType.FLOAT16:
            return f"0xH{int(np.float16(value).view(np.uint16)):04X}"
        case DType.BFLOAT16:
            bits = struct.unpack("<I", struct.pack("<f", value))[0]
            return f"0xR{(bits + 0x7FFF + (bits >> 16 & 1)) >> 16:04X}"
        case DType.BOOL:
            return "true" if value else "false"
        case _:
            return str(int(value))


class Emitter:
    """A builder of one LLVM function's text: instructions, nested loops and declarations."""

    def __init__(self, target: Target, sizes: Sequence[Dimension] = ()) -> None:
        self.target = target
        self.declarations: set[str] = set()
        self._slots = {dimension: 8 * number for number, dimension in enumerate(sizes)}
        self._sizes: dict[int, Value] = {}
        self._named: dict[Dimension, Value] = {}
        self._scopes = [_Scope("entry")]
        self._opening: dict[str, None] = {}
        self._names = 0
        self._loops = 0
        self._constants: dict[tuple[float | str, DType, int], Value] = {}
        self._calls: dict[tuple[str, ...], str] = {}
        self._splats: dict[tuple[str, int, int], Value] = {}
        self.masks: dict[str, int] = {}
        """Integer values by name -> mask of the bits that may be set in each lane, if known."""
        self.forward = {"%buffers", "%scratch"}
        """Names of pointers that lie at or after the start of their buffer, because only
        non-negative offsets were added to it."""
        self.taken: set[str] = set()
        """Names of scalars that are extracted from the lanes of a loaded vector."""
        self.rounded: dict[str, Value] = {}
        """Rounded floats by name -> the values from which they were rounded."""
        self.shifted: dict[str, tuple[Value, int]] = {}
        """Sums of a rounded float and an integer, by name -> the value before rounding, and the
        integer."""
        self.above: dict[str, tuple[str, float]] = {}
        """Comparisons `rounded float > number`, by name -> the name of the float, and the
        number."""
        self.floors: dict[str, tuple[Value, int]] = {}
        """Maxima of a rounded float and an integer, by name -> the value before rounding, and the
        integer."""
        self.wide: dict[tuple[str, DType], Value] = {}
        """8-bit and 16-bit integers by name and type -> their values as int32. The type is part of
        the key, because a uint8 that is read as an int8 keeps its name but has another value."""
        self.limits: dict[str, tuple[float, float]] = {}
        """Floats by name -> their lower and upper bounds, which hold unless the float is NaN."""
        self.bytes: dict[str, tuple[Value, int]] = {}
        """8-bit integers by name -> a float and an integer. The 8-bit integer is the uint8 nearest
        to the float, plus the integer."""
        self.bits: dict[str, Value] = {}
        """16-bit floats by name -> their bits as uint16, if the target has no instructions for the
        type."""
        self.parts: dict[str, tuple[Value, ...]] = {}
        """Operands of dot-product instructions by name -> their elements, if the elements are
        loaded one by one."""

    @property
    def depth(self) -> int:
        """Depth of the innermost open scope; 0 outside loops."""
        return len(self._scopes) - 1

    @property
    def lines(self) -> list[str]:
        return self._scopes[0].lines

    @property
    def opening(self) -> list[str]:
        """The instructions emitted by `Emitter.open`; they come before `Emitter.lines`."""
        return list(self._opening)

    def emit(
        self, dtype: DType | None, lanes: int, template: str, *args: Value, depth: int = 0
    ) -> Value:
        """Emit an instruction into the outermost possible scope, and return its value.

        This is the scope of the innermost loop on which an argument depends. If the scope already
        has an equal instruction, no new one is emitted, and the value of the existing one is
        returned.

        Args:
            dtype: type of an element of the result; None for a pointer.
            lanes: lanes of the result.
            template: the instruction, with `%s` for each argument.
            args: the arguments.
            depth: minimum depth of the scope, for an instruction that must not be hoisted further.
        """
        for arg in args:
            if arg.depth > depth:
                depth = arg.depth
        scope = self._scopes[depth]
        text = template % tuple([arg.name for arg in args])
        value = scope.memo.get(text)
        if value is None:
            self._names += 1
            value = scope.memo[text] = Value(f"%t{self._names}", dtype, lanes, depth)
            scope.lines.append(f"  {value.name} = {text}")
        # int8 and uint8 are one type to LLVM: an equal text may have the other signedness.
        return value if value.dtype is dtype else value._replace(dtype=dtype)

    def open(self, line: str) -> None:
        """Emit an instruction at the start of the function, unless it was emitted there before."""
        self._opening[f"  {line}"] = None

    def again(self, dtype: DType | None, lanes: int, template: str, *args: Value) -> Value:
        """Emit an instruction into the innermost scope, even if the scope already has an equal one.

        This is for an instruction whose result may change, such as a load from memory that is
        written.
        """
        return self.emit(
            dtype, lanes, f"{template} ; {self._names}", *args, depth=len(self._scopes) - 1
        )

    def effect(self, line: str) -> None:
        """Emit an instruction without a result into the innermost scope."""
        self._scopes[-1].lines.append(f"  {line}")

    def do(self, function: str, *args: Value | int) -> None:
        """Emit a call of an intrinsic that returns nothing.

        An argument that is an integer becomes an immediate operand of type i8.
        """
        types = ["i8 immarg" if isinstance(arg, int) else arg.type for arg in args]
        self.declarations.add(f"declare void @{function}({', '.join(types)})")
        operands = [f"i8 {a}" if isinstance(a, int) else f"{a.type} {a.name}" for a in args]
        self.effect(f"call void @{function}({', '.join(operands)})")

    def const(self, value: float, dtype: DType, lanes: int = 1) -> Value:
        """Return a constant; with several lanes, a vector of equal elements."""
        # Zeros of both signs are equal, but their texts are not.
        key = (value or str(value), dtype, lanes)
        found = self._constants.get(key)
        if found is None or value != value:
            text = _literal(value, dtype)
            name = text if lanes == 1 else f"splat ({element(dtype)} {text})"
            found = self._constants[key] = Value(name, dtype, lanes, 0, value)
        return found

    def splat(self, value: Value, lanes: int) -> Value:
        """Return a vector with a scalar in every lane; a vector is returned unchanged."""
        if lanes == 1 or value.lanes != 1:
            return value
        if value.const is not None:
            assert value.dtype is not None
            return self.const(value.const, value.dtype, lanes)
        key = value.name, value.depth, lanes
        found = self._splats.get(key)
        if found is None:
            found = self._splats[key] = self._splat(value, lanes)
        return found if found.dtype is value.dtype else found._replace(dtype=value.dtype)

    def _splat(self, value: Value, lanes: int) -> Value:
        assert value.dtype is not None
        if value.name in self.bits:
            whole = self.splat(self.bits[value.name], lanes)
            text = f"bitcast {whole.type} %s to {type_text(value.dtype, lanes)}"
            found = self.emit(value.dtype, lanes, text, whole)
            self.bits[found.name] = whole
            return found
        first = self.emit(
            value.dtype,
            lanes,
            f"insertelement {type_text(value.dtype, lanes)} poison, {value.type} %s, i32 0",
            value,
        )
        zeros = f"<{lanes} x i32> zeroinitializer"
        return self.emit(
            value.dtype,
            lanes,
            f"shufflevector {first.type} %s, {first.type} poison, {zeros}",
            first,
        )

    def shuffle(self, a: Value, b: Value | None, lanes: Sequence[int | None]) -> Value:
        """Return a vector of lanes that are selected from `a` and `b`.

        `lanes` has an index per result lane: the lanes of `a` come first, then those of `b`. A lane
        that is None is arbitrary.
        """
        mask = ", ".join(f"i32 {'poison' if lane is None else lane}" for lane in lanes)
        width = len(lanes)
        if b is None:
            text = f"shufflevector {a.type} %s, {a.type} poison, <{width} x i32> <{mask}>"
            return self.emit(a.dtype, width, text, a)
        text = f"shufflevector {a.type} %s, {a.type} %s, <{width} x i32> <{mask}>"
        return self.emit(a.dtype, width, text, a, b)

    def call(self, dtype: DType, lanes: int, function: str, *args: Value, depth: int = 0) -> Value:
        """Emit a call of a pure function (an intrinsic), declare it, and return the call's
        result."""
        types = [arg.type for arg in args]
        key = function, *types
        template = self._calls.get(key)
        if template is None:
            result = type_text(dtype, lanes)
            self.declarations.add(f"declare {result} @{function}({', '.join(types)})")
            operands = ", ".join(f"{t} %s" for t in types)
            template = self._calls[key] = f"call {result} @{function}({operands})"
        return self.emit(dtype, lanes, template, *args, depth=depth)

    def size(self, size: int) -> Value:
        """Return a size as an i64, emitted outside all loops if possible.

        `size` is an int, or a formula over run-time sizes (`Size`), which is computed from the
        function's argument `sizes`.
        """
        if not isinstance(size, Size):
            return self.const(size, DType.INT64)
        found = self._sizes.get(size)
        if found is None:
            total = self.const(size.constant, DType.INT64)
            for monomial, coefficient in size.terms:
                term = self.const(coefficient, DType.INT64)
                for atom in monomial:
                    factor = self._atom(atom)
                    term = self.emit(DType.INT64, 1, "mul nsw i64 %s, %s", factor, term)
                total = self.emit(DType.INT64, 1, "add nsw i64 %s, %s", term, total)
            found = self._sizes[size] = total
        return found

    def named_size(self, value: Value, low: int, high: int) -> int:
        """Make a dynamic size of a run-time value, an i64 that lies in [low, high].

        The result is a formula (`Size`) of one new variable, which stands for the value. It may
        occur in other formulas, but only in code in which the value is defined.
        """
        dimension = ValueDimension(f"%{len(self._named)}", low, high)
        self._named[dimension] = value
        return dynamic_size(dimension)

    def _atom(self, atom: Dimension | Quotient) -> Value:
        if isinstance(atom, Dimension):
            if atom in self._named:
                return self._named[atom]
            where = self.offset(Value("%sizes", None), self._slots[atom])
            return self.emit(DType.INT64, 1, "load i64, ptr %s, align 8", where)
        dividend = self.size(atom.dividend)
        divisor = self.const(atom.divisor, DType.INT64)
        if bounds(atom.dividend)[0] >= 0:
            return self.emit(DType.INT64, 1, "udiv i64 %s, %s", dividend, divisor)
        toward_zero = self.emit(DType.INT64, 1, "sdiv i64 %s, %s", dividend, divisor)
        rest = self.emit(DType.INT64, 1, "srem i64 %s, %s", dividend, divisor)
        is_below = self.emit(DType.INT64, 1, "lshr i64 %s, %s", rest, self.const(63, DType.INT64))
        return self.emit(DType.INT64, 1, "sub nsw i64 %s, %s", toward_zero, is_below)

    def offset(self, pointer: Value, bytes_: int, depth: int = 0) -> Value:
        """Return a pointer moved by a number of bytes: an int, or a formula over run-time sizes.

        `depth` is the minimum depth of the scope, as in `emit`.
        """
        if isinstance(bytes_, Size):
            where = "getelementptr i8, ptr %s, i64 %s"
            moved = self.emit(None, 1, where, pointer, self.size(bytes_ - bytes_.constant))
            return self.offset(moved, bytes_.constant, depth)
        if not bytes_:
            return pointer
        if bytes_ < 0 or not self.target.family.modules or pointer.name not in self.forward:
            where = f"getelementptr i8, ptr %s, i64 {bytes_}"
            return self.emit(None, 1, where, pointer, depth=depth)
        # WebAssembly adds an offset without wrapping: it is part of a load only with this flag.
        where = f"getelementptr nuw i8, ptr %s, i64 {bytes_}"
        moved = self.emit(None, 1, where, pointer, depth=depth)
        self.forward.add(moved.name)
        return moved

    def multiple(self, value: Value, factor: int) -> Value:
        """Return `value * factor`, an i64 for use in addresses; `factor` may be a dynamic size.

        If `value` is the counter of an innermost loop, the product is a loop-carried value, to
        which each iteration adds `factor`. Otherwise, LLVM would have to find such products (loop
        strength reduction), which takes a third of its time.
        """
        if factor == 1:
            return value
        if value.const is not None:
            return self.size(int(value.const) * factor)
        scope = self._scopes[value.depth]
        if value.name != scope.counter:
            size = self.size(factor)
            return self.emit(DType.INT64, 1, "mul nsw i64 %s, %s", value, size)
        found = scope.multiples.get(factor)
        if found is None:
            self.size(factor)  # before the loop, which adds it
            self._names += 1
            found = Value(f"%t{self._names}", DType.INT64, 1, value.depth)
            scope.multiples[factor] = found
        return found

    def moved(self, pointer: Value, value: Value, factor: int) -> Value:
        """Return a pointer moved by `value * factor` bytes; `factor` may be a dynamic size.

        If `value` is the counter of an innermost loop and the target has no addressing mode for the
        sum, the pointer is a loop-carried value, to which each iteration adds `factor`.
        """
        scope = self._scopes[value.depth]
        carried = self.target.family.pointer_reach > 0 and value.name == scope.counter
        if not carried or pointer.depth >= value.depth:
            bytes_ = self.multiple(value, factor)
            return self.emit(None, 1, "getelementptr i8, ptr %s, i64 %s", pointer, bytes_)
        found = scope.pointers.get((pointer, factor))
        if found is None:
            self.size(factor)  # before the loop, which adds it
            self._names += 1
            found = Value(f"%t{self._names}", None, 1, value.depth)
            scope.pointers[pointer, factor] = found
        return found

    def loop(
        self,
        low: Value,
        high: Value,
        carried: Sequence[Value],
        body: Callable[[Value, list[Value]], list[Value]],
        *,
        may_be_empty: bool,
    ) -> list[Value]:
        """Emit a run-time loop over [low, high), and return the carried values after it.

        If only loop-carried pointers depend on the counter, the loop counts down to 0, which saves
        a comparison.

        Args:
            low: first value of the counter.
            high: end of the counter's range.
            carried: the loop-carried values before the first iteration.
            body: emits one iteration; takes the counter and the carried values, and returns their
                next values.
            may_be_empty: whether the range may be empty, so that the loop needs a check before it.
        """
        self._loops += 1
        number = self._loops
        parent, depth = self._scopes[-1], len(self._scopes)
        scope = _Scope(f"L{number}", f"%i{number}")
        self._scopes.append(scope)
        counter = Value(f"%i{number}", DType.INT64, 1, depth)
        phis = [Value(f"%c{number}_{j}", v.dtype, v.lanes, depth) for j, v in enumerate(carried)]
        results = body(counter, phis)
        self._scopes.pop()
        carries = number == self._loops  # in an outer loop it would occupy a register throughout
        starts = {
            factor: self.multiple(low, factor)
            for factor in scope.multiples
            if carries and factor not in _SCALES
        }
        firsts = {
            key: self.moved(pointer, low, factor) if low.const != 0 else pointer
            for key in scope.pointers
            if carries
            for pointer, factor in [key]
        }
        is_used = len(starts) < len(scope.multiples) or len(firsts) < len(scope.pointers)
        reads = re.compile(rf"{counter.name}\b").search
        is_used = is_used or any(counter.name in line and reads(line) for line in scope.lines)
        counts_down = self.target.family.pointer_reach > 0 and low.const == 0 and not is_used
        # The body may have hoisted code into the parent: the branch comes after it.
        before, lines = parent.label, parent.lines
        if may_be_empty:
            lines.append(f"  %g{number} = icmp slt i64 {low.name}, {high.name}")
            lines.append(f"  br i1 %g{number}, label %L{number}, label %X{number}")
        else:
            lines.append(f"  br label %L{number}")
        lines.append(f"L{number}:")
        first = high if counts_down else low
        lines.append(
            f"  {counter.name} = phi i64 [ {first.name}, %{before} ],"
            f" [ %n{number}, %{scope.label} ]"
        )
        for phi, start, last in zip(phis, carried, results, strict=True):
            lines.append(
                f"  {phi.name} = phi {phi.type} [ {start.name}, %{before} ],"
                f" [ {last.name}, %{scope.label} ]"
            )
        for factor, value in scope.multiples.items():
            if factor in starts:
                following = f"%m{value.name[2:]}"
                lines.append(
                    f"  {value.name} = phi i64 [ {starts[factor].name}, %{before} ],"
                    f" [ {following}, %{scope.label} ]"
                )
                step = self.size(factor).name
                scope.lines.append(f"  {following} = add nsw i64 {value.name}, {step}")
        for key, value in scope.pointers.items():
            if key in firsts:
                following = f"%m{value.name[2:]}"
                lines.append(
                    f"  {value.name} = phi ptr [ {firsts[key].name}, %{before} ],"
                    f" [ {following}, %{scope.label} ]"
                )
                step = self.size(key[1]).name
                scope.lines.append(
                    f"  {following} = getelementptr i8, ptr {value.name}, i64 {step}"
                )
        for factor, value in scope.multiples.items():
            if factor not in starts:
                step = self.size(factor).name
                lines.append(f"  {value.name} = mul nsw i64 {counter.name}, {step}")
        for (pointer, factor), value in scope.pointers.items():
            if (pointer, factor) not in firsts:
                step = self.size(factor).name
                lines.append(f"  {value.name}b = mul nsw i64 {counter.name}, {step}")
                lines.append(
                    f"  {value.name} = getelementptr i8, ptr {pointer.name}, i64 {value.name}b"
                )
        lines.extend(scope.lines)
        if counts_down:  # to zero, with which no comparison is needed
            lines.append(f"  %n{number} = add nsw i64 {counter.name}, -1")
            lines.append(f"  %q{number} = icmp ne i64 %n{number}, 0")
        else:
            lines.append(f"  %n{number} = add nuw nsw i64 {counter.name}, 1")
            lines.append(f"  %q{number} = icmp slt i64 %n{number}, {high.name}")
        lines.append(f"  br i1 %q{number}, label %L{number}, label %X{number}, !llvm.loop !0")
        lines.append(f"X{number}:")
        parent.label = f"X{number}"
        if not may_be_empty:
            return [Value(v.name, v.dtype, v.lanes, depth - 1) for v in results]
        final = []
        for j, (start, last) in enumerate(zip(carried, results, strict=True)):
            value = Value(f"%x{number}_{j}", last.dtype, last.lanes, depth - 1)
            lines.append(
                f"  {value.name} = phi {value.type} [ {start.name}, %{before} ],"
                f" [ {last.name}, %{scope.label} ]"
            )
            final.append(value)
        return final
