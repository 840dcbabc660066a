"""Code of WebAssembly computes each sum in the order of the kernel."""

from __future__ import annotations

import pytest

from tests.unit.schedule.problems import matmul
from tilewright.compiler.mode import Mode
from tilewright.compiler.program.build import lower_workload
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.targets.host import resolve_target

ROWS, VECTORS, STEPS = 5, 2, 4


@pytest.mark.parametrize(
    ("name", "added"), [("wasm32", "f32x4.add"), ("wasm32-relaxed", "f32x4.relaxed_madd")]
)
def test_steps_of_an_unrolled_sum_follow_one_another(name: str, added: str) -> None:
    """Nested in one another, each waits for the factors of all: V8 spilled ten registers, and took
    1.3 times as long."""
    target = resolve_target(name)
    schedule = Schedule.of(
        "gemm", tile=ROWS, vectors=VECTORS, order="lanes-outer", unroll=STEPS, prefetch=0
    )
    text = lower_workload(matmul(4 * ROWS, 64, 64), schedule, Mode(target)).assembly(target)
    lines = [line.split("#")[0].split() for line in text.splitlines()]
    instructions = [line[0] for line in lines if line]
    sums = ROWS * VECTORS * STEPS  # first comes their loop, then the activation
    places = [n for n, instruction in enumerate(instructions) if instruction == added][:sums]
    written = [instructions[place + 1] for place in places]
    assert set(written) == {"local.set"}  # and not added to at once
    loads = [n for n, each in enumerate(instructions) if each.startswith("v128.load")]
    later = [load for load in loads if places[0] < load < places[-1]]
    assert len(later) == STEPS * (ROWS + VECTORS) - 2
