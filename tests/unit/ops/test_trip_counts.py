"""Counted steps of loops: as many as the loop takes, for numbers and for sizes in their ranges."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from tilewright.compiler.dtypes import DType
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.ops.builder import GraphBuilder
from tilewright.compiler.ops.control import STEP
from tilewright.compiler.ops.trip_counts import State, TripCount, trip_count
from tilewright.compiler.sizes import Dimension, at, dynamic_size

OPERATORS = {
    "less": np.less,
    "less_or_equal": np.less_equal,
    "greater": np.greater,
    "greater_or_equal": np.greater_equal,
}


class Body:
    """The body of a loop under construction."""

    def __init__(self) -> None:
        self.builder = GraphBuilder()
        self.step = self.builder.input("step", STEP)
        self.states: dict[str, State] = {}

    def number(self, value: Any, dtype: DType = DType.INT64) -> str:
        return self.builder.numbers(np.array(value, object), dtype, "c")

    def __call__(self, op: str, *inputs: str, **attrs: Any) -> str:
        return self.builder.emit(op, inputs, attrs, "v")

    def counter(self, start: int | None, move: Any, dtype: DType = DType.INT64) -> str:
        """A state that moves by a number, or by another value; its value for the next step."""
        state = self.builder.input(f"state.{len(self.states)}", TensorType(dtype, ()))
        by = move if isinstance(move, str) else self.number(move, dtype)
        following = self("add", state, by)
        self.states[state] = State(start, following)
        return following

    def steps(self, going: str) -> TripCount | None:
        return trip_count(self.builder, going, self.step, self.states)


def counted(op: str, start: int, move: int, bound: int, swapped: bool) -> int | None:
    """How many steps a loop takes, if they are few."""
    value = start
    for steps in range(1, 60):
        value += move
        operands = (bound, value) if swapped else (value, bound)
        if not OPERATORS[op](*operands):
            return steps
    return None


def test_as_many_steps_as_the_loop_takes() -> None:
    for op, start, move, bound, swapped in product(
        OPERATORS, (-3, 0, 4), (-3, -1, 0, 1, 2), (-6, 0, 5, 11), (False, True)
    ):
        body = Body()
        value, limit = body.counter(start, move), body.number(bound)
        found = body.steps(body(op, *((limit, value) if swapped else (value, limit))))
        expected = counted(op, start, move, bound, swapped)
        assert found == (None if expected is None else TripCount(expected, True))


def test_a_size_says_how_many_through_casts() -> None:
    body, n = Body(), dynamic_size(Dimension("n", 1, 4096))
    time = body("cast", body.counter(0, 1, DType.INT32), to="float32")
    length = body("cast", body.number(n, DType.INT32), to="float32")
    steps = body("cast", body.step, to="int32")
    of_steps = body("less", steps, body.number(n + 7, DType.INT32))
    found = body.steps(body("logical_and", of_steps, body("less", time, length)))
    assert found == TripCount(n, True)


def test_states_that_never_change_are_bounds() -> None:
    body, n = Body(), dynamic_size(Dimension("n", 4, 100))
    kept = body.builder.input("kept", STEP)
    body.states[kept] = State(n, body("identity", kept))
    by = body.builder.input("by", STEP)
    body.states[by] = State(3, body("reshape", by, shape=()))
    value = body.counter(1, by)
    found = body.steps(body("less", value, kept))
    assert found is not None and found.exact
    for size in range(4, 30):
        assert at(found.most, {"n": size}) == counted("less", 1, 3, size, False)


def test_a_bound_where_the_range_decides_nothing() -> None:
    """From 1 to n, which may be 1: the loop that begins takes n - 1 steps."""
    body, n = Body(), dynamic_size(Dimension("n", 1, 100))
    found = body.steps(body("less", body.counter(1, 1), body.number(n)))
    assert found == TripCount(n, False)
    body = Body()
    ends = [body("less", body.counter(0, 1), body.number(bound)) for bound in (n, 50)]
    found = body.steps(body("logical_and", *ends))
    assert found is not None and found.most in (n, 50) and not found.exact


def test_what_the_data_decide_too_is_a_bound() -> None:
    body = Body()
    small = body("less", body.builder.input("x", STEP), body.number(0))
    found = body.steps(body("logical_and", small, body("less", body.counter(0, 1), body.number(9))))
    assert found == TripCount(9, False)


def test_sizes_without_a_bound_are_held_by_64_bits_alone() -> None:
    n = dynamic_size(Dimension("n", 1, None))
    for dtype, down in ((DType.INT64, False), (DType.INT64, True), (DType.UINT64, False)):
        body = Body()
        value = body.counter(n - 1, -1, dtype) if down else body.counter(0, 1, dtype)
        going = ("greater_or_equal", value, body.number(0, dtype))
        going = going if down else ("less", value, body.number(n, dtype))
        assert body.steps(body(*going)) == TripCount(n, True)
    body = Body()
    state = body.builder.input("s", TensorType(DType.INT32, ()))
    body.states[state] = State(0, body("add", state, body.number(1, DType.INT32)))
    wide = body("cast", body.states[state].following, to="int64")
    assert body.steps(body("less", wide, body.number(n))) is None


@pytest.mark.parametrize(
    ("dtype", "start", "move", "bound"),
    [
        (DType.UINT8, 0, 7, 250),
        (DType.INT8, 100, 50, 127),
        (DType.FLOAT16, 0, 1, 4000),
        (DType.FLOAT32, 0, 3, 1 << 25),
        (DType.INT64, None, 1, 9),
    ],
    ids=["wraps at 256", "wraps below 0", "stays at 2048", "rounds", "starts at what the run says"],
)
def test_what_is_no_counter(dtype: DType, start: int | None, move: int, bound: int) -> None:
    body = Body()
    value = body.counter(start, move, dtype)
    assert body.steps(body("less", value, body.number(bound, dtype))) is None


def test_states_that_move_each_other_are_no_counters() -> None:
    body = Body()
    a, b = (body.builder.input(name, STEP) for name in "ab")
    body.states |= {a: State(0, body("add", a, b)), b: State(1, body("add", b, a))}
    assert body.steps(body("less", body.states[a].following, body.number(9))) is None


def test_a_narrow_step_of_a_counter_wraps() -> None:
    """Its next value goes through 8 bits: it never reaches 200."""
    body = Body()
    state = body.builder.input("s", STEP)
    byte = body("add", body("cast", state, to="int8"), body.number(1, DType.INT8))
    following = body("cast", byte, to="int64")
    body.states[state] = State(0, following)
    assert body.steps(body("less", following, body.number(200))) is None
    assert body.steps(body("less", following, body.number(100))) == TripCount(100, True)


def test_each_value_of_a_body_is_visited_once() -> None:
    """1,100 sums of a value and itself, and conjunctions of a condition and itself: as paths from
    the condition they are 2^1100, and they are deeper than Python's stack."""
    body = Body()
    value = body.step
    for _ in range(1100):
        value = body("add", value, value)
    assert body.steps(body("less", value, body.number(9))) is None  # beyond the range of 64 bits
    body = Body()
    value = body.step
    for _ in range(3):
        value = body("add", value, value)
    going = body("less", value, body.number(17))
    for _ in range(1100):
        going = body("logical_and", going, going)
    assert body.steps(going) == TripCount(4, True)


def test_states_that_are_moved_by_states_end_the_search() -> None:
    body = Body()
    last = body.counter(5, 0)
    for _ in range(250):
        last = body.counter(5, last)
    assert body.steps(body("less", last, body.number(9))) is None
