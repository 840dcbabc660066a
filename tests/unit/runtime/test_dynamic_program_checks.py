"""Programs with open sizes that are refused before they run at any."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.runtime.dynamic_programs import (
    PAST,
    S0,
    S1,
    at,
    buffer,
    chunk,
    cut_program,
    dynamic_program,
    past,
    rows,
)
from tilewright.compiler.dtypes import DType
from tilewright.compiler.runtime.kernel import BufferRole
from tilewright.compiler.runtime.program import (
    Copy,
    Instruction,
    KernelCall,
    Port,
    Program,
    SizeBranch,
    Slot,
    slot_start,
)
from tilewright.compiler.runtime.program_check import check_program
from tilewright.compiler.runtime.program_json import program_from_json, program_to_json
from tilewright.compiler.sizes import Dimension, SlackDimension, dynamic_size


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"slots": (Slot(32 * rows), Slot(32 * rows, (0,)), Slot(32 * rows - 1, (0,)))},
            "do not lie",
        ),
        ({"slots": (Slot(32 * rows), Slot(32 * rows, (1,)), Slot(32 * rows))}, "slot 1 does not"),
        ({"slots": (Slot(32 * rows), Slot(32 * rows, (-1,)), Slot(32 * rows))}, "slot 1 does not"),
        ({"slots": ()}, "is none of its own"),
        ({"arena_bytes": 64}, "has slots, but also an arena of 64 bytes"),
        ({"slots": (Slot(dynamic_size(Dimension("x", 1, 9))),)}, "'x' is none of its own"),
    ],
)
def test_a_program_that_reaches_outside_at_some_size_is_refused(
    change: dict[str, object], message: str
) -> None:
    wrong = replace(dynamic_program(), **change)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=message):
        check_program(wrong)


@pytest.mark.parametrize(
    ("places", "apart"),
    [
        ((slot_start(0), slot_start(1)), True),
        ((slot_start(2), slot_start(0)), True),
        ((slot_start(1), slot_start(2)), False),  # both after the first, so in one place
        ((slot_start(1), slot_start(1)), False),
        ((slot_start(3), slot_start(0)), True),
    ],
)
def test_what_a_kernel_writes_lies_apart_at_all_sizes(places: tuple[int, int], apart: bool) -> None:
    program = dynamic_program()
    s0, s1 = dynamic_size(S0), dynamic_size(S1)
    both = replace(
        program.kernels[0],
        buffers=(
            buffer("first", BufferRole.INPUT, 8 * s0, 0),
            buffer("one", BufferRole.OUTPUT, 8 * (s0 + s1)),
            buffer("two", BufferRole.OUTPUT, 8 * (s0 + s1)),
        ),
    )
    call = KernelCall(
        2, (at("input", 0), at("arena", places[0]), at("arena", places[1])), (past, chunk)
    )
    made = replace(
        program,
        slots=(*program.slots, Slot(32 * rows, (1,))),
        kernels=(*program.kernels, both),
        instructions=(call, *program.instructions),
    )
    if apart:
        check_program(made)
    else:
        with pytest.raises(ValueError, match="has 'one' and 'two' in one place"):
            check_program(made)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (Copy(at("output", 0), at("input", 0), 32 * rows), "input 0 has no"),
        (Copy(at("output", 0), at("arena", slot_start(2) + 32), 32 * rows), "do not lie, aligned"),
        (Copy(at("output", 0), at("arena", slot_start(2) + 128), 32 * rows), "do not lie"),
        (Copy(at("output", 0), at("arena", slot_start(2) - 64), 32), "negative"),
        (Copy(at("output", 0), at("arena", slot_start(0) + slot_start(1)), 32), "do not lie"),
        (
            KernelCall(0, (at("input", 0), at("input", 1), at("output", 0)), (past,)),
            "2 dynamic dimens",
        ),
        (
            KernelCall(0, (at("input", 0), at("input", 1), at("output", 0)), (past, past)),
            "'s1' is past, expected 4..32:4",
        ),
        (
            KernelCall(0, (at("input", 0), at("input", 1), at("output", 0)), (past + 1, chunk)),
            r"'s0' is past\+1, expected 0..64",
        ),
    ],
)
def test_instructions_are_checked_for_all_sizes(call: Instruction, message: str) -> None:
    program = dynamic_program()
    wrong = replace(program, instructions=(*program.instructions, call))
    with pytest.raises(ValueError, match=message):
        check_program(wrong)
    with pytest.raises(ValueError, match=message):
        program_from_json(program_to_json(wrong))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("dimensions", {"past": "0..64"}),
        ("dimensions", {"past": "0..64", "chunk": "4..4"}),
        ("dimensions", {"past": "64", "chunk": "4..32:4"}),
        ("dimensions", {"past": "0..128", "chunk": "4..32:4"}),
        ("dimensions", ["past"]),
        ("slots", [["past*", []]]),
        ("slots", [[32, [0]]]),
        ("slots", 5),
        ("arena_bytes", "past"),
    ],
)
def test_malformed_sizes_are_refused(key: str, value: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        program_from_json({**program_to_json(dynamic_program()), key: value})


def test_a_dimension_that_no_input_states_is_refused() -> None:
    program = dynamic_program()
    inputs = (replace(program.inputs[0], shape=(past + 1, 8)), *program.inputs[1:])
    with pytest.raises(ValueError, match="no input says what dimension 'past' is"):
        check_program(replace(program, inputs=inputs))


@pytest.mark.parametrize(
    ("room", "message"),
    [
        ((0, past), "'x' has no room of"),  # the array does not fit the buffer
        ((2, past + 9), "'x' has no room of"),
        ((-1, past + 9), "'x' has no room of"),
        (
            (0, past + 1 + dynamic_size(SlackDimension("left", 1, 8))),
            "a run of its own has no room",
        ),
        ((0, past + 1 + dynamic_size(SlackDimension("@0", 0, 8))), "has the name of a slot"),
    ],
)
def test_rooms_that_make_no_sense_are_refused(room: tuple[int, int], message: str) -> None:
    x = Port("x", DType.FLOAT32, (past + 1, 8), room=room)
    sized = Port("n", DType.FLOAT32, (past,))
    made = Program("room", (x, sized), (), (), (), 0, 0, (Slot(64),))
    with pytest.raises(ValueError, match=message):
        check_program(made)
    with pytest.raises(ValueError, match=message):
        program_from_json(program_to_json(made))


def refused_cuts() -> dict[str, tuple[Program, str]]:
    program, whole = cut_program(), dynamic_program()
    branch, *others = program.instructions
    assert isinstance(branch, SizeBranch)
    *_, copy, third, found = whole.instructions
    rest = (third, found)

    def cut(branch: SizeBranch, *others: Instruction, of: Program = program) -> Program:
        return replace(of, instructions=(branch, *others))

    within = SizeBranch(PAST, 20, branch.below, branch.above)
    return {
        "a kernel of other sizes": (
            cut(replace(branch, last=17), *others),
            "past 0..17.*dimension 's0' is 17, expected 0..16|is past, expected 0..16",
        ),
        "the wrong way round": (
            cut(replace(branch, below=branch.above, above=branch.below), *others),
            "expected 17..64",
        ),
        "no size above": (cut(replace(branch, last=64), *others), "64 does not part 0..64"),
        "a size that nothing has": (
            cut(replace(branch, dimension=Dimension("rows", 0, 64)), *others),
            "dimension 'rows' is none of the program",
        ),
        "a border outside of what is left": (
            cut(SizeBranch(PAST, 16, (within,), branch.above), *others),
            "20 does not part 0..16",
        ),
        "an output that some sizes do not have": (
            cut(SizeBranch(PAST, 16, (copy,), ()), *rest, of=whole),
            "nothing writes output 'y'",
        ),
        "a buffer that is too small for some sizes": (
            cut(
                SizeBranch(
                    PAST, 16, (Copy(at("output", 0), at("arena", slot_start(2)), 32 * 48),), (copy,)
                ),
                *rest,
                of=whole,
            ),
            "past 0..16.*1536 bytes at .* do not lie",
        ),
    }


@pytest.mark.parametrize("name", refused_cuts())
def test_choices_that_would_reach_outside_are_refused(name: str) -> None:
    program, message = refused_cuts()[name]
    with pytest.raises(ValueError, match=message):
        check_program(program)


@pytest.mark.parametrize("name", ["room", "slot"])
def test_shapes_of_inputs_depend_on_no_room_and_no_slot(name: str) -> None:
    own = slot_start(0) if name == "slot" else dynamic_size(SlackDimension("left", 0))
    made = Program("p", (Port("x", DType.FLOAT32, (own, 8)),), (), (), (), 0, 0)
    with pytest.raises(ValueError, match="depends on a room or a slot"):
        check_program(made)
