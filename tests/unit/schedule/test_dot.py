"""Products with vectors whose matrix lies along the sum."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.graphs import Maker
from tests.kernels import WIDTHS, as_workload, run_workload, width
from tests.unit.schedule.problems import matmul, matmul_of_rows
from tilewright.compiler.dtypes import DType
from tilewright.compiler.mode import Mode
from tilewright.compiler.ops.interpret import run_graph
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.schedule.select import schedule_space
from tilewright.compiler.schedule.templates.dot import TEMPLATE
from tilewright.compiler.targets.host import resolve_target

V4 = resolve_target("x86-64-v4")


@given(
    m=st.integers(1, 8),
    n=st.integers(2, 40),
    k=st.integers(2, 150),
    batch=st.sampled_from([(), (3,), (2, 3)]),
    bits=st.sampled_from(WIDTHS),
    threads=st.sampled_from([1, 2]),
    data=st.data(),
)
@settings(max_examples=examples(25))
def test_any_size(
    m: int, n: int, k: int, batch: tuple[int, ...], bits: int, threads: int, data: st.DataObject
) -> None:
    """Sums of small integers are exact: tails of lanes, rows and unrolling may change nothing."""
    workload = matmul_of_rows(m, n, k, *batch)
    space = TEMPLATE.space(workload, Mode(width(bits), threads))
    assert space is not None
    random = np.random.default_rng(n * k)
    types = workload.graph.types
    arrays = [
        random.integers(-4, 5, types[name].shape).astype(np.float32)
        for name in workload.graph.inputs
    ]
    inputs = dict(zip(workload.graph.inputs, arrays, strict=True))
    (expected,) = run_graph(workload.graph, inputs, float64=True)
    schedule = data.draw(st.sampled_from(space.points))
    got = run_workload(workload, schedule, width(bits), arrays, random, threads)
    np.testing.assert_array_equal(got, expected.astype(np.float32), str(schedule))


@pytest.mark.parametrize("dtype", [DType.FLOAT64, DType.INT32, DType.INT64])
def test_other_types(dtype: DType) -> None:
    make = Maker()
    a, b = make.input("a", 9, 37, dtype=dtype), make.input("b", 37, 1, dtype=dtype)
    workload = as_workload(make.graph(make("matmul", a, b)))
    random = np.random.default_rng(1)
    arrays = [random.integers(-9, 9, s).astype(dtype.numpy) for s in ((9, 37), (37, 1))]
    for bits in WIDTHS:
        space = schedule_space(workload, Mode(width(bits)))
        assert space.default().algorithm == "dot"
        got = run_workload(workload, space.default(), width(bits), arrays, random)
        np.testing.assert_array_equal(got, arrays[0] @ arrays[1])


@pytest.mark.parametrize(
    ("workload", "algorithm"),
    [
        (matmul_of_rows(1, 768, 768), "dot"),
        (matmul_of_rows(8, 768, 768), "dot"),
        (matmul_of_rows(9, 768, 768), "gemm"),
        (matmul(1, 768, 768, constant=False), "gemv"),
        (matmul(1, 768, 768), "gemv"),
    ],
)
def test_untuned(workload: Workload, algorithm: str) -> None:
    """It is for matrices that would have to be transposed at run time."""
    assert schedule_space(workload, Mode(V4)).default().algorithm == algorithm
