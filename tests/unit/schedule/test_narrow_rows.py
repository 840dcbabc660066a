"""Reductions over long axes with few values side by side: one vector of rows, several sums."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels import HOST, run_workload
from tests.unit.schedule.problems import unary
from tilewright.compiler.mode import Mode
from tilewright.compiler.ops.interpret import run_graph
from tilewright.compiler.program.build import lower_workload
from tilewright.compiler.schedule.select import untuned_schedule
from tilewright.compiler.targets.host import resolve_target

WIDE = resolve_target("x86-64-v4")


@pytest.mark.parametrize("op", ["softmax", "log_softmax", "reduce_sum", "arg_max"])
@pytest.mark.parametrize(("length", "width", "chains"), [(67, 3, 4), (67, 70, 1), (9, 3, 1)])
def test_steps_of_a_narrow_row_do_not_wait_for_each_other(
    op: str, length: int, width: int, chains: int
) -> None:
    """Each sum of 3 columns took the latency of an addition for every element."""
    attrs = {"axes": (0,), "keepdims": False} if op == "reduce_sum" else {"axis": 0}
    if op == "arg_max":
        attrs |= {"keepdims": False, "last": False}
    workload = unary(op, length, width, **attrs)
    schedule = untuned_schedule(workload, Mode(HOST))
    nest = lower_workload(workload, schedule, Mode(HOST)).nest
    reducing = [compute for compute in nest.computes if compute.combiner is not None]
    assert {len(compute.partial) for compute in reducing} == {int(chains > 1)}
    x = np.random.default_rng(0).standard_normal((length, width)).astype(np.float32)
    x = np.round(x) if op == "arg_max" else x  # of equal ones the first
    (expected,) = run_graph(workload.graph, {"x": x}, float64=True)
    got = run_workload(workload, schedule, HOST, (x,), np.random.default_rng(1))
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("op", "width", "along_rows"),
    [("arg_max", 17, True), ("arg_max", 100, False), ("reduce_sum", 17, False)],
)
def test_lanes_that_are_joined_in_many_steps_run_along_rows(
    op: str, width: int, along_rows: bool
) -> None:
    """Joining the lanes of each row took most of the time of rows of 17."""
    more = {"axis": 1, "last": False} if op == "arg_max" else {"axes": (1,)}
    workload = unary(op, 40, width, keepdims=False, **more)
    schedule = untuned_schedule(workload, Mode(WIDE))
    (compute,) = lower_workload(workload, schedule, Mode(WIDE)).nest.computes
    assert compute.vector is not None
    assert compute.vector.extent == (40 if along_rows else width)
