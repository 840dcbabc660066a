"""Scopes: code goes to the outermost loop that it can, and once."""

from __future__ import annotations

import pytest

from tilewright.compiler.codegen.cpu.ssa import Emitter, Value, element, suffix, type_text
from tilewright.compiler.dtypes import DType
from tilewright.compiler.targets.host import resolve_target

TARGET = resolve_target("x86-64-v4")
I64 = DType.INT64


def add(emitter: Emitter, a: Value, b: Value) -> Value:
    return emitter.emit(I64, 1, "add i64 %s, %s", a, b)


def one_loop(emitter: Emitter, *, may_be_empty: bool = False) -> tuple[list[str], list[Value]]:
    """x + x inside a loop that sums it and its counter; the lines, and the loop's results."""
    x = Value("%x", I64)
    zero, ten = emitter.const(0, I64), emitter.const(10, I64)

    def body(counter: Value, carried: list[Value]) -> list[Value]:
        twice = add(emitter, x, x)
        return [add(emitter, add(emitter, carried[0], twice), counter)]

    results = emitter.loop(zero, ten, [zero], body, may_be_empty=may_be_empty)
    return emitter.lines, results


def position(lines: list[str], text: str) -> int:
    (found,) = [n for n, line in enumerate(lines) if text in line]
    return found


def test_equal_code_is_emitted_once() -> None:
    emitter = Emitter(TARGET)
    x, y = Value("%x", I64), Value("%y", I64)
    assert add(emitter, x, y) is add(emitter, x, y)
    assert add(emitter, y, x) is not add(emitter, x, y)
    assert len(emitter.lines) == 2


def test_equal_code_of_other_signedness_keeps_its_type() -> None:
    emitter = Emitter(TARGET)
    bit = Value("%b", DType.BOOL)
    first = emitter.emit(DType.INT8, 1, "zext i1 %s to i8", bit)
    second = emitter.emit(DType.UINT8, 1, "zext i1 %s to i8", bit)
    assert (first.dtype, second.dtype) == (DType.INT8, DType.UINT8)
    assert first.name == second.name
    assert len(emitter.lines) == 1


def test_invariant_code_moves_before_the_loop() -> None:
    lines, _ = one_loop(Emitter(TARGET))
    assert position(lines, "add i64 %x, %x") < position(lines, "L1:")
    assert position(lines, "br label %L1") == position(lines, "L1:") - 1


def test_code_that_needs_the_counter_stays_inside() -> None:
    lines, _ = one_loop(Emitter(TARGET))
    inside = position(lines, "add i64 %t2, %i1")
    assert position(lines, "L1:") < inside < position(lines, "X1:")


def test_a_lower_bound_keeps_code_inside() -> None:
    emitter = Emitter(TARGET)
    pointer = Value("%p", None)
    zero, ten = emitter.const(0, I64), emitter.const(10, I64)

    def body(counter: Value, carried: list[Value]) -> list[Value]:
        emitter.emit(I64, 1, "load i64, ptr %s, align 8", pointer, depth=emitter.depth)
        return carried

    emitter.loop(zero, ten, [], body, may_be_empty=False)
    assert position(emitter.lines, "load i64") > position(emitter.lines, "L1:")


def test_scopes_forget_what_inner_loops_emitted() -> None:
    """A value of a closed loop's body may not have been computed; it is emitted again outside."""
    emitter = Emitter(TARGET)
    pointer = Value("%p", None)
    zero, ten = emitter.const(0, I64), emitter.const(10, I64)

    def load(depth: int) -> Value:
        return emitter.emit(I64, 1, "load i64, ptr %s, align 8", pointer, depth=depth)

    inner: list[Value] = []

    def body(counter: Value, carried: list[Value]) -> list[Value]:
        inner.append(load(emitter.depth))
        return carried

    emitter.loop(zero, ten, [], body, may_be_empty=True)
    assert load(0).name != inner[0].name


def test_carried_values_are_phis() -> None:
    lines, (result,) = one_loop(Emitter(TARGET))
    phi = lines[position(lines, "%c1_0 = phi")]
    assert "[ 0, %entry ]" in phi
    assert f"[ {result.name}, %L1 ]" in phi
    assert result.depth == 0


def test_loop_that_may_be_empty_gives_its_start() -> None:
    lines, (result,) = one_loop(Emitter(TARGET), may_be_empty=True)
    assert position(lines, "icmp slt i64 0, 10") < position(lines, "L1:")
    final = lines[position(lines, f"{result.name} = phi")]
    assert position(lines, f"{result.name} = phi") > position(lines, "X1:")
    assert "[ 0, %entry ]" in final


