"""Every described target has code: schedules at its vector width that lower and compile."""

from __future__ import annotations

import pytest

from tests.unit.schedule.problems import conv, matmul, unary
from tilewright.compiler.mode import Mode
from tilewright.compiler.program.build import build_kernel
from tilewright.compiler.schedule.select import schedule_space
from tilewright.compiler.targets.host import resolve_target
from tilewright.compiler.targets.target import known_targets


@pytest.mark.parametrize("name", sorted(known_targets()))
def test_default_schedules_compile(name: str) -> None:
    """A convolution of each algorithm, a product and a row-wise operator."""
    target = resolve_target(name)
    lanes = target.vector_bits // 32
    small = conv(lanes, channels=16, filters=16, size=14)
    for workload in (small, matmul(24, 48, 64), unary("softmax", 8, 64, axis=1)):
        for space in schedule_space(workload, Mode(target)).subspaces:
            assert build_kernel(workload, space.default, Mode(target)).object
