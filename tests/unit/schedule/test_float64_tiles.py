"""Sums of eight bytes: a vector has as many lanes as one of float32, and takes two registers."""

from __future__ import annotations

import pytest

from tests.graphs import Maker
from tests.kernels import as_workload
from tilewright.compiler.dtypes import DType
from tilewright.compiler.mode import Mode
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.schedule.select import schedule_space
from tilewright.compiler.targets.host import resolve_target

TARGETS = ("x86-64-v2", "x86-64-v3", "x86-64-v4", "neoverse-n1", "riscv64")


def product(dtype: DType) -> Workload:
    make = Maker()
    a, b = make.input("a", 256, 512, dtype=dtype), make.input("b", 512, 256, dtype=dtype)
    return as_workload(make.graph(make("matmul", a, b)), ("b",))


@pytest.mark.parametrize("name", TARGETS)
def test_registers_hold_a_tile_of_float64(name: str) -> None:
    target = resolve_target(name)
    space = schedule_space(product(DType.FLOAT64), Mode(target))
    points = [p for p in (space.default(), *space.points) if p.algorithm == "gemm"]
    assert points
    for point in points:
        vectors = int(point["vectors"])
        assert 2 * vectors * (int(point["tile"]) + 1) <= target.vector_registers


@pytest.mark.parametrize("name", TARGETS)
def test_tiles_of_float64_use_the_registers(name: str) -> None:
    """Half of them are sums, by default."""
    target = resolve_target(name)
    point = schedule_space(product(DType.FLOAT64), Mode(target)).default()
    assert 4 * int(point["tile"]) * int(point["vectors"]) >= target.vector_registers
