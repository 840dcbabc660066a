"""The peak probe: a loop of multiply-adds that stay in registers, at every vector width."""

from __future__ import annotations

import pytest

from benchmarks.peak import CHAINS, peak_flops, peak_ir
from compiler.codegen.object import emit_assembly
from compiler.target import resolve_target


@pytest.mark.parametrize("bits", [256, 512])
def test_the_loop_is_multiply_adds_on_registers(bits: int) -> None:
    target = resolve_target(f"x86-64-v4:{bits}")
    lines = emit_assembly(peak_ir(target), target).splitlines()
    start = next(i for i, line in enumerate(lines) if "# %loop" in line)
    end = next(i for i, line in enumerate(lines) if i > start and "jb" in line)
    loop = lines[start:end]
    assert sum("vfmadd" in line for line in loop) == CHAINS
    assert not any("(%r" in line for line in loop), "the loop touches memory"


def test_it_runs_here() -> None:
    assert peak_flops(samples=1, rounds=1000) > 0
