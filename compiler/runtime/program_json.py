"""Programs as JSON: how artifacts keep them and workers get them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, assert_never

from compiler.dtypes import DType
from compiler.runtime.kernel import KernelSpec
from compiler.runtime.program import (
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
)


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
    }


def program_from_json(data: Mapping[str, Any]) -> Program:
    """Read what `program_to_json` wrote, and check it.

    Raises:
        ValueError: if it is malformed, or would reach outside its memory.
    """
    try:
        program = Program(
            name=str(data["name"]),
            inputs=tuple(map(_port_from_json, data["inputs"])),
            outputs=tuple(map(_port_from_json, data["outputs"])),
            kernels=tuple(map(KernelSpec.from_json, data["kernels"])),
            instructions=tuple(map(_instruction_from_json, data["instructions"])),
            arena_bytes=int(data["arena_bytes"]),
            weight_bytes=int(data["weight_bytes"]),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"malformed program: {error!r}") from error
    program.check()
    return program


def _port_to_json(port: Port) -> dict[str, Any]:
    data = {"name": port.name, "dtype": port.dtype.value, "shape": list(port.shape)}
    return data if port.counted is None else {**data, "counted": port.counted}


def _port_from_json(data: Mapping[str, Any]) -> Port:
    shape = tuple(map(int, data["shape"]))
    if any(size < 0 for size in shape):
        raise ValueError(f"'{data['name']}' has a negative dimension")
    counted = data.get("counted")
    if counted is not None and not 0 <= int(counted) < len(shape):
        raise ValueError(f"'{data['name']}' has no dimension {counted}")
    return Port(
        str(data["name"]), DType(data["dtype"]), shape, None if counted is None else int(counted)
    )


def _ref_to_json(ref: BufferRef) -> list[Any]:
    return [ref.space.value, ref.offset]


def _ref_from_json(data: Any) -> BufferRef:
    space, offset = data
    return BufferRef(BufferSpace(space), int(offset))


def _instruction_to_json(instruction: Instruction) -> dict[str, Any]:
    match instruction:
        case KernelCall(kernel, buffers):
            return {"kernel": kernel, "buffers": [_ref_to_json(ref) for ref in buffers]}
        case Copy(destination, source, size):
            return {
                "copy": size,
                "to": _ref_to_json(destination),
                "from": _ref_to_json(source),
            }
        case NativeCall(function, parameters, buffers):
            return {
                "native": function,
                "parameters": list(parameters),
                "buffers": [_ref_to_json(ref) for ref in buffers],
            }
        case Loop(counter, trips, going, most, body):
            return {
                "loop": [_instruction_to_json(inner) for inner in body],
                "counter": _ref_to_json(counter),
                "trips": _ref_to_json(trips),
                "going": _ref_to_json(going),
                "most": most,
            }
        case Branch(condition, then, otherwise):
            return {
                "branch": _ref_to_json(condition),
                "then": [_instruction_to_json(inner) for inner in then],
                "otherwise": [_instruction_to_json(inner) for inner in otherwise],
            }
        case _:
            assert_never(instruction)


def _instruction_from_json(data: Mapping[str, Any], depth: int = 0) -> Instruction:
    if depth > NESTING_LIMIT:
        raise ValueError(f"an instruction lies within more than {NESTING_LIMIT} others")

    def inner(key: str) -> tuple[Instruction, ...]:
        return tuple(_instruction_from_json(each, depth + 1) for each in data[key])

    if "loop" in data:
        counter, trips, going = (_ref_from_json(data[k]) for k in ("counter", "trips", "going"))
        return Loop(counter, trips, going, int(data["most"]), inner("loop"))
    if "branch" in data:
        return Branch(_ref_from_json(data["branch"]), inner("then"), inner("otherwise"))
    if "kernel" in data:
        return KernelCall(int(data["kernel"]), tuple(map(_ref_from_json, data["buffers"])))
    if "copy" in data:
        return Copy(_ref_from_json(data["to"]), _ref_from_json(data["from"]), int(data["copy"]))
    if "native" in data:
        parameters = tuple(map(int, data["parameters"]))
        buffers = tuple(map(_ref_from_json, data["buffers"]))
        return NativeCall(str(data["native"]), parameters, buffers)
    raise ValueError(f"unknown instruction with {sorted(data)}")
