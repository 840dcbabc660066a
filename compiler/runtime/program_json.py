"""Conversion of programs to JSON and back, for artifacts and messages to workers.

Dynamic sizes are strings with formulas. In a program, they contain the names of its `dimensions`;
in a kernel, the names of its `sizes`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from tilewright.compiler.runtime.codec import decode, encode
from tilewright.compiler.runtime.json_form import JsonForm
from tilewright.compiler.runtime.kernel import (
    DynamicRanges,
    KernelSpec,
    Natural,
    RoomRanges,
    SizeScope,
)
from tilewright.compiler.runtime.program import (
    Instruction,
    Port,
    Program,
    Slices,
    Slot,
    slot_dimension,
)
from tilewright.compiler.runtime.program_check import check_program


@dataclass(frozen=True, slots=True)
class _Code:
    """The JSON form of a program's instructions.

    It is decoded after the rest of the program, because instructions may refer to the arena's
    slots.
    """

    json_form: ClassVar[JsonForm] = JsonForm("program")

    instructions: tuple[Instruction, ...]


@dataclass(frozen=True, slots=True)
class _Stored:
    """The JSON form of a program.

    A program with dynamic dimensions divides its arena (its memory for intermediate values) into
    slots: blocks whose offsets are computed in each run.

    Attributes:
        dimensions: the ranges of the dynamic dimensions.
        slots: the slots; possibly an empty list if the program has dynamic dimensions, else None.
    """

    json_form: ClassVar[JsonForm] = JsonForm(
        "program",
        sparse=("dimensions", "rooms", "slots", "slices"),
        opens=("dimensions", "rooms"),
        scope=lambda _, dimensions, rooms: SizeScope({d.name: d for d in (*dimensions, *rooms)}),
    )

    name: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    kernels: tuple[KernelSpec, ...]
    instructions: Any
    arena_bytes: Natural
    weight_bytes: Natural
    dimensions: DynamicRanges = ()
    rooms: RoomRanges = ()
    slots: tuple[Slot, ...] | None = None
    slices: Slices | None = None


def program_to_json(program: Program) -> dict[str, Any]:
    """Convert a program to JSON data, from which `program_from_json` builds an equal program."""
    is_dynamic = bool(program.dimensions)
    stored: dict[str, Any] = encode(
        _Stored(
            program.name,
            program.inputs,
            program.outputs,
            program.kernels,
            encode(_Code(program.instructions))["instructions"],
            program.arena_bytes,
            program.weight_bytes,
            program.dimensions,
            program.rooms if is_dynamic else (),
            program.slots if is_dynamic else None,
            program.slices if is_dynamic else None,
        )
    )
    return stored


def program_from_json(data: object) -> Program:
    """Convert the output of `program_to_json` back to a program, and check it with `check_program`.

    Raises:
        ValueError: if the data are malformed, or the program is invalid.
    """
    stored = decode(_Stored, data)
    slots = stored.slots or ()
    known = (*stored.dimensions, *stored.rooms, *map(slot_dimension, range(len(slots))))
    scope = SizeScope({dimension.name: dimension for dimension in known})
    program = Program(
        name=stored.name,
        inputs=stored.inputs,
        outputs=stored.outputs,
        kernels=stored.kernels,
        instructions=decode(_Code, {"instructions": stored.instructions}, scope).instructions,
        arena_bytes=stored.arena_bytes,
        weight_bytes=stored.weight_bytes,
        slots=slots,
        slices=stored.slices,
    )
    check_program(program)
    return program
