"""Registers in groups of eight and rounding as vectors are converted, on an emulated RISC-V."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.devices.emulated_kernels import Array, Case, run_cases
from tests.devices.packages import UnavailableError
from tests.nests.evaluate import pack_tensor, run_nest
from tests.unit.codegen.rounded import bytes_nest
from tests.unit.codegen.test_joined import SPECIAL, pointwise
from tilewright.compiler.mode import Mode
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.schedule.select import lower_schedule, untuned_schedule
from tilewright.compiler.targets.host import resolve_target

pytestmark = [pytest.mark.devices, pytest.mark.timeout(300)]


@pytest.mark.parametrize("bits", [128, 256])
def test_two_vectors_at_a_time(bits: int, tmp_path: Path) -> None:
    """Also one and a half, bytes, and registers that are longer than the code knows; by the meaning
    of the nest."""
    target, random = resolve_target("riscv64"), np.random.default_rng(bits)
    cases, expected = [], list[Array]()
    for filters, block, narrow in [(64, 16, False), (32, 16, True), (24, 8, False), (24, 8, True)]:
        workload = pointwise(filters, block, narrow=narrow)
        default = untuned_schedule(workload, Mode(target))
        choices = {**dict(default.choices), "tile": 3, "vectors": 2}
        schedule = Schedule.of(default.algorithm, **choices)
        nest = lower_schedule(workload, schedule, Mode(target)).nest
        buffers = [
            pack_tensor(t, random.integers(-4, 5, t.shape).astype(t.dtype.numpy))
            for t in nest.buffers
        ]
        cases.append(Case(nest, target, tuple(buffers[:-1])))
        run_nest(nest, buffers)
        expected.append(buffers[-1])
    some = np.array(SPECIAL * 8, np.float32)
    nest = bytes_nest(some.size, 2, 16)
    cases.append(Case(nest, target, (some,)))
    expected.append(np.zeros(some.size, np.int8))
    run_nest(nest, [some, expected[-1]])
    try:
        found = run_cases(cases, f"rv64,v=true,vlen={bits}", tmp_path)
    except UnavailableError as error:
        pytest.skip(str(error))
    for got, wanted in zip(found, expected, strict=True):
        np.testing.assert_array_equal(got, wanted.reshape(-1))