def test_code_after_a_loop_follows_its_exit() -> None:
    emitter = Emitter(TARGET)
    lines, (result,) = one_loop(emitter)
    after = add(emitter, result, result)
    assert position(lines, f"{after.name} = add") > position(lines, "X1:")
    # a second loop enters from the first one's exit
    emitter.loop(
        emitter.const(0, I64), emitter.const(3, I64), [], lambda c, v: v, may_be_empty=False
    )
    assert "[ 0, %X1 ]" in lines[position(lines, "%i2 = phi")]


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [
        (1.0, DType.FLOAT32, "0x3FF0000000000000"),
        (-0.0, DType.FLOAT32, "0x8000000000000000"),
        (0.0, DType.FLOAT32, "0x0000000000000000"),
        (0.1, DType.FLOAT32, "0x3FB99999A0000000"),
        (0.1, DType.FLOAT64, "0x3FB999999999999A"),
        (float("inf"), DType.FLOAT64, "0x7FF0000000000000"),
        (1.0, DType.FLOAT16, "0xH3C00"),
        (1.00390625, DType.BFLOAT16, "0xR3F80"),
        (1.01171875, DType.BFLOAT16, "0xR3F82"),
        (-7, DType.INT8, "-7"),
        (2**64 - 1, DType.UINT64, "18446744073709551615"),
        (True, DType.BOOL, "true"),
    ],
)
def test_literals(value: float, dtype: DType, text: str) -> None:
    emitter = Emitter(TARGET)
    assert emitter.const(value, dtype).name == text
    assert emitter.const(value, dtype, 4).name == f"splat ({element(dtype)} {text})"


def test_zeros_of_both_signs_are_two_constants() -> None:
    emitter = Emitter(TARGET)
    assert emitter.const(0.0, DType.FLOAT32).name != emitter.const(-0.0, DType.FLOAT32).name


def test_type_names() -> None:
    assert type_text(DType.FLOAT32, 16) == "<16 x float>"
    assert type_text(DType.BOOL, 1) == "i1"
    assert suffix(DType.UINT8, 4) == "v4i8"
    assert suffix(DType.BFLOAT16, 1) == "bf16"


def test_splat_of_a_constant_is_a_constant() -> None:
    emitter = Emitter(TARGET)
    assert emitter.splat(emitter.const(2.5, DType.FLOAT32), 8).const == 2.5
    assert emitter.lines == []
    vector = emitter.splat(Value("%x", DType.FLOAT32), 8)
    assert vector.type == "<8 x float>"
    assert emitter.splat(vector, 8) is vector


def multiples(emitter: Emitter, low: Value, factors: tuple[int, ...], *, nested: bool) -> list[str]:
    """A loop from `low` that uses multiples of its counter, around another one or not; its text."""
    ten = emitter.const(10, I64)

    def body(counter: Value, carried: list[Value]) -> list[Value]:
        for factor in factors:
            add(emitter, emitter.multiple(counter, factor), counter)
        if nested:
            emitter.loop(ten, ten, [], lambda c, v: v, may_be_empty=True)
        return carried

    emitter.loop(low, ten, [], body, may_be_empty=True)
    return emitter.lines


def test_multiples_of_an_innermost_counter_are_carried() -> None:
    emitter = Emitter(TARGET)
    lines = multiples(emitter, Value("%low", I64), (1, 4, 192, 192), nested=False)
    start = lines[position(lines, "mul nsw i64 %low, 192")].split()[0]
    (carried,) = [line for line in lines if f"phi i64 [ {start}, %entry ]" in line]
    name = carried.split()[0]
    (added,) = [line for line in lines if f"add nsw i64 {name}, 192" in line]
    assert f"[ {added.split()[0]}, %L1 ]" in carried
    # a factor that an address takes for nothing stays one
    assert position(lines, "mul nsw i64 %i1, 4") > position(lines, "L1:")


def test_multiples_of_an_outer_counter_are_computed() -> None:
    """Carried in registers, they would occupy one through all of the inner loop."""
    lines = multiples(Emitter(TARGET), Value("%low", I64), (192,), nested=True)
    assert position(lines, "L1:") < position(lines, "mul nsw i64 %i1, 192")
    assert not any("192" in line and "add nsw" in line for line in lines)


def test_multiples_start_at_a_number_where_the_loop_does() -> None:
    emitter = Emitter(TARGET)
    lines = multiples(emitter, emitter.const(3, I64), (192,), nested=False)
    assert any("phi i64 [ 576, %entry ]" in line for line in lines)
