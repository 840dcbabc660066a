"""Two levels of Strassen: their results, and where they are taken."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.kernels import HOST, WIDTHS, run_workload
from tests.unit.schedule.problems import matmul
from tests.unit.schedule.test_strassen import check_exactly, pointwise, rows_times_weights
from tilewright.compiler.codegen.statistics import inner_loops
from tilewright.compiler.errors import ScheduleError
from tilewright.compiler.loops.expr import Role
from tilewright.compiler.loops.layout import blocked
from tilewright.compiler.mode import Mode
from tilewright.compiler.ops.interpret import run_graph
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.program.build import lower_workload
from tilewright.compiler.runtime.verify import compare
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.schedule.select import lower_schedule, schedule_space
from tilewright.compiler.schedule.templates.strassen import TEMPLATE as ONE_LEVEL
from tilewright.compiler.schedule.templates.strassen_twice import TEMPLATE
from tilewright.compiler.targets.host import resolve_target

N1 = resolve_target("neoverse-n1")


@given(
    tiles=st.integers(1, 2),
    n=st.integers(1, 14),
    k=st.integers(1, 9),
    bits=st.sampled_from(WIDTHS),
    threads=st.sampled_from([1, 2]),
    transposed=st.booleans(),
    residual=st.booleans(),
    vectors=st.integers(1, 3),
    unroll=st.sampled_from([1, 2, 4]),
)
@settings(max_examples=examples(5))
def test_any_size(
    tiles: int, n: int, k: int, bits: int, threads: int, transposed: bool, residual: bool,
    vectors: int, unroll: int,
) -> None:  # fmt: skip
    """Small integers, of which nothing may differ; panels and sums with tails."""
    tile = bits // 32
    workload = rows_times_weights(
        4 * tile * tiles, 4 * n, 4 * k, transposed=transposed, residual=residual
    )
    schedule = Schedule.of("strassen2", tile=tile, vectors=vectors, unroll=unroll)
    check_exactly(workload, schedule, bits, threads)


def test_its_rounding_errors_are_small() -> None:
    """Below 8e-6 of the largest output, against float64: twice that of one level."""
    workload = rows_times_weights(128, 512, 1024)
    random = np.random.default_rng(5)
    arrays = [
        random.standard_normal(workload.graph.types[name].shape).astype(np.float32)
        for name in workload.graph.inputs
    ]
    inputs = dict(zip(workload.graph.inputs, arrays, strict=True))
    (expected,) = run_graph(workload.graph, inputs, float64=True)
    schedule = Schedule.of("strassen2", tile=16, vectors=1, unroll=4)
    error = compare(run_workload(workload, schedule, HOST, arrays, random), expected)
    assert 0 < error < 8e-6


def test_an_infinity_reaches_the_three_rows_that_its_row_is_combined_with() -> None:
    workload = rows_times_weights(64, 64, 64)
    random = np.random.default_rng(6)
    arrays = [
        random.integers(-4, 5, workload.graph.types[name].shape).astype(np.float32)
        for name in workload.graph.inputs
    ]
    (expected,) = run_graph(workload.graph, dict(zip(workload.graph.inputs, arrays, strict=True)))
    arrays[0][5, 3] = np.inf
    schedule = Schedule.of("strassen2", tile=16, vectors=1, unroll=4)
    got = run_workload(workload, schedule, HOST, arrays, random)
    others = [row for row in range(64) if row % 16 != 5]
    np.testing.assert_array_equal(got[others], expected[others])


@pytest.mark.parametrize("size", [(128, 0, 384), (128, 384, 0), (0, 384, 384)])
def test_products_of_nothing_are_left_to_others(size: tuple[int, int, int]) -> None:
    """Such a workload may come from outside; tiles of no columns were asked for."""
    workload = matmul(*size)
    assert ONE_LEVEL.space(workload, Mode(N1)) is None
    assert TEMPLATE.space(workload, Mode(N1)) is None


@pytest.mark.parametrize(
    ("workload", "reason"),
    [
        (matmul(126, 768, 768), "rows in no quarters"),
        (matmul(128, 766, 768), "columns in no quarters"),
        (matmul(128, 768, 766), "depth in no quarters"),
        (matmul(8, 768, 768), "no tile of rows is whole"),
        (matmul(128, 768, 768, constant=False), "the matrix is not constant"),
        (pointwise(4, 128, 128, 8), "channels in blocks"),
    ],
)
def test_where_it_does_not_apply(workload: Workload, reason: str) -> None:
    assert TEMPLATE.space(workload, Mode(N1)) is None, reason


def test_it_is_offered_where_the_core_gains() -> None:
    workload = matmul(128, 384, 384)
    for name, offered in (("neoverse-v1", True), ("cortex-a53", False), ("x86-64-v4", False)):
        space = schedule_space(workload, Mode(resolve_target(name)))
        assert ("strassen2" in [s.algorithm for s in space.subspaces]) is offered
    strict = schedule_space(workload, Mode(N1, numerics="strict"))
    assert {s.algorithm for s in strict.subspaces} == {"gemm"}


@pytest.mark.parametrize(
    ("size", "target", "algorithm"),
    [
        ((128, 384, 384), "neoverse-n1", "strassen2"),
        ((128, 1536, 384), "neoverse-n1", "strassen2"),
        ((128, 384, 1536), "neoverse-n1", "strassen2"),
        ((128, 3072, 768), "neoverse-n1", "strassen"),  # its weights would take 28 MB, thrice
        ((16, 384, 384), "neoverse-n1", "gemm"),
        ((128, 384, 384), "cortex-a72", "strassen"),
    ],
)  # fmt: skip
def test_untuned_it_is_taken_where_caches_hold_it(
    size: tuple[int, int, int], target: str, algorithm: str
) -> None:
    assert (
        schedule_space(matmul(*size), Mode(resolve_target(target))).default().algorithm == algorithm
    )


@pytest.mark.parametrize("depth", [4, 384])
def test_rows_whose_sums_no_cache_holds_are_left_to_one_level(depth: int) -> None:
    """Of a million rows by 384 they would be 6.3 GB. A schedule from elsewhere is refused too."""
    workload = matmul(1 << 20, 384, depth)
    assert TEMPLATE.space(workload, Mode(N1)) is None
    with pytest.raises(ScheduleError, match="needs fewer rows"):
        lower_schedule(workload, Schedule.of("strassen2", tile=8, vectors=3, unroll=1), Mode(N1))


def test_what_is_made_of_rows_takes_no_more_than_the_third_cache() -> None:
    """Of 4096 rows by 96 it takes 6.2 MB, and the products of a panel 1.4 MB; of 8192 rows twice
    that, and the cache has 8 MB."""
    workload = matmul(4096, 384, 96)
    space = TEMPLATE.space(workload, Mode(N1))
    assert space is not None
    loops = lower_schedule(workload, space.default, Mode(N1)).nest
    roles = (Role.SHARED, Role.SCRATCH)
    made = sum(t.bytes for t in (*loops.buffers, *loops.scratch) if t.role in roles)
    assert 6 << 20 < made <= N1.core.cache_bytes[2]
    assert TEMPLATE.space(matmul(8192, 384, 96), Mode(N1)) is None


def test_its_loops_load_little() -> None:
    """Eight rows by three vectors: two vectors of factors and three of a panel in 2.5 loads."""
    workload = matmul(128, 384, 384)
    schedule = schedule_space(workload, Mode(N1)).default()
    assert (schedule.integer("tile"), schedule.integer("vectors")) == (8, 3)
    loops = inner_loops(lower_workload(workload, schedule, Mode(N1)).assembly(N1), N1)
    products = [loop for loop in loops if loop.fmas == 24 * schedule.integer("unroll")]
    assert len(products) == 7
    for loop in products:
        assert not loop.spills
        assert len(loop.instructions) <= loop.fmas * (1 + 2.5 / 24) + 4


def test_blocks_of_channels_are_left_to_one_level() -> None:
    workload = pointwise(4, 64, 128, 14)
    assert workload.inputs[0].layout == blocked(4, 1, 4)
    assert TEMPLATE.preference_of(workload, Mode(N1)) is None
