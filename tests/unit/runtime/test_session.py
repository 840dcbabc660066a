"""Sessions: states stay between runs, in place where the program allows it, and nothing leaks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from tests.sized_models import sized_model
from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import InvalidArgumentError, InvalidInputError
from tilewright.compiler.runtime.executable import Executable
from tilewright.compiler.runtime.inputs import Placed
from tilewright.compiler.runtime.packing import aligned_empty
from tilewright.compiler.runtime.ports import ModelPorts, Sizes
from tilewright.compiler.runtime.program import (
    Branch,
    BufferRef,
    BufferSpace,
    Copy,
    Instruction,
    NativeCall,
    Port,
    Program,
    Refuse,
)
from tilewright.compiler.runtime.program_json import program_from_json, program_to_json
from tilewright.compiler.runtime.session import STEPS, Session
from tilewright.compiler.sizes import Dimension, dynamic_size

ROWS, WIDTH = 6, 4
NO_WEIGHTS = aligned_empty(0)
CACHE = Port("past", DType.FLOAT32, (ROWS, WIDTH))
PLACE = Port("place", DType.INT64, (1,))
NEW = Port("new", DType.FLOAT32, (1, WIDTH))
PRESENT = replace(CACHE, name="present")
SEEN = replace(NEW, name="seen")
ROW_BYTES = 4 * WIDTH


def at(space: str, offset: int) -> BufferRef:
    return BufferRef(BufferSpace(space), offset)


PAST_AT, PLACE_AT, NEW_AT = (at("input", i) for i in range(3))
PRESENT_AT, SEEN_AT = (at("output", i) for i in range(2))
UPDATE = NativeCall("scatter", (ROWS, ROW_BYTES, 1), (PAST_AT, PLACE_AT, NEW_AT, PRESENT_AT))
FIRST_ROW = Copy(SEEN_AT, PRESENT_AT, ROW_BYTES)


def program(*instructions: Instruction) -> Program:
    """A cache of rows into which one is written; the first row is seen."""
    chosen = instructions or (UPDATE, FIRST_ROW)
    return Program("cache", (CACHE, PLACE, NEW), (PRESENT, SEEN), (), chosen, 64, 0)


def executable(made: Program) -> Executable:
    return Executable(made, NO_WEIGHTS, {}.__getitem__)


def step(number: int) -> dict[str, np.ndarray]:
    place = np.array([number % ROWS], np.int64)
    return {"place": place, "new": np.full((1, WIDTH), number + 1, np.float32)}


def watched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Where each run finds the first input, and writes the first output."""
    seen: list[tuple[int, int]] = []
    original = Executable.run_into

    def run_into(
        self: Executable, arrays: list, given: Mapping[int, Placed], rooms: tuple[int, ...]
    ) -> list:
        outputs = original(self, arrays, given, rooms)
        assert arrays[0].address == arrays[0].array.ctypes.data
        seen.append((arrays[0].address, outputs[0].ctypes.data))
        return outputs

    monkeypatch.setattr(Executable, "run_into", run_into)
    return seen


AGAIN = Copy(SEEN_AT, PAST_AT, ROW_BYTES)
ELSEWHERE = replace(UPDATE, buffers=(PAST_AT, PLACE_AT, NEW_AT, at("arena", 0)))


def test_an_output_may_lie_on_an_input_that_nothing_reads_later() -> None:
    assert program().in_place() == {0: 0}
    assert program(AGAIN, UPDATE, FIRST_ROW).in_place() == {0: 0}  # read before
    again = program_from_json(program_to_json(program()))
    assert again.in_place() == {0: 0}


