"""Loops and branches in programs: their execution, their encoding, and refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.unit.runtime.conftest import spec_of
from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import InvalidInputError
from tilewright.compiler.runtime.executable import Executable
from tilewright.compiler.runtime.kernel import BufferRole
from tilewright.compiler.runtime.packing import aligned_empty
from tilewright.compiler.runtime.program import (
    ENDLESS,
    NESTING_LIMIT,
    Branch,
    BufferRef,
    BufferSpace,
    Copy,
    Instruction,
    KernelCall,
    Loop,
    NativeCall,
    Port,
    Program,
    Refuse,
    walk,
)
from tilewright.compiler.runtime.program_check import check_program
from tilewright.compiler.runtime.program_encoding import encode
from tilewright.compiler.runtime.program_json import program_from_json, program_to_json

NO_WEIGHTS = aligned_empty(0)


def at(space: str, offset: int = 0) -> BufferRef:
    return BufferRef(BufferSpace(space), offset)


COUNTER, GOING, STATE, ROWS = (at("arena", 64 * n) for n in range(4))
TRIPS, STOPS, CHOICE = (at("input", n) for n in range(3))

LOOP = Loop(
    COUNTER,
    TRIPS,
    GOING,
    8,
    (
        NativeCall("put", (8, 8), (COUNTER, COUNTER, ROWS)),
        Branch(CHOICE, (Copy(STATE, COUNTER, 8),), (Copy(STATE, TRIPS, 8),)),
        Loop(STATE, TRIPS, STOPS, 2, ()),
        Copy(GOING, STOPS, 1),
    ),
)
"""Steps put their numbers into rows, and end after the first unless `goes_on` is true."""

CALLS: tuple[Instruction, ...] = (
    Copy(GOING, CHOICE, 1),
    LOOP,
    Copy(at("output"), ROWS, 64),
    Copy(at("output", 1), COUNTER, 8),
)


def program(calls: tuple[Instruction, ...] = CALLS, arena: int = 320) -> Program:
    inputs = (
        Port("trips", DType.INT64, ()),
        Port("goes_on", DType.BOOL, ()),
        Port("begins", DType.BOOL, ()),
    )
    outputs = (Port("rows", DType.INT64, (8,)), Port("steps", DType.INT64, ()))
    return Program("p", inputs, outputs, (), calls, arena, 0)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("trips", "goes_on", "begins", "steps"),
    [(5, 1, 1, 5), (0, 1, 1, 0), (-3, 1, 1, 0), (5, 0, 1, 1), (5, 1, 0, 0), (1 << 62, 1, 1, 8)],
)
def test_a_loop_runs_as_often_as_memory_says(
    trips: int, goes_on: int, begins: int, steps: int, threads: int
) -> None:
    executable = Executable(program(), NO_WEIGHTS, {}.__getitem__, threads)
    for _ in range(2):
        rows, found = executable.run([np.array(trips), np.bool_(goes_on), np.bool_(begins)])
        assert found == steps
        assert rows[:steps].tolist() == list(range(steps))


def test_the_code_is_what_the_header_says() -> None:
    encoded = encode(program())
    assert encoded.code.tolist() == [
        *(1, 5, 0, 1, 1),  # copy: arguments, bytes
        *(3, 34, 2, 8),  # loop: first argument, most; then its body
        *(2, 7, 5, 0, 1, 8, 8),  # put
        *(4, 14, 8, 5),  # branch: condition, words of the first part
        *(1, 5, 9, 10, 8),
        *(1, 5, 11, 12, 8),
        *(3, 4, 13, 2),  # a loop without a body
        *(1, 5, 16, 17, 1),
        *(1, 5, 18, 19, 64),
        *(1, 5, 20, 21, 8),
    ]
    assert encoded.starts == (0, 5, 9, 16, 20, 25, 30, 34, 39, 44)
    assert encoded.refs[2:8] == (COUNTER, TRIPS, GOING, COUNTER, COUNTER, ROWS)
    assert encoded.natives == ("tw_native_put",)


def test_walking_and_json_keep_the_order() -> None:
    made = program()
    assert [type(i) for i in made.walk()] == [
        *(Copy, Loop, NativeCall, Branch, Copy, Copy, Loop, Copy, Copy, Copy)
    ]
    assert program_from_json(json.loads(json.dumps(program_to_json(made)))) == made


def test_the_profile_covers_what_is_in_bodies() -> None:
    executable = Executable(program(), NO_WEIGHTS, {}.__getitem__)
    given = [np.array(7), np.True_, np.True_]
    seconds = executable.profile(given, 20)
    assert seconds.shape == (20, 10)
    kinds = list(executable.program.walk())
    passed_over = kinds.index(Copy(STATE, TRIPS, 8))
    assert not seconds[:, passed_over].any()
    assert (seconds.sum(axis=0)[[1, 2]] > 0).all()


def test_scratch_is_for_functions_in_bodies_too() -> None:
    call = NativeCall("top_k", (0, 8, 1, 1, 1, 1, 1), (TRIPS, STATE))
    inner = Loop(COUNTER, TRIPS, GOING, 1, (Branch(CHOICE, (call,), ()),))
    assert program((*CALLS, inner)).scratch_bytes == 16


def test_a_refusal_ends_the_run_with_its_reason() -> None:
    # in the second branch reached, so that the test distinguishes the reasons
    inner = Branch(CHOICE, (Refuse("first"),), (Refuse("second"),))
    made = program((*CALLS, Branch(STOPS, (inner,), ())))
    check_program(made)
    assert made.refusals == ("first", "second")
    assert program_from_json(json.loads(json.dumps(program_to_json(made)))) == made
    assert encode(made).code.tolist()[-14:] == [4, 14, 22, 10, 4, 10, 23, 3, 5, 3, 0, 5, 3, 1]
    executable = Executable(made, NO_WEIGHTS, {}.__getitem__)
    for begins, choice in ((1, "first"), (0, "second")):
        with pytest.raises(InvalidInputError, match=choice):
            executable.run([np.array(2), np.True_, np.bool_(begins)])
    rows, found = executable.run([np.array(2), np.False_, np.True_])
    assert (found, rows[0]) == (1, 0)


def looping(call: Instruction) -> tuple[Instruction, ...]:
    return (replace(LOOP, body=(*LOOP.body, call)),)


def choosing(call: Instruction) -> tuple[Instruction, ...]:
    return (Branch(CHOICE, (), (call,)),)


@pytest.mark.parametrize("within", [looping, choosing])
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (Copy(STATE, TRIPS, 9), "input 0 has no 9 bytes"),
        (Copy(at("arena", 256), ROWS, 65), "65 bytes at 256"),
        (Copy(at("arena", -64), ROWS, 8), "negative"),
        (Copy(TRIPS, ROWS, 8), "writes to space 'input'"),
        (KernelCall(0, ()), "there is no kernel 0"),
        (NativeCall("put", (5, 8), (TRIPS, TRIPS, at("output", 1))), "output 1 has no 40 bytes"),
        (NativeCall("put", (5,), (TRIPS, TRIPS, ROWS)), "takes no 1 parameters"),
        (Loop(at("weights"), TRIPS, GOING, 1, ()), "8 bytes at 0"),
        (Loop(TRIPS, TRIPS, GOING, 1, ()), "writes to space 'input'"),
        (Loop(COUNTER, STOPS, GOING, 1, ()), "input 1 has no 8 bytes"),
        (Loop(COUNTER, TRIPS, at("input", 9), 1, ()), "input 9 has no 1 bytes"),
        (Loop(at("arena", 320), TRIPS, GOING, 1, ()), "8 bytes at 320"),
        (Loop(COUNTER, TRIPS, GOING, -1, ()), "at most -1 steps"),
        (Loop(COUNTER, TRIPS, GOING, ENDLESS + 1, ()), "at most 9223372036854775808 steps"),
        (Branch(at("weights", 64), (), ()), "1 bytes at 64"),
        (Branch(at("count"), (), ()), "output 0 is not counted"),
    ],
)
def test_what_reaches_outside_within_a_body_is_refused(
    within: Callable[[Instruction], tuple[Instruction, ...]], call: Instruction, message: str
) -> None:
    wrong = program((*CALLS, *within(call)))
    with pytest.raises(ValueError, match=f"instruction 4, .*instruction .*{message}"):
        check_program(wrong)
    with pytest.raises(ValueError, match=f"{message}|got -1, which is negative"):
        program_from_json(program_to_json(wrong))
    with pytest.raises(ValueError, match=message):
        Executable(wrong, NO_WEIGHTS, {}.__getitem__)


def test_what_may_not_run_writes_no_output() -> None:
    for within in (looping, choosing):
        for number in (0, 1):
            calls = (*CALLS[: 2 + number], *CALLS[3 + number :])
            with pytest.raises(ValueError, match="nothing writes output"):
                check_program(program((*calls, *within(CALLS[2 + number]))))


def test_a_count_has_room_for_one_number() -> None:
    port = replace(program().outputs[1], shape=(4,), counted=0)
    counted = replace(program(), outputs=(program().outputs[0], port))
    spec = spec_of("fill", {"fill": 1}, {"y": (BufferRole.OUTPUT, 200)})
    wrong = replace(counted, kernels=(spec,), instructions=(KernelCall(0, (at("count", 1),)),))
    with pytest.raises(ValueError, match="output 1 is not counted"):
        check_program(wrong)
    loop = Loop(at("count", 1), TRIPS, GOING, 9, ())
    with pytest.raises(ValueError, match="a loop of at most 9 steps"):
        check_program(replace(counted, instructions=(loop,)))


def nested(depth: int) -> Instruction:
    inner: Instruction = Copy(STATE, TRIPS, 8)
    for _ in range(depth):
        inner = Branch(CHOICE, (inner,), ())
    return inner


def test_nesting_has_a_limit() -> None:
    deep = program((*CALLS, nested(NESTING_LIMIT)))
    check_program(deep)
    assert program_from_json(program_to_json(deep)) == deep
    assert len(list(walk(deep.instructions))) == 10 + NESTING_LIMIT + 1
    Executable(deep, NO_WEIGHTS, {}.__getitem__).run([np.array(3), np.True_, np.True_])
    deeper = program((*CALLS, nested(NESTING_LIMIT + 1)))
    with pytest.raises(ValueError, match="lies within more than 200 others"):
        check_program(deeper)
    with pytest.raises(ValueError, match="lies within more than 200 others"):
        program_from_json(program_to_json(deeper))


@pytest.mark.parametrize(
    "change",
    [
        {"loop": 3},
        {"loop": [{"unknown": 1}]},
        {"trips": ["arena"]},
        {"going": ["nowhere", 0]},
        {"most": None},
    ],
)
def test_malformed_instructions_are_named(change: dict[str, object]) -> None:
    data = program_to_json(program())
    data["instructions"][1] |= change
    with pytest.raises(
        ValueError,
        match=r"malformed program|unknown instruction|values to unpack|Space|expected a size",
    ):
        program_from_json(data)
