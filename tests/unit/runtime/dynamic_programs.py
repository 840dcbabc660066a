"""A program with open sizes, by hand: rows are joined, doubled and copied."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.runtime.kernel import (
    ABI_VERSION,
    BufferRole,
    BufferSpec,
    KernelSpec,
    StageSpec,
)
from tilewright.compiler.runtime.packing import Array
from tilewright.compiler.runtime.program import (
    BufferRef,
    BufferSpace,
    Copy,
    KernelCall,
    NativeCall,
    Port,
    Program,
    SizeBranch,
    Slot,
    slot_start,
)
from tilewright.compiler.sizes import Dimension, WorkloadDimension, dynamic_size

PAST = Dimension("past", 0, 64)
CHUNK = Dimension("chunk", 1, 8, multiple=4)
past, chunk = dynamic_size(PAST), dynamic_size(CHUNK)
rows = past + chunk

S0 = WorkloadDimension("s0", 0, 64)
S1 = WorkloadDimension("s1", 1, 8, multiple=4)
ELEMENTS = WorkloadDimension("s0", 1, 96, multiple=8)


def at(space: str, offset: int = 0) -> BufferRef:
    return BufferRef(BufferSpace(space), offset)


def buffer(name: str, role: BufferRole, elements: int, source: int = -1) -> BufferSpec:
    return BufferSpec(name, role, DType.FLOAT32, (elements,), "row", (), 4 * elements, source)


def kernels() -> tuple[KernelSpec, KernelSpec]:
    """Rows joined; all elements doubled."""
    s0, s1, n = dynamic_size(S0), dynamic_size(S1), dynamic_size(ELEMENTS)
    join = KernelSpec(
        ABI_VERSION,
        "join",
        (StageSpec("join_rows", s0 + s1),),
        (
            buffer("first", BufferRole.INPUT, 8 * s0, 0),
            buffer("second", BufferRole.INPUT, 8 * s1, 1),
            buffer("out", BufferRole.OUTPUT, 8 * (s0 + s1)),
        ),
        32 * s0 + 32,
        (S0, S1),
    )
    twice = KernelSpec(
        ABI_VERSION,
        "twice",
        (StageSpec("twice", n),),
        (buffer("in", BufferRole.INPUT, n, 0), buffer("out", BufferRole.OUTPUT, n)),
        96,
        (ELEMENTS,),
    )
    return join, twice


def dynamic_program() -> Program:
    """y = 4 * (old, then new); third = a third of flags; found: where flags are true."""
    return Program(
        name="open",
        inputs=(
            Port("old", DType.FLOAT32, (past, 8)),
            Port("new", DType.FLOAT32, (chunk, 8)),
            Port("flags", DType.BOOL, (rows,)),
        ),
        outputs=(
            Port("y", DType.FLOAT32, (rows, 8)),
            Port("third", DType.BOOL, (rows // 3,)),
            Port("found", DType.INT64, (rows,)),
        ),
        kernels=kernels(),
        instructions=(
            KernelCall(
                0, (at("input", 0), at("input", 1), at("arena", slot_start(1))), (past, chunk)
            ),
            KernelCall(1, (at("arena", slot_start(1)), at("arena", slot_start(0))), (8 * rows,)),
            KernelCall(1, (at("arena", slot_start(0)), at("arena", slot_start(2))), (8 * rows,)),
            Copy(at("output", 0), at("arena", slot_start(2)), 32 * rows),
            Copy(at("output", 1), at("input", 2), rows // 3),
            NativeCall("positions", (rows,), (at("input", 2), at("output", 2))),
        ),
        arena_bytes=0,
        weight_bytes=0,
        slots=(Slot(32 * rows), Slot(32 * rows, (0,)), Slot(32 * rows + 64, (0,))),
    )


def cut_program(last: int = 16) -> Program:
    """The same as `dynamic_program`, with a kernel for a `past` up to the last and one for more."""
    program = dynamic_program()
    _, twice = program.kernels
    small, large = replace(S0, high=last), replace(S0, low=last + 1)
    parts = []
    for part in (small, large):
        n = dynamic_size(part)
        buffers = (
            buffer("first", BufferRole.INPUT, 8 * n, 0),
            buffer("second", BufferRole.INPUT, 8 * dynamic_size(S1), 1),
            buffer("out", BufferRole.OUTPUT, 8 * (n + dynamic_size(S1))),
        )
        stages = (StageSpec("join_rows", n + dynamic_size(S1)),)
        spec = KernelSpec(ABI_VERSION, "join", stages, buffers, 32 * n + 32, (part, S1))
        parts.append(spec)
    first, second, third, *others = program.instructions
    assert isinstance(first, KernelCall)
    branch = SizeBranch(PAST, last, (first,), (replace(first, kernel=2),))
    kernels = (replace(parts[0], name="small"), twice, replace(parts[1], name="large"))
    return replace(program, kernels=kernels, instructions=(branch, second, third, *others))


def feeds(past_rows: int, chunk_rows: int, seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {
        "old": rng.standard_normal((past_rows, 8)).astype(np.float32),
        "new": rng.standard_normal((chunk_rows, 8)).astype(np.float32),
        "flags": rng.integers(0, 2, past_rows + chunk_rows).astype(np.bool_),
    }


def expect(outputs: list[Array], given: dict[str, Array]) -> None:
    y, third, found = outputs
    np.testing.assert_array_equal(y, 4 * np.concatenate([given["old"], given["new"]]))
    np.testing.assert_array_equal(third, given["flags"][: given["flags"].size // 3])
    where = np.flatnonzero(given["flags"])
    np.testing.assert_array_equal(found[: where.size], where)
