"""The machine's limits: the probes run as intended, and kernels are compared with the right
limit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.devices.amx import amx_target, emulated_amx, has_amx
from tests.devices.packages import UnavailableError
from tilewright.compiler.codegen.backend import backend_of
from tilewright.compiler.codegen.object import emit_assembly
from tilewright.compiler.codegen.statistics import inner_loops
from tilewright.compiler.runtime.speeds import Probes
from tilewright.compiler.targets.host import resolve_target
from tilewright.compiler.targets.target import known_targets
from tilewright.tuner.measure.roofline import (
    CHAINS,
    Level,
    Speeds,
    bound,
    dot_peak_ir,
    dots,
    peak_ir,
    read_ir,
    vector_bytes,
)

SPEEDS = Speeds(
    100e9, (Level("L1", 1 << 15, 200e9), Level("L2", 1 << 20, 100e9), Level("memory", 0, 20e9))
)


@pytest.mark.parametrize("bits", [256, 512])
def test_the_peak_is_of_multiply_adds_on_registers(bits: int) -> None:
    target = resolve_target(f"x86-64-v4:{bits}")
    (loop,) = inner_loops(emit_assembly(peak_ir(target), target), target)
    assert loop.fmas == CHAINS
    assert not any("(%r" in line for line in loop.instructions), "the loop touches memory"


@pytest.mark.parametrize(
    ("target", "found"),
    [
        ("sapphirerapids", {"int8": "vpdpbusd", "bfloat16": "vdpbf16ps"}),
        ("cascadelake:256", {"int8": "vpdpbusd"}),
        ("x86-64-v4", {}),
        ("neoverse-n1", {"int8": "udot"}),
        ("neoverse-v1", {"int8": "ummla", "bfloat16": "bfmmla"}),
    ],
)
def test_peaks_of_narrow_types_are_of_their_instructions(
    target: str, found: dict[str, str]
) -> None:
    resolved = resolve_target(target)
    assert dots(resolved).keys() == found.keys()
    for name, instruction in found.items():
        (loop,) = inner_loops(emit_assembly(dot_peak_ir(resolved, name), resolved), resolved)
        assert sum(instruction in line for line in loop.instructions) == CHAINS
        assert loop.spills == 0


@pytest.mark.parametrize(("name", "instruction"), [("int8", "tdpbuud"), ("bfloat16", "tdpbf16ps")])
def test_peaks_of_registers_of_matrices(name: str, instruction: str) -> None:
    """Six products of 16 rows by 16 columns by 64 bytes: 128 times twelve vectors of groups."""
    target = resolve_target("sapphirerapids-amx")
    text = dot_peak_ir(target, name)
    assert "%next = add i64 %i, 128\n" in text
    (loop,) = inner_loops(emit_assembly(text, target), target)
    assert sum(instruction in line for line in loop.instructions) == 6
    assert loop.fmas == 6 and loop.spills == 0


@pytest.mark.parametrize("name", sorted(known_targets()))
def test_the_probes_call_nothing_on_any_target(name: str) -> None:
    """Nor functions that unwind the stack, which libraries that only the worker's process loads
    lack."""
    target = known_targets()[name]
    texts = [peak_ir(target), read_ir(target), *(dot_peak_ir(target, dot) for dot in dots(target))]
    assert all(backend_of(target).compile(text, target) for text in texts)


def test_registers_of_matrices_are_measured() -> None:
    try:
        with emulated_amx() as amx:
            host = amx_target()
            backend = backend_of(host)
            library = backend.load([backend.compile(dot_peak_ir(host, "int8"), host)])
            probes = Probes(0, 0, vector_bytes(host), {"int8": library.address("peak_int8")})
            before = amx.amx_executed()
            assert probes.dot_peaks(samples=1, rounds=256)["int8"] > 0
            library.close()
            products = 256 // dots(host)["int8"].groups * 6
            once = products + 1 + 8 + 1  # the shapes, eight zeros, and the end
            runs, rest = divmod(amx.amx_executed() - before, once)
            assert has_amx() or (runs > 0 and rest == 0)
    except UnavailableError as error:
        pytest.skip(str(error))


def test_an_instruction_for_matrices_counts_twice() -> None:
    """It multiplies eight bytes for a sum where others multiply four."""
    for name, step in (("neoverse-n1", 1), ("neoverse-v1", 2)):
        assert f"%next = add i64 %i, {step}\n" in dot_peak_ir(resolve_target(name), "int8")


def test_a_group_without_a_measured_peak_takes_as_long_as_a_product_of_float32() -> None:
    measured = replace(SPEEDS, dots={"int8": 300e9})
    for speeds, dot, rate in (
        (SPEEDS, ("int8", 4), 400e9), (measured, ("int8", 4), 300e9),
        (measured, ("bfloat16", 2), 200e9), (measured, ("", 1), 100e9),
    ):  # fmt: skip
        limit = bound(speeds, 1e6, 0, 0, 0, dot=dot)
        assert limit.compute_seconds == pytest.approx(1e6 / rate)
    assert Speeds.from_json(measured.to_json()) == measured


@pytest.mark.parametrize("bits", [256, 512])
def test_the_read_probe_loads_every_vector_once(bits: int) -> None:
    target = resolve_target(f"x86-64-v4:{bits}")
    (loop,) = inner_loops(emit_assembly(read_ir(target), target), target)
    assert sum("(%r" in line for line in loop.instructions) == CHAINS
    assert loop.spills == 0


def test_a_level_is_the_smallest_that_holds_the_bytes() -> None:
    names = [SPEEDS.level_for(size).name for size in (0, 1 << 15, (1 << 15) + 1, 1 << 21)]
    assert names == ["L1", "L1", "L2", "memory"]


def test_arithmetic_or_memory_limits() -> None:
    # 1e6 operations at 100e9; 1000 bytes of weights from memory, which holds all 2 MiB of them,
    # and 1000 of values from L1, which holds both
    limit = bound(SPEEDS, 1e6, 1000, 1000, 2 << 20)
    assert limit.compute_seconds == pytest.approx(1e-5)
    assert limit.memory_seconds == pytest.approx(1000 / 20e9 + 1000 / 200e9)
    assert (limit.seconds, limit.limit) == (limit.compute_seconds, "compute")
    slow = bound(SPEEDS, 1e3, 1 << 20, 0, 1 << 20, threads=2)
    assert (slow.seconds, slow.limit) == (pytest.approx((1 << 20) / 100e9 / 2), "memory")