@pytest.mark.parametrize(
    "instructions",
    [
        (UPDATE, AGAIN),  # the old first row is read when it is overwritten
        (Copy(PRESENT_AT, NEW_AT, ROW_BYTES), UPDATE, FIRST_ROW),  # written before
        (replace(UPDATE, buffers=(PAST_AT, PLACE_AT, PAST_AT, PRESENT_AT)), FIRST_ROW),  # its own
        (Branch(PLACE_AT, (UPDATE,), (UPDATE,)), UPDATE, FIRST_ROW),  # twice
        (UPDATE, Branch(PLACE_AT, (AGAIN,), ()), FIRST_ROW),  # read within another one
        (Copy(PRESENT_AT, PAST_AT, ROWS * ROW_BYTES), FIRST_ROW),  # no function that changes it
    ],
)
def test_what_would_be_read_after_it_was_overwritten_is_not_in_place(
    instructions: tuple[Instruction, ...],
) -> None:
    assert program(*instructions).in_place() == {}


def test_a_state_takes_the_shape_of_its_output() -> None:
    rows, width = (dynamic_size(Dimension(name, 1, 8)) for name in ("rows", "width"))
    past, new = replace(CACHE, shape=(rows, width)), replace(NEW, shape=(1, width))
    update = replace(UPDATE, parameters=(rows, 4 * width, 1))
    turned = Port("present", DType.FLOAT32, (width, rows))  # as many bytes
    model = executable(Program("turned", (past, PLACE, new), (turned,), (), (update,), 64, 0))
    session = model.bind({"present": "past"}, {"past": np.zeros((2, 3), np.float32)})
    session.run({"place": np.array([1]), "new": np.ones((1, 3), np.float32)})
    assert session.state("past").tolist() == [[0, 0], [0, 1], [1, 1]]
    session.run({"place": np.array([0]), "new": np.full((1, 2), 2, np.float32)})
    assert session.state("past").tolist() == [[2, 2, 0], [1, 1, 1]]


REFUSAL = Branch(at("input", 3), (Refuse("no"),), ())


@pytest.mark.parametrize("instructions", [(UPDATE, FIRST_ROW, REFUSAL), (REFUSAL, UPDATE)])
def test_a_refused_step_leaves_the_states(instructions: tuple[Instruction, ...]) -> None:
    bad = Port("bad", DType.BOOL, (1,))
    outputs = (PRESENT, SEEN) if FIRST_ROW in instructions else (PRESENT,)
    model = executable(Program("cache", (CACHE, PLACE, NEW, bad), outputs, (), instructions, 64, 0))
    assert bool(model.in_place) == (instructions[0] is REFUSAL)  # nothing has changed before it
    session = model.bind({"present": "past"})
    session.run({**step(0), "bad": np.array([False])})
    before = session.state("past")
    with pytest.raises(InvalidInputError, match="no"):
        session.run({**step(1), "bad": np.array([True])})
    np.testing.assert_array_equal(session.state("past"), before)


@pytest.mark.parametrize("instructions", [(UPDATE, FIRST_ROW), (UPDATE, AGAIN)])
def test_steps_give_what_runs_give(instructions: tuple[Instruction, ...]) -> None:
    """In place and with two buffers."""
    model = executable(program(*instructions))
    session = model.bind({"present": "past"})
    assert session.states == ("past",)
    assert (session.input_names, session.output_names) == (("place", "new"), ("seen",))
    for _ in range(2):
        cache = np.zeros((ROWS, WIDTH), np.float32)
        for number in range(20):
            given = step(number)
            cache, seen = model.run({"past": cache, **given})
            (found,) = session.run(given) if number % 2 else session.run(list(given.values()))
            np.testing.assert_array_equal(found, seen)
            np.testing.assert_array_equal(session.state("past"), cache)
        session.reset()
        assert not session.state("past").any()


def test_a_cache_stays_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = watched(monkeypatch)
    session = executable(program()).bind({"present": "past"})
    for number in range(5):
        session.run(step(number))
    assert len({*sum(seen, ())}) == 1


