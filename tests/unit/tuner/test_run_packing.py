"""The contents of a run request: weights cut where programs refer to them, shared by their
contents."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.small_program import compile_program, model_bytes
from tilewright.compiler import driver
from tilewright.compiler.mode import Mode
from tilewright.compiler.program.builder import CompiledProgram, ProgramBuilder
from tilewright.compiler.runtime.packing import aligned_empty
from tilewright.compiler.runtime.program import BufferSpace, Copy, KernelCall, Program
from tilewright.compiler.runtime.weight_ranges import weight_ranges
from tilewright.compiler.targets.host import host_target, resolve_target
from tilewright.compiler.targets.target import Target
from tilewright.tuner.measure import run_packing
from tilewright.tuner.measure.model_runs import draw_inputs
from tilewright.tuner.measure.run_packing import pack_program, pack_weights
from tilewright.tuner.protocol.runs import Part


@pytest.fixture(scope="module")
def alone() -> CompiledProgram:
    return compile_program()


@pytest.fixture(scope="module")
def behind_another() -> CompiledProgram:
    return built_behind_another(host_target())


def built_behind_another(target: Target) -> CompiledProgram:
    """The same model, its weights in one block behind those of another model."""
    builder = ProgramBuilder(None, Mode(target))
    plans = [
        driver.make_plan(
            driver.optimise(driver.load_graph(model_bytes(seed)), Mode(target)), Mode(target)
        )
        for seed in (4, 3)
    ]
    builder.reserve(plans)
    return [builder.build(plan) for plan in plans][1]


def test_a_program_reads_its_weights_and_no_more(behind_another: CompiledProgram) -> None:
    """With NaN everywhere else the program gives the same outputs."""
    program = behind_another.program
    ranges = weight_ranges(program)
    assert [size for _, size in ranges] == sorted((s for _, s in ranges), reverse=True)
    assert 0 < sum(size for _, size in ranges) < program.weight_bytes * 0.7
    weights = aligned_empty(program.weight_bytes)
    weights[:] = 0xFF
    for start, size in ranges:
        weights[start : start + size] = behind_another.weights[start : start + size]
    inputs = draw_inputs(program.inputs, 1)
    expected = driver.load_program(behind_another).run(inputs)
    found = driver.load_program(replace(behind_another, weights=weights)).run(inputs)
    np.testing.assert_array_equal(found, expected)


def test_every_instruction_counts_and_what_overlaps_is_one(alone: CompiledProgram) -> None:
    program = alone.program
    (first, second) = weight_ranges(program)
    weights = BufferSpace.WEIGHTS
    call = next(i for i in program.instructions if isinstance(i, KernelCall))
    (ref,) = (r for r in call.buffers if r.space is weights)
    destination = replace(ref, space=BufferSpace.ARENA, offset=0)

    def also(*copies: tuple[int, int]) -> Program:
        added = [Copy(destination, replace(ref, offset=o), n) for o, n in copies]
        return replace(program, instructions=(*program.instructions, *added))

    within = also((first[0] + 64, 64), (second[0], 0))
    assert weight_ranges(within) == (first, second)
    longer = also((first[0] + first[1] - 64, 128))
    assert weight_ranges(longer) == ((first[0], sum(second) - first[0]),)


def test_programs_share_the_blobs_of_what_they_pack_alike(
    alone: CompiledProgram, behind_another: CompiledProgram
) -> None:
    parts, blobs = pack_weights(alone.program, alone.weights)
    others, other_blobs = pack_weights(behind_another.program, behind_another.weights)
    assert blobs.keys() == other_blobs.keys()
    assert [part.offset for part in parts] != [part.offset for part in others]
    assert _together(parts, blobs, alone.program) == _read(alone)
    assert _together(others, other_blobs, behind_another.program) == _read(behind_another)


def test_large_weights_are_cut_from_their_own_start_and_small_ones_bundled(
    alone: CompiledProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For one target on every machine, because panels are as wide as its vectors."""
    monkeypatch.setattr(run_packing, "PART_BYTES", 100_000)
    target = resolve_target("x86-64-v4")
    for compiled in (compile_program(target), built_behind_another(target)):
        parts, blobs = pack_weights(compiled.program, compiled.weights)
        assert [part.bytes for part in parts] == [100_000] * 4 + [80_000, 25_600]
        assert _together(parts, blobs, compiled.program) == _read(compiled)
    monkeypatch.setattr(run_packing, "SMALL_BYTES", 1 << 20)
    monkeypatch.setattr(run_packing, "PART_BYTES", 1 << 20)
    parts, blobs = pack_weights(alone.program, alone.weights)
    assert len(blobs) == 1 and len(parts) == 2
    assert _together(parts, blobs, alone.program) == _read(alone)


def test_a_program_is_packed_with_its_code(alone: CompiledProgram) -> None:
    packed = pack_program(alone.program, alone.weights, b"code")
    assert bytes(packed.blobs[packed.library]) == b"code"
    assert {packed.digest, packed.library} < packed.blobs.keys()
    assert packed.run_bytes > alone.program.arena_bytes
    assert pack_program(alone.program, alone.weights, b"").library == ""


def _together(parts: tuple[Part, ...], blobs: run_packing.Blobs, program: Program) -> bytes:
    """The block that a device puts together."""
    block = bytearray(program.weight_bytes)
    for part in parts:
        data = blobs[part.digest][part.start : part.start + part.bytes]
        assert len(data) == part.bytes
        block[part.offset : part.offset + part.bytes] = data
    return bytes(block)


def _read(compiled: CompiledProgram) -> bytes:
    """The block, zero where the program does not read."""
    block = bytearray(compiled.program.weight_bytes)
    for start, size in weight_ranges(compiled.program):
        block[start : start + size] = compiled.weights[start : start + size].tobytes()
    return bytes(block)
