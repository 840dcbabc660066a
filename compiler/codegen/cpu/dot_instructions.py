"""Instructions that multiply groups of narrow elements and add them to 32-bit accumulators.

An operand is a vector of 32-bit elements, each 4 int8 or 2 bfloat16 elements side by side. The
family of the target says which instructions there are.
"""

from __future__ import annotations

from compiler.codegen.cpu.ssa import Emitter, Value, type_text
from compiler.dtypes import DType
from compiler.errors import ScheduleError
from compiler.targets import DotInstruction


def multiply_add(
    emitter: Emitter, types: tuple[DType, DType], accumulator: Value, left: Value, right: Value
) -> Value:
    """One instruction; `left` and `right` are int32 values that hold elements of `types`.

    Raises:
        ScheduleError: if the target has no instruction for these types.
    """
    for instruction in emitter.target.family.dot:
        fits = instruction.accumulator is accumulator.dtype and emitter.target.has(
            instruction.feature
        )
        if fits and types == (instruction.left, instruction.right):
            return _call(emitter, instruction, accumulator, left, right)
        if fits and types == (instruction.right, instruction.left):
            return _call(emitter, instruction, accumulator, right, left)
    raise ScheduleError(
        f"target '{emitter.target.name}' has no instruction that adds products of {types[0]} and "
        f"{types[1]} to {accumulator.dtype}"
    )


def _call(
    emitter: Emitter, instruction: DotInstruction, accumulator: Value, left: Value, right: Value
) -> Value:
    lanes = accumulator.lanes
    width, name = next((w, n) for w, n in instruction.intrinsic if w >= lanes)
    dtype, operand = instruction.accumulator, instruction.operand
    elements = width * 4 // operand.bytes
    packed = type_text(operand, elements)
    arguments = [_widened(emitter, accumulator, width)]
    for value in (left, right):
        wide = _widened(emitter, emitter.splat(value, lanes), width)
        if operand is not DType.INT32:
            wide = emitter.emit(operand, elements, f"bitcast {wide.type} %s to {packed}", wide)
        arguments.append(wide)
    return _narrowed(emitter, emitter.call(dtype, width, name, *arguments), lanes)


def _widened(emitter: Emitter, value: Value, lanes: int) -> Value:
    """The vector with more lanes, whatever is in them; a scalar in all of them."""
    if value.lanes in (1, lanes):
        return emitter.splat(value, lanes)
    return emitter.shuffle(value, None, [min(i, value.lanes - 1) for i in range(lanes)])


def _narrowed(emitter: Emitter, value: Value, lanes: int) -> Value:
    if value.lanes == lanes:
        return value
    if lanes > 1:
        return emitter.shuffle(value, None, range(lanes))
    return emitter.emit(value.dtype, 1, f"extractelement {value.type} %s, i32 0", value)