def test_two_buffers_change_places(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = watched(monkeypatch)
    session = executable(program(UPDATE, AGAIN)).bind({"present": "past"})
    for number in range(6):
        session.run(step(number))
    assert all(read != written for read, written in seen)
    assert all(before[1] == after[0] for before, after in pairwise(seen))
    assert len({*sum(seen, ())}) == 2


def test_a_run_never_writes_to_the_arrays_of_the_caller() -> None:
    model = executable(program())
    cache = aligned_empty(ROWS * ROW_BYTES).view(np.float32).reshape(ROWS, WIDTH)
    cache[...] = 7
    given = {"past": cache, **step(2)}
    (present, _) = model.run(given)
    assert (cache == 7).all() and not np.shares_memory(present, cache)
    assert (present[2] == 3).all() and (present[:2] == 7).all()


def test_first_values_are_copied_and_come_back() -> None:
    first = np.arange(ROWS * WIDTH, dtype=np.float32).reshape(ROWS, WIDTH)
    kept = first.copy()
    session = executable(program()).bind({"present": "past"}, initial={"past": first})
    (seen,) = session.run(step(0))
    assert (seen == 1).all() and (session.state("past")[0] == 1).all()
    np.testing.assert_array_equal(first, kept)
    first[...] = -1
    session.reset()
    np.testing.assert_array_equal(session.state("past"), kept)
    (seen,) = session.run(step(3))
    np.testing.assert_array_equal(seen[0], kept[0])


def test_what_is_given_out_is_nobody_elses() -> None:
    """A copy of a state, and an output of a step, do not change with the next step."""
    session = executable(program()).bind({"present": "past"})
    (seen,) = session.run(step(0))
    state = session.state("past")
    state[...] = -1
    (later,) = session.run(step(6))
    assert (seen == 1).all() and (later == 7).all()
    assert (session.state("past")[1:] == 0).all()


def test_a_refused_step_changes_nothing() -> None:
    session = executable(program()).bind({"present": "past"})
    session.run(step(0))
    before = session.state("past")
    for given, reason in (
        ({"place": step(1)["place"]}, "input 'new' is missing"),
        ({**step(1), "past": before}, "input 'past' is a state of this session"),
        ({**step(1), "other": before}, "there is no input 'other', the inputs are 'place', 'new'"),
        ({**step(1), "new": before}, r"input 'new' has shape \(6, 4\), expected \(1, 4\)"),
        ({**step(1), "place": np.zeros(1)}, "input 'place' has dtype float64, expected int64"),
    ):
        with pytest.raises(InvalidInputError, match=reason):
            session.run(given)
    np.testing.assert_array_equal(session.state("past"), before)
    assert (session.run(step(6))[0] == 7).all()


@pytest.mark.parametrize(
    ("states", "initial", "reason"),
    [
        ({"absent": "past"}, {}, "there is no output 'absent', the outputs are 'present', 'seen'"),
        ({"present": "absent"}, {}, "there is no input 'absent', the inputs are 'past', 'place'"),
        (
            {"present": "past", "seen": "past"},
            {},
            "input 'past' is bound to two outputs, 'present' and 'seen'",
        ),
        (
            {"present": "new"},
            {},
            r"'present' cannot become input 'new': it has shape \(6, 4\), not",
        ),
        (
            {"seen": "place"},
            {},
            "'seen' cannot become input 'place': it is of float32, not of int64",
        ),
        (
            {"present": "past"},
            {"new": 0},
            "'new' has an initial value and is not a state, the states are",
        ),
    ],
)
def test_what_cannot_be_bound_is_named(
    states: dict[str, str], initial: dict[str, np.ndarray], reason: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=reason):
        executable(program()).bind(states, initial)


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (
            np.zeros((ROWS, WIDTH + 1), np.float32),
            r"of 'past' has shape \(6, 5\), expected \(6, 4\)",
        ),
        (np.zeros((ROWS, WIDTH)), "initial value of 'past' has dtype float64, expected float32"),
        ([[0.0]], "initial value of 'past' is of type list, expected an array"),
    ],
)
def test_a_first_value_that_does_not_fit_is_named(first: np.ndarray, reason: str) -> None:
    with pytest.raises(InvalidInputError, match=reason):
        executable(program()).bind({"present": "past"}, {"past": first})


