"""A lower bound for the time on any machine: a time below it is a mistake or a lie, a time above it
may be true."""

from __future__ import annotations

import numpy as np

from tests.graphs import Maker
from tests.kernels import as_workload
from tilewright.compiler.plan.costs import bytes_written, flops
from tilewright.compiler.plan.workload import Workload
from tilewright.tuner.lower_bound import least_seconds
from tilewright.tuner.protocol.batches import LEAST_SECONDS

FASTEST_CORE_FLOPS, FASTEST_CORE_BYTES = 4e11, 8e11
"""Two 512-bit multiply-adds and two 64-byte stores a cycle, at 6 GHz."""


def product(m: int, n: int, k: int) -> Workload:
    make = Maker()
    return as_workload(make.graph(make("matmul", make.input("a", m, k), make.input("b", k, n))))


def test_the_fastest_kernel_of_the_fastest_core_is_far_above_it() -> None:
    for workload in (product(1024, 1024, 1024), product(4096, 4096, 1), product(1, 1, 1)):
        compute = flops(workload) / FASTEST_CORE_FLOPS / 8  # as Winograd and Strassen save
        traffic = bytes_written(workload) / FASTEST_CORE_BYTES
        possible = max(compute, traffic, 3e-9)
        assert 3 * least_seconds(workload, 1) <= possible
        for threads in (2, 64):
            assert least_seconds(workload, threads) < max(possible / threads, 3e-9)


def test_what_cannot_be_is_below_it() -> None:
    """Milliseconds of work in nanoseconds; no call is as short as a picosecond."""
    assert least_seconds(product(1024, 1024, 1024), 1) > 2e-5
    assert least_seconds(product(4096, 4096, 1), 1) > 6e-6
    assert least_seconds(product(1024, 1024, 1024), 8) < least_seconds(product(1024, 1024, 1024), 1)
    assert least_seconds(product(1, 1, 1), 64) == LEAST_SECONDS


def test_what_is_not_read_does_not_count() -> None:
    make = Maker()
    table = make.input("table", 1 << 20, 256)
    rows = make("gather", table, make.constant("rows", np.array([3], np.int64)), axis=0)
    assert least_seconds(as_workload(make.graph(rows)), 1) == LEAST_SECONDS
