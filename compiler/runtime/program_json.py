"""Programs as JSON: how artifacts keep them and workers get them.

Open sizes are texts; `dimensions` and the `sizes` of kernels say what they are over.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias, assert_never

from tilewright.compiler.dtypes import DType
from tilewright.compiler.runtime.kernel import (
    KernelSpec,
    ranges_from_json,
    ranges_to_json,
    size_from_json,
    size_to_json,
)
from tilewright.compiler.runtime.labels import Labels
from tilewright.compiler.runtime.program import (
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
    SizeBranch,
    Slices,
    Slot,
    slot_start,
)
from tilewright.compiler.runtime.program_check import check_program
from tilewright.compiler.sizes import Dimension, OpenSizeError, dimensions

Known: TypeAlias = Mapping[str, Dimension]
"""Open dimensions by name."""


def program_to_json(program: Program) -> dict[str, Any]:
    """What `program_from_json` reads."""
    return {
        "name": program.name,
        "inputs": [_port_to_json(port) for port in program.inputs],
        "outputs": [_port_to_json(port) for port in program.outputs],
        "kernels": [kernel.to_json() for kernel in program.kernels],
        "instructions": [_instruction_to_json(i) for i in program.instructions],
        "arena_bytes": program.arena_bytes,
        "weight_bytes": program.weight_bytes,
        **(_open_to_json(program) if program.dimensions else {}),
    }


def _open_to_json(program: Program) -> dict[str, Any]:
    """What a program with open sizes has besides: the ranges, and the parts of the arena."""
    return {
        "dimensions": ranges_to_json(program.dimensions),
        **({"rooms": ranges_to_json(program.rooms)} if program.rooms else {}),
        "slots": [[size_to_json(slot.bytes), list(slot.after)] for slot in program.slots],
        **({"slices": _slices_to_json(program.slices)} if program.slices else {}),
    }


def _slices_to_json(slices: Slices) -> dict[str, Any]:
    return {
        "dimension": slices.dimension,
        "bytes": size_to_json(slices.bytes),
        "budget": slices.budget,
        "least": slices.least,
    }


def _slices_from_json(data: Mapping[str, Any], known: Known) -> Slices:
    return Slices(
        str(data["dimension"]),
        size_from_json(data["bytes"], known),
        size_from_json(data["budget"], {}),
        size_from_json(data["least"], {}),
    )


def program_from_json(data: Mapping[str, Any]) -> Program:
    """Read what `program_to_json` wrote, and check it.

    Raises:
        ValueError: if it is malformed, or would reach outside its memory.
    """
    try:
        known = ranges_from_json(data.get("dimensions", {}))
        known = known | ranges_from_json(data.get("rooms", {}))
        slots = [(size_from_json(size, known), after) for size, after in data.get("slots", ())]
        # where slots start is no size of a user's: instructions alone name them
        places = known | {d.name: d for n in range(len(slots)) for d in dimensions(slot_start(n))}
        program = Program(
            name=str(data["name"]),
            inputs=tuple(_port_from_json(port, known) for port in data["inputs"]),
            outputs=tuple(_port_from_json(port, known) for port in data["outputs"]),
            kernels=tuple(map(KernelSpec.from_json, data["kernels"])),
            instructions=tuple(_instruction_from_json(i, places) for i in data["instructions"]),
            arena_bytes=size_from_json(data["arena_bytes"], {}),
            weight_bytes=size_from_json(data["weight_bytes"], {}),
            slots=tuple(Slot(size, tuple(map(int, after))) for size, after in slots),
            slices=_slices_from_json(sliced, known) if (sliced := data.get("slices")) else None,
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"malformed program: {error!r}") from error
    try:
        check_program(program)
    except OpenSizeError as error:
        raise ValueError(f"program '{program.name}': {error}") from error
    return program


def _port_to_json(port: Port) -> dict[str, Any]:
    data: dict[str, Any] = {
        "name": port.name,
        "dtype": port.dtype.value,
        "shape": [size_to_json(size) for size in port.shape],
    }
    if port.counted is not None:
        data["counted"] = port.counted
    if port.labels is not None:
        data["labels"] = port.labels.to_json()
    if port.room is not None:
        data["room"] = [port.room[0], size_to_json(port.room[1])]
    if port.part_of is not None:
        data["part_of"] = port.part_of
    if port.integers is not None:
        data["integers"] = list(port.integers)
    return data


def _port_from_json(data: Mapping[str, Any], known: Known) -> Port:
    shape = tuple(size_from_json(size, known) for size in data["shape"])
    counted = data.get("counted")
    if counted is not None and not 0 <= int(counted) < len(shape):
        raise ValueError(f"'{data['name']}' has no dimension {counted}")
    labels, room, integers = data.get("labels"), data.get("room"), data.get("integers")
    if room is not None:
        axis, extent = room
        room = int(axis), size_from_json(extent, known)
    if integers is not None:
        first, end = integers
        integers = int(first), int(end)
    return Port(
        str(data["name"]),
        DType(data["dtype"]),
        shape,
        None if counted is None else int(counted),
        None if labels is None else Labels.from_json(labels),
        room,
        None if (part_of := data.get("part_of")) is None else str(part_of),
        integers,
    )


def _ref_to_json(ref: BufferRef) -> list[Any]:
    return [ref.space.value, size_to_json(ref.offset)]


def _ref_from_json(data: Any, known: Known) -> BufferRef:
    space, offset = data
    return BufferRef(BufferSpace(space), size_from_json(offset, known))


def _instruction_to_json(instruction: Instruction) -> dict[str, Any]:
    match instruction:
        case KernelCall(kernel, buffers, sizes):
            call = {"kernel": kernel, "buffers": [_ref_to_json(ref) for ref in buffers]}
            return {**call, "sizes": [size_to_json(size) for size in sizes]} if sizes else call
        case Copy(destination, source, size):
            return {
                "copy": size_to_json(size),
                "to": _ref_to_json(destination),
                "from": _ref_to_json(source),
            }
        case NativeCall(function, parameters, buffers):
            return {
                "native": function,
                "parameters": [size_to_json(value) for value in parameters],
                "buffers": [_ref_to_json(ref) for ref in buffers],
            }
        case Loop(counter, trips, going, most, body):
            return {
                "loop": [_instruction_to_json(inner) for inner in body],
                "counter": _ref_to_json(counter),
                "trips": _ref_to_json(trips),
                "going": _ref_to_json(going),
                "most": size_to_json(most),
            }
        case Branch(condition, then, otherwise):
            return {
                "branch": _ref_to_json(condition),
                "then": [_instruction_to_json(inner) for inner in then],
                "otherwise": [_instruction_to_json(inner) for inner in otherwise],
            }
        case SizeBranch(dimension, last, below, above):
            return {
                "dimension": dimension.name,
                "last": last,
                "below": [_instruction_to_json(inner) for inner in below],
                "above": [_instruction_to_json(inner) for inner in above],
            }
        case Refuse(message):
            return {"refusal": message}
        case _:
            assert_never(instruction)


def _instruction_from_json(data: Mapping[str, Any], known: Known, depth: int = 0) -> Instruction:
    if depth > NESTING_LIMIT:
        raise ValueError(f"an instruction lies within more than {NESTING_LIMIT} others")

    def inner(key: str) -> tuple[Instruction, ...]:
        return tuple(_instruction_from_json(each, known, depth + 1) for each in data[key])

    def ref(key: str) -> BufferRef:
        return _ref_from_json(data[key], known)

    def sizes(listed: Any) -> tuple[int, ...]:
        return tuple(size_from_json(each, known) for each in listed)

    def buffers() -> tuple[BufferRef, ...]:
        return tuple(_ref_from_json(each, known) for each in data["buffers"])

    if "loop" in data:
        most = size_from_json(data["most"], known)
        return Loop(ref("counter"), ref("trips"), ref("going"), most, inner("loop"))
    if "branch" in data:
        return Branch(ref("branch"), inner("then"), inner("otherwise"))
    if "kernel" in data:
        return KernelCall(int(data["kernel"]), buffers(), sizes(data.get("sizes", ())))
    if "copy" in data:
        return Copy(ref("to"), ref("from"), size_from_json(data["copy"], known))
    if "native" in data:
        return NativeCall(str(data["native"]), sizes(data["parameters"]), buffers())
    if "dimension" in data:
        last = size_from_json(data["last"], {})
        return SizeBranch(known[data["dimension"]], last, inner("below"), inner("above"))
    if "refusal" in data:
        return Refuse(str(data["refusal"]))
    raise ValueError(f"unknown instruction with {sorted(data)}")
