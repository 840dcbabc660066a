"""Programs with open sizes: their results at any size, their refusals, their stored form."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from tests.unit.runtime.dynamic_programs import (
    PAST,
    at,
    cut_program,
    dynamic_program,
    expect,
    feeds,
    past,
)
from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import InvalidArgumentError, InvalidInputError, OutOfMemoryError
from tilewright.compiler.runtime.context import RunContext
from tilewright.compiler.runtime.executable import Executable
from tilewright.compiler.runtime.packing import aligned_empty
from tilewright.compiler.runtime.ports import Dims
from tilewright.compiler.runtime.program import (
    Copy,
    KernelCall,
    NativeCall,
    Port,
    Program,
    SizeBranch,
)
from tilewright.compiler.runtime.program_check import check_program
from tilewright.compiler.runtime.program_encoding import encode
from tilewright.compiler.runtime.program_json import program_from_json, program_to_json
from tilewright.compiler.runtime.session import Session
from tilewright.compiler.sizes import Dimension, SlackDimension, WorkloadDimension, dynamic_size

AddressOf = Callable[[str], int]

VECTORS = [(0, 4), (64, 32), (0, 32), (64, 4), (1, 4), (63, 28), (7, 8)]


@pytest.fixture
def executable(address_of: AddressOf) -> Executable:
    return Executable(dynamic_program(), aligned_empty(0), address_of)


def drawn(count: int, seed: int = 0) -> list[tuple[int, int]]:
    draw = Random(seed)
    return [(draw.randint(0, 64), 4 * draw.randint(1, 8)) for _ in range(count)]


@pytest.mark.parametrize("threads", [1, 3])
def test_one_program_runs_with_all_sizes(executable: Executable, threads: int) -> None:
    executable = executable.with_threads(threads)
    assert [d.range_text for d in executable.dimensions] == ["4..32:4", "0..64"]
    for seed, (old, new) in enumerate([*VECTORS, *drawn(50), *VECTORS]):
        given = feeds(old, new, seed)
        expect(executable.run(given), given)
        expect(executable.run(list(given.values())), given)
    assert len(executable._idle) == 1


def test_a_program_at_given_sizes_is_the_same(address_of: AddressOf) -> None:
    program = dynamic_program()
    for old, new in [*VECTORS, *drawn(10)]:
        closed = program.at({"past": old, "chunk": new})
        check_program(closed)
        assert closed.dimensions == ()
        assert not encode(closed).open
        # below: at least the doubled rows and, above them, the largest of the others
        assert closed.arena_bytes == 2 * (-(-32 * (old + new) // 64) * 64) + 64
        assert program_from_json(json.loads(json.dumps(program_to_json(closed)))) == closed
        given = feeds(old, new)
        expect(Executable(closed, aligned_empty(0), address_of).run(given), given)


def test_several_threads_run_with_sizes_of_their_own(executable: Executable) -> None:
    def run(seed: int) -> None:
        for old, new in drawn(40, seed):
            given = feeds(old, new, seed)
            expect(executable.run(given), given)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run, range(8)))


def test_a_context_is_not_looked_at_once_another_thread_may_have_it(executable: Executable) -> None:
    class Idle(list[RunContext]):
        def append(self, context: RunContext) -> None:
            super().append(context)
            context.resize((1, 0))  # the other thread

    executable._idle = Idle()
    arrays = list(feeds(7, 8, 0).values())
    inputs, outputs = executable.ports_for(arrays)
    assert [port.shape for port in inputs] == [array.shape for array in arrays]
    assert [port.shape for port in outputs] == [array.shape for array in executable.run(arrays)]
    assert executable.takes(arrays)


def test_inputs_that_lie_anyhow_are_copied(executable: Executable) -> None:
    for old, new in drawn(20):
        given = feeds(old, new)
        lying = {name: array[::-1].copy()[::-1] for name, array in given.items()}
        expect(executable.run(lying), given)


def test_arrays_are_kept_whole(executable: Executable) -> None:
    given = feeds(3, 4)
    first = executable.run(given)
    executable.run(feeds(64, 32))
    expect(first, given)


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        (
            "old",
            np.zeros((65, 8), np.float32),
            r"'old': dimension 0 \('past'\) is 65, expected 0..64",
        ),
        ("new", np.zeros((36, 8), np.float32), r"dimension 0 \('chunk'\) is 36, expected 4..32:4"),
        ("new", np.zeros((5, 8), np.float32), r"dimension 0 \('chunk'\) is 5, expected 4..32:4"),
        ("new", np.zeros((0, 8), np.float32), r"dimension 0 \('chunk'\) is 0, expected 4..32:4"),
        ("old", np.zeros((1 << 40, 0), np.float32), r"is 1099511627776, expected 0..64"),
        ("old", np.zeros((2, 7), np.float32), r"'old' has shape \(2, 7\), expected \(past, 8\)"),
        ("old", np.zeros(2, np.float32), r"'old' has shape \(2,\), expected \(past, 8\)"),
        ("old", np.zeros((), np.float32), r"'old' has shape \(\), expected \(past, 8\)"),
        ("old", np.zeros((2, 8)), "'old' has dtype float64, expected float32"),
        ("old", [[0.0] * 8] * 2, r"'old' is of type list, expected .* shape \(past, 8\)"),
        ("flags", 3, r"'flags' is of type int, expected .* shape \(chunk\+past\)"),
        (
            "flags",
            np.zeros(7, np.bool_),
            r"'flags': dimension 0 \('chunk\+past'\) is 7, "
            r"input 'new' has 4 for 'chunk' and input 'old' has 2 for 'past'",
        ),
    ],
)
def test_inputs_that_contradict_the_program_are_named(
    executable: Executable, name: str, array: object, message: str
) -> None:
    given = feeds(2, 4)
    with pytest.raises(InvalidInputError, match=message):
        executable.run(given | {name: array})  # type: ignore[dict-item]  # some are not arrays
    expect(executable.run(given), given)


def test_two_inputs_that_disagree_about_a_dimension_are_named(address_of: AddressOf) -> None:
    program = dynamic_program()
    both = replace(program, inputs=(*program.inputs, replace(program.inputs[0], name="other")))
    executable = Executable(both, aligned_empty(0), address_of)
    given = feeds(2, 4) | {"other": np.zeros((3, 8), np.float32)}
    text = r"input 'other': dimension 0 \('past'\) is 3, input 'old' has 2"
    with pytest.raises(InvalidInputError, match=text):
        executable.run(given)


def test_the_json_form_reads_back(address_of: AddressOf) -> None:
    program = dynamic_program()
    data = json.loads(json.dumps(program_to_json(program)))
    assert data["dimensions"] == {"chunk": "4..32:4", "past": "0..64"}
    again = program_from_json(data)
    assert again == program
    given = feeds(5, 8)
    expect(Executable(again, aligned_empty(0), address_of).run(given), given)


def test_without_a_bound_the_memory_is_the_bound(address_of: AddressOf) -> None:
    endless = Dimension("past", 0)
    program = dynamic_program()
    join, twice = program.kernels
    wide = WorkloadDimension("s0", 1, None, 8)
    first = replace(join, sizes=(WorkloadDimension("s0", 0), join.sizes[1]))
    text = json.dumps(
        program_to_json(replace(program, kernels=(first, replace(twice, sizes=(wide,)))))
    )
    data = json.loads(text.replace('"past": "0..64"', f'"past": "{endless.range_text}"'))
    executable = Executable(program_from_json(data), aligned_empty(0), address_of)
    for old, new in ((1000, 4), (3, 8), (5000, 32)):
        given = feeds(old, new)
        expect(executable.run(given), given)
    # an array without elements may be as long as it likes
    absurd = feeds(0, 4) | {"old": np.zeros((1 << 39, 0), np.float32)}
    with pytest.raises(InvalidInputError, match="expected"):
        executable.run(absurd)
    given = feeds(2, 4)
    expect(executable.run(given), given)


def test_more_than_any_memory_is_refused(executable: Executable) -> None:
    context = executable._context((1, 0))
    with pytest.raises(OutOfMemoryError, match="exceed any memory"):
        context.resize((1, 1 << 61))
    context.resize((1, 3))
    context.hold()
    assert context.ready


def test_an_outputs_shape_does_not_depend_on_its_room() -> None:
    left = dynamic_size(SlackDimension("left", 0))
    x = Port("x", DType.FLOAT32, (past,), room=(0, past + left))
    y = Port("y", DType.FLOAT32, (past + left,))
    copied = Copy(at("output"), at("input"), 4 * (past + left))
    with pytest.raises(ValueError, match="an output's shape depends on its room"):
        check_program(Program("room", (x,), (y,), (), (copied,), 0, 0))


def test_what_lies_in_a_larger_buffer_is_put_there_and_taken_out() -> None:
    """A program whose input and output have room, and are not state: a run has room for none."""
    left = dynamic_size(SlackDimension("left", 0))
    more = past + 2 + left
    x = Port("x", DType.FLOAT32, (past, 4), room=(0, more))
    y = Port("y", DType.FLOAT32, (past + 1, 4), room=(0, more))
    copied = Copy(at("output"), at("input"), 16 * more)
    made = Program("room", (x,), (y,), (), (copied,), 0, 0)
    assert program_from_json(program_to_json(made)) == made
    assert made.rooms == (SlackDimension("left", 0),) and made.dimensions == (PAST,)
    model = Executable(made, aligned_empty(0), {}.__getitem__)
    for count in (3, 0, 64, 5):
        given = np.arange(4 * count, dtype=np.float32).reshape(count, 4)
        (found,) = model.run([given])
        assert found.shape == (count + 1, 4) and found.flags.c_contiguous
        np.testing.assert_array_equal(found[:count], given)
    closed = Executable(made.at({"past": 3, "left": 5}), aligned_empty(0), {}.__getitem__)
    (found,) = closed.run([np.ones((3, 4), np.float32)])
    assert found.shape == (4, 4) and (found[:3] == 1).all()
    assert model.rooms == ()  # a copy is not a change in place


def changed_in_place(more: int = 0) -> Program:
    """A row is put into a buffer that is longer by a room, and by so many rows `more`."""
    whole = past + 1 + dynamic_size(SlackDimension("left", 0)) + more
    x = Port("x", DType.FLOAT32, (past, 4), room=(0, whole))
    y = Port("y", DType.FLOAT32, (past + 1, 4), room=(0, whole))
    others = Port("place", DType.INT64, (1,)), Port("new", DType.FLOAT32, (1, 4))
    places = at("input"), at("input", 1), at("input", 2), at("output")
    call = NativeCall("scatter", (whole, 16, 1), places)
    return Program("room", (x, *others), (y,), (), (call,), 0, 0)


@pytest.mark.parametrize("more", [0, 7])
def test_a_state_is_longer_in_memory_by_its_room_alone(more: int) -> None:
    """A session has memory for the room: the program would write behind that."""
    model = Executable(changed_in_place(more), aligned_empty(0), {}.__getitem__)
    empty = np.zeros((0, 4), np.float32)
    given = [np.zeros(1, np.int64), np.ones((1, 4), np.float32)]
    assert (model.run([empty, *given])[0] == 1).all()
    dims: dict[str, Dims] = {"x": ("past", 4), "place": (1,), "new": (1, 4)}
    session = Session(
        dims, model.output_names, lambda _: model, model.run, {"y": "x"}, {"x": empty}
    )
    if more:
        with pytest.raises(InvalidArgumentError, match="larger than slack explains"):
            session.run(given)
    else:
        assert session.run(given) == [] and (session.state("x") == 1).all()


def test_no_run_is_told_of_room_for_an_input_that_no_output_lies_on() -> None:
    made = changed_in_place()
    assert Executable(made, aligned_empty(0), {}.__getitem__).rooms == ((0,),)
    made = replace(made, inputs=(*made.inputs, replace(made.inputs[0], name="z")))
    assert Executable(made, aligned_empty(0), {}.__getitem__).rooms == ()


def test_profiles_are_of_the_sizes_at_hand(executable: Executable) -> None:
    seconds = executable.profile(feeds(9, 8), 2)
    assert seconds.shape == (2, 6)
    assert (seconds > 0).all()


BORDER = [(15, 4), (16, 32), (17, 4), (0, 4), (64, 32)]


@pytest.mark.parametrize("threads", [1, 3])
def test_a_size_chooses_among_kernels(address_of: AddressOf, threads: int) -> None:
    program = cut_program()
    assert program_from_json(json.loads(json.dumps(program_to_json(program)))) == program
    cut = Executable(program, aligned_empty(0), address_of).with_threads(threads)
    for old, new in [*BORDER, *drawn(30), *BORDER]:
        given = feeds(old, new)
        expect(cut.run(given), given)
        closed = program.at({"past": old, "chunk": new})
        check_program(closed)
        calls = [each.kernel for each in closed.walk() if isinstance(each, KernelCall)]
        assert calls[0] == (0 if old <= 16 else 2), "the other is not there"
        expect(Executable(closed, aligned_empty(0), address_of).run(given), given)


def test_only_what_a_size_chooses_is_run_and_timed(address_of: AddressOf) -> None:
    cut = Executable(cut_program(), aligned_empty(0), address_of)
    for old, ran in ((16, (True, False)), (17, (False, True))):
        _, small, large, *others = cut.profile(feeds(old, 8), 3).min(axis=0)
        assert (small > 0, large > 0) == ran
        assert min(others) > 0


def test_a_size_may_choose_which_output_is_written_how(address_of: AddressOf) -> None:
    """Nested choices: the inner choice divides the rest that the outer one leaves."""
    program = cut_program()
    *others, copy, third, found = program.instructions
    inner = SizeBranch(PAST, 8, (copy,), (copy,))
    nested = replace(
        program, instructions=(*others, SizeBranch(PAST, 16, (inner,), (copy,)), third, found)
    )
    cut = Executable(nested, aligned_empty(0), address_of)
    for old in (0, 8, 9, 16, 17, 64):
        given = feeds(old, 8)
        expect(cut.run(given), given)
