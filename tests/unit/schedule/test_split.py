"""Sums in parts that threads share."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.graphs import Maker
from tests.kernels import WIDTHS, as_workload, run_workload, width
from tests.unit.schedule.problems import conv, matmul
from tilewright.compiler.errors import ScheduleError
from tilewright.compiler.mode import Mode
from tilewright.compiler.ops.interpret import run_graph
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.schedule.select import lower_schedule, schedule_space
from tilewright.compiler.targets.host import resolve_target

V4 = resolve_target("x86-64-v4")


def product(m: int, n: int, k: int, *, constant: bool, batch: tuple[int, ...] = ()) -> Workload:
    """relu(a b + bias)."""
    make = Maker()
    a = make.input("a", *batch, m, k)
    b = make.input("b", *(() if constant else batch), k, n)
    y = make("relu", make("matmul", a, b, make.input("bias", n)))
    return as_workload(make.graph(y), ("b", "bias") if constant else ("bias",))


def splits(workload: Workload, threads: int) -> set[int]:
    """The parts that any schedule of a space cuts the sum into."""
    space = schedule_space(workload, Mode(V4, threads))
    return {int(dict(point.choices).get("split", 1)) for point in space}


@given(
    m=st.integers(1, 12),
    n=st.integers(1, 50),
    part=st.integers(128, 150),
    count=st.sampled_from([2, 3, 4]),
    constant=st.booleans(),
    batch=st.sampled_from([(), (2,)]),
    bits=st.sampled_from(WIDTHS),
    data=st.data(),
)
@settings(max_examples=examples(20))
def test_any_size(
    m: int, n: int, part: int, count: int, constant: bool, batch: tuple[int, ...], bits: int,
    data: st.DataObject,
) -> None:  # fmt: skip
    """Sums of small integers are exact: any difference is a part too many, or too few."""
    workload = product(m, n, part * count, constant=constant, batch=batch)
    space = schedule_space(workload, Mode(width(bits), 2))
    points = [p for p in space if dict(p.choices).get("split") == count]
    if not points:  # the output is large enough for both threads
        return
    random = np.random.default_rng(m * n)
    types = workload.graph.types
    arrays = [
        random.integers(-4, 5, types[name].shape).astype(np.float32)
        for name in workload.graph.inputs
    ]
    inputs = dict(zip(workload.graph.inputs, arrays, strict=True))
    (expected,) = run_graph(workload.graph, inputs, float64=True)
    schedule = data.draw(st.sampled_from(points))
    got = run_workload(workload, schedule, width(bits), arrays, random, threads=2)
    np.testing.assert_array_equal(got, expected.astype(np.float32), str(schedule))


@pytest.mark.parametrize(
    ("workload", "threads", "expected"),
    [
        (matmul(1, 64, 4096), 1, {1}),
        (matmul(1, 64, 4096), 2, {1, 2, 4}),
        (matmul(1, 64, 4095), 2, {1, 3}),
        (matmul(1, 64, 4095), 8, {1, 3, 5, 7, 9, 13, 15}),
        (matmul(1, 64, 500), 2, {1, 2}),
        (matmul(1, 64, 200), 2, {1}),
        (matmul(128, 768, 768), 2, {1}),
        (conv(16, channels=512, filters=16, size=7), 2, {1}),
    ],
)
def test_where_sums_are_split(workload: Workload, threads: int, expected: set[int]) -> None:
    """On several threads, where the output is small and the parts are long."""
    assert splits(workload, threads) == expected


@pytest.mark.parametrize(
    ("size", "expected"),
    [((1, 64, 4096), 2), ((8, 16, 4096), 2), ((1, 10, 2048), 1), ((1, 1024, 4096), 1)],
)
def test_untuned(size: tuple[int, int, int], expected: int) -> None:
    """One tile for two threads, and work enough for both."""
    default = schedule_space(matmul(*size), Mode(V4, 2)).default()
    assert dict(default.choices).get("split", 1) == expected


def test_what_does_not_divide_is_refused() -> None:
    workload = matmul(1, 64, 4096)
    default = schedule_space(workload, Mode(V4, 2)).default()
    choices = {**dict(default.choices), "split": 3}
    with pytest.raises(ScheduleError, match="does not divide into 3 parts"):
        lower_schedule(workload, Schedule.of("gemv", **choices), Mode(V4, 2))
    runtime = matmul(1, 64, 4096, constant=False)
    choices = dict(schedule_space(runtime, Mode(V4, 2)).default().choices) | {
        "pack": True,
        "split": 2,
    }
    with pytest.raises(ScheduleError, match="panels made at run time"):
        lower_schedule(runtime, Schedule.of("gemv", **choices), Mode(V4, 2))