def test_a_state_is_asked_for_by_its_input() -> None:
    session = executable(program()).bind({"present": "past"})
    with pytest.raises(InvalidArgumentError, match="no state 'present', the states are 'past'"):
        session.state("present")


def test_an_output_that_is_counted_is_no_state() -> None:
    ports = (Port("x", DType.INT64, (4,)), Port("n", DType.INT64, ()))
    call = NativeCall(
        "trim", (1, 4, 8), (*(at("input", i) for i in (0, 1)), PRESENT_AT, at("count", 0))
    )
    made = Program("p", ports, (Port("y", DType.INT64, (4,), 0),), (), (call,), 0, 0)
    with pytest.raises(InvalidArgumentError, match="its number of elements depends on the data"):
        executable(made).bind({"y": "x"})


def test_sessions_of_one_executable_run_at_once() -> None:
    model = executable(program())
    failures: list[str] = []

    def generate(seed: int) -> None:
        session = model.bind({"present": "past"})
        cache = np.zeros((ROWS, WIDTH), np.float32)
        for number in range(seed, seed + 300):
            cache, seen = model.run({"past": cache, **step(number)})
            (found,) = session.run(step(number))
            if not np.array_equal(found, seen) or not np.array_equal(session.state("past"), cache):
                failures.append(f"{seed}: step {number}")
                return

    threads = [threading.Thread(target=generate, args=(100 * seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_session_takes_one_step_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    session = executable(program()).bind({"present": "past"})
    original = Executable.run_into
    tried: list[Callable[[], object]] = [
        lambda: session.run(step(1)),
        lambda: session.state("past"),
        session.reset,
    ]

    def run_into(
        self: Executable, arrays: list, given: Mapping[int, Placed], rooms: tuple[int, ...]
    ) -> list:
        for attempt in tried:  # a step is under way
            with pytest.raises(InvalidArgumentError, match="one step at a time"):
                attempt()
        return original(self, arrays, given, rooms)

    monkeypatch.setattr(Executable, "run_into", run_into)
    (seen,) = session.run(step(0))
    assert (seen == 1).all()
    tried.clear()
    assert (session.run(step(6))[0] == 7).all()


def growing(sizes: Sizes) -> Executable:
    """The rows so far, and one behind them; the last one is seen."""
    past = dict(sizes)["past"]
    inputs = (Port("past", DType.FLOAT32, (past, WIDTH)), NEW)
    outputs = (Port("present", DType.FLOAT32, (past + 1, WIDTH)), SEEN)
    places = np.array([past], np.int64)
    weights = aligned_empty(64 + 64 * (past + 1))
    weights[:8] = places.view(np.uint8)
    whole = (past + 1) * ROW_BYTES
    call = NativeCall(
        "scatter",
        (past + 1, ROW_BYTES, 1),
        (at("arena", 0), at("weights", 0), at("input", 1), PRESENT_AT),
    )
    instructions = (
        Copy(at("arena", 0), at("input", 0), past * ROW_BYTES),
        call,
        Copy(SEEN_AT, at("input", 1), ROW_BYTES),
    )
    arena = -(-whole // 64) * 64
    made = Program("growing", inputs, outputs, (), instructions, arena, 64)
    return executable_with(made, weights)


def executable_with(made: Program, weights: np.ndarray) -> Executable:
    return Executable(made, weights, {}.__getitem__)


GROWING = ModelPorts(
    {"past": ("past", WIDTH), "new": (1, WIDTH)}, {"present": (-1, WIDTH), "seen": (1, WIDTH)}
)
EMPTY = np.zeros((0, WIDTH), np.float32)


def test_a_state_may_grow() -> None:
    session = sized_model(GROWING, growing).bind({"present": "past"}, {"past": EMPTY})
    for _ in range(2):
        for number in range(12):
            new = np.full((1, WIDTH), number, np.float32)
            (seen,) = session.run({"new": new})
            np.testing.assert_array_equal(seen, new)
            expected = np.repeat(np.arange(number + 1, dtype=np.float32), WIDTH).reshape(-1, WIDTH)
            np.testing.assert_array_equal(session.state("past"), expected)
        session.reset()
        assert session.state("past").shape == (0, WIDTH)


def test_steps_of_one_program_and_of_several_follow_each_other() -> None:
    """As of a model that is cut: each step finds the state where the last one left it."""
    whole = []

    def fitting(arrays: Sequence[np.ndarray]) -> Executable | None:
        past = len(arrays[0])
        return growing((("past", past),)) if past % 3 else None

    def run(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        past, new = arrays
        whole.append(len(past))
        return [np.concatenate([past, new]), new]

    dims = {name: GROWING.inputs[name] for name in ("past", "new")}
    names = ("present", "seen")
    states = {"present": "past"}
    session = Session(dims, names, fitting, run, states, {"past": EMPTY})
    for _ in range(2):
        for number in range(12):
            new = np.full((1, WIDTH), number, np.float32)
            (seen,) = session.run({"new": new})
            np.testing.assert_array_equal(seen, new)
            expected = np.repeat(np.arange(number + 1, dtype=np.float32), WIDTH).reshape(-1, WIDTH)
            np.testing.assert_array_equal(session.state("past"), expected)
        session.reset()
    assert whole == [0, 3, 6, 9] * 2

    lists = Session(
        dims, names, lambda arrays: None, lambda arrays: [[], arrays[1]], states, {"past": EMPTY}
    )
    with pytest.raises(InvalidArgumentError, match=r"'present' cannot .* 'past': it is a list"):
        lists.run([np.ones((1, WIDTH), np.float32)])
    assert lists.state("past").shape == (0, WIDTH)


def test_memory_for_a_state_that_grows_is_rarely_new(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = watched(monkeypatch)
    session = sized_model(GROWING, growing).bind({"present": "past"}, {"past": EMPTY})
    for _ in range(STEPS + 6):
        session.run([np.ones((1, WIDTH), np.float32)])
    assert len({written for _, written in seen}) <= 14
    assert (session.state("past") == 1).all()


def test_an_open_state_needs_a_first_value() -> None:
    model = sized_model(GROWING, growing)
    with pytest.raises(InvalidArgumentError, match=r"'past' has dynamic dimensions \(past, 4\)"):
        model.bind({"present": "past"})
    session = model.bind({"present": "past"}, {"past": EMPTY.astype(np.float64)})
    with pytest.raises(InvalidInputError, match="initial value of 'past' has dtype float64"):
        session.run([np.ones((1, WIDTH), np.float32)])
    served = sized_model(GROWING, growing, [(("past", 0),)])
    session = served.bind({"present": "past"}, {"past": EMPTY})
    session.run([np.ones((1, WIDTH), np.float32)])
    with pytest.raises(InvalidInputError, match="past=1 is not served, only past=0"):
        session.run([np.ones((1, WIDTH), np.float32)])


def test_a_closed_state_of_a_model_of_several_sizes() -> None:
    """The program for each number of new rows works in the same memory."""

    def make(sizes: Sizes) -> Executable:
        new = dict(sizes)["new"]
        ports = (CACHE, replace(PLACE, shape=(new,)), replace(NEW, shape=(new, WIDTH)))
        call = replace(UPDATE, parameters=(ROWS, ROW_BYTES, new))
        return executable(Program("cache", ports, (PRESENT, SEEN), (), (call, FIRST_ROW), 0, 0))

    dims = {"past": (ROWS, WIDTH), "place": ("new",), "new": ("new", WIDTH)}
    ports = ModelPorts(dims, {"present": (ROWS, WIDTH), "seen": (1, WIDTH)})
    session = sized_model(ports, make).bind({"present": "past"})
    assert session.state("past").tolist() == [[0] * WIDTH] * ROWS
    places = np.arange(4)
    session.run({"place": places, "new": np.ones((4, WIDTH), np.float32)})
    session.run({"place": places[2:3], "new": np.full((1, WIDTH), 9, np.float32)})
    assert session.state("past")[:, 0].tolist() == [1, 1, 9, 1, 0, 0]
