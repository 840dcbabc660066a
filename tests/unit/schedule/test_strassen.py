"""One level of Strassen: its identity, where it applies, and its results."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.graphs import Maker
from tests.kernels import HOST, WIDTHS, Numbers, as_workload, run_workload, width
from tests.unit.schedule.problems import matmul
from tilewright.compiler.codegen.cpu.lower import stage_extent
from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import ScheduleError
from tilewright.compiler.loops.layout import blocked
from tilewright.compiler.mode import Mode
from tilewright.compiler.ops.interpret import run_graph
from tilewright.compiler.plan.workload import Halo, Workload
from tilewright.compiler.runtime.verify import compare
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.schedule.select import lower_schedule, schedule_space, untuned_schedules
from tilewright.compiler.schedule.templates.strassen import TEMPLATE
from tilewright.compiler.schedule.templates.strassen_analysis import LAST_ROW, PRODUCTS
from tilewright.compiler.targets.host import resolve_target

V4 = resolve_target("x86-64-v4")


def rows_times_weights(
    m: int, n: int, k: int, *, transposed: bool = False, residual: bool = False
) -> Workload:
    """relu(a b + c (+ residual)), with b as (k, n) or (n, k)."""
    make = Maker()
    a, b = make.input("a", m, k), make.input("b", *((n, k) if transposed else (k, n)))
    y = make("gemm", a, b, make.input("c", n), trans_b=int(transposed), trans_a=0,
             alpha=1.0, beta=1.0)  # fmt: skip
    if residual:
        y = make("add", y, make.input("residual", m, n))
    return as_workload(make.graph(make("relu", y)), ("b", "c"))


def pointwise(
    lanes: int, channels: int, filters: int, size: int, *, batch: int = 1, stride: int = 1,
    halo: bool = False,
) -> Workload:  # fmt: skip
    """A 1x1 convolution in blocked channels; a halo around its output separates its rows."""
    make, layout = Maker(), blocked(4, 1, lanes)
    shape = batch, channels, size, size
    y = make(
        "conv", make.input("x", *shape), make.input("w", filters, channels, 1, 1),
        strides=(stride, stride), pads=(0, 0, 0, 0), dilations=(1, 1), group=1,
    )  # fmt: skip
    around: Halo = ((0, 0), (0, 0), (1, 1), (1, 1)) if halo else ()
    return as_workload(make.graph(y), ("w",), {"x": (layout, ()), y: (layout, around)})


def check_exactly(workload: Workload, schedule: Schedule, bits: int, threads: int) -> None:
    """Small integers, so that every sum is exact in float32: nothing may differ.

    Entries up to 4, sums of two up to 8, 64 K < 2**24 for the products and a few times that for C.
    """
    random: Numbers = np.random.default_rng(bits + threads)
    graph = workload.graph
    arrays = [
        random.integers(-4, 5, graph.types[name].shape).astype(np.float32) for name in graph.inputs
    ]
    (expected,) = run_graph(graph, dict(zip(graph.inputs, arrays, strict=True)), float64=True)
    target = width(bits)
    if "+avx512f" in target.features:  # whose caches decide how many rows a block has
        target = replace(target, cpu=V4.cpu)
    got = run_workload(workload, schedule, target, arrays, random, threads)
    np.testing.assert_array_equal(got, expected.astype(np.float32), str(schedule))


def test_the_products_add_up() -> None:
    """Each product a_ij b_jk is in c_ik once, and no other product is left in it."""
    for i, j, row, k in product(range(2), repeat=4):
        for target in product(range(2), repeat=2):
            left, right, to = 2 * i + j, 2 * row + k, 2 * target[0] + target[1]
            total = sum(p.left[left] * p.right[right] * p.targets[to] for p in PRODUCTS)
            assert total == (j == row and target == (i, k))


def test_the_last_row_adds_up() -> None:
    for j, row, k, column in product(range(2), repeat=4):
        total = sum(
            left[j] * PRODUCTS[number].right[2 * row + k] * targets[column]
            for number, (left, targets) in LAST_ROW.items()
        )
        assert total == (j == row and column == k)


@pytest.mark.parametrize(
    "products", [[p.targets for p in PRODUCTS], [t for _, t in LAST_ROW.values()]]
)
def test_what_comes_first_is_added(products: list[tuple[int, ...]]) -> None:
    """The first product into a quadrant is stored as it is."""
    for quadrant in range(4):
        signs = [targets[quadrant] for targets in products if targets[quadrant]]
        assert signs[:1] in ([1], [])


@given(
    m=st.integers(2, 40),
    n=st.integers(1, 60),
    k=st.integers(1, 40),
    bits=st.sampled_from(WIDTHS),
    threads=st.sampled_from([1, 2]),
    transposed=st.booleans(),
    residual=st.booleans(),
    data=st.data(),
)
@settings(max_examples=examples(15))
def test_any_size(
    m: int, n: int, k: int, bits: int, threads: int, transposed: bool, residual: bool,
    data: st.DataObject,
) -> None:  # fmt: skip
    """Odd rows, halves that are not whole vectors, tails of every tile, any point of the space."""
    workload = rows_times_weights(m, 2 * n, 2 * k, transposed=transposed, residual=residual)
    space = TEMPLATE.space(workload, Mode(width(bits), threads))
    assert space is not None
    check_exactly(workload, data.draw(st.sampled_from(space.points)), bits, threads)


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize(
    ("size", "batch", "stride", "halo"),
    [(4, 1, 1, False), (5, 1, 1, False), (6, 1, 1, True), (7, 1, 1, True), (5, 2, 1, False),
     (4, 3, 1, True), (9, 1, 2, False)],
)  # fmt: skip
def test_pointwise_convolutions(bits: int, size: int, batch: int, stride: int, halo: bool) -> None:
    """Rows of one axis, of several that cannot be walked as one, odd and even numbers of them."""
    lanes = bits // 32
    workload = pointwise(lanes, 4 * lanes, 2 * lanes, size, batch=batch, stride=stride, halo=halo)
    space = TEMPLATE.space(workload, Mode(width(bits)))
    assert space is not None
    check_exactly(workload, space.default, bits, 1)


def test_its_rounding_errors_are_small() -> None:
    """Below 4e-6 of the largest output, against float64.

    A sum of K = 1024 terms in float32 errs by some sqrt(K) * 2**-24 = 2e-6 of a typical output, and
    Strassen's by up to about twice that; the largest output of 2**16 is some four times a typical
    one. One term left out is an error of 1e-2.
    """
    workload = rows_times_weights(129, 512, 1024)
    random = np.random.default_rng(5)
    arrays = [
        random.standard_normal(workload.graph.types[name].shape).astype(np.float32)
        for name in workload.graph.inputs
    ]
    inputs = dict(zip(workload.graph.inputs, arrays, strict=True))
    (expected,) = run_graph(workload.graph, inputs, float64=True)
    space = TEMPLATE.space(workload, Mode(HOST))
    assert space is not None
    got = run_workload(workload, space.default, HOST, arrays, random)
    error = compare(got, expected)
    assert 0 < error < 4e-6


def test_strict_numerics_leave_it_out() -> None:
    workload = matmul(128, 768, 768)
    fast = [s.algorithm for s in schedule_space(workload, Mode(V4)).subspaces]
    strict = [s.algorithm for s in schedule_space(workload, Mode(V4, numerics="strict")).subspaces]
    assert fast == ["strassen", "gemm"]
    assert strict == ["gemm"]
    assert all(
        s.algorithm != "strassen" for s in untuned_schedules(workload, Mode(V4, numerics="strict"))
    )


@pytest.mark.parametrize(
    ("workload", "reason"),
    [
        (matmul(128, 767, 768), "odd columns"),
        (matmul(128, 768, 767), "odd depth"),
        (matmul(128, 768, 768, constant=False), "the matrix is not constant"),
        (matmul(1, 768, 768), "one row"),
        (pointwise(16, 48, 32, 8), "the half of the channels is no whole block"),
    ],
)
def test_where_it_does_not_apply(workload: Workload, reason: str) -> None:
    assert TEMPLATE.space(workload, Mode(V4)) is None, reason


@pytest.mark.parametrize(
    ("size", "taken"),
    [((128, 3072, 768), True), ((49, 512, 2048), True), ((16, 768, 768), False),
     ((1500, 384, 1536), True), ((1500, 384, 384), False),
     ((64, 256, 256), False), ((1536, 128, 604), False),
     ((1024, 1024, 1024), True), ((128, 256, 64), False), ((4096, 128, 128), False)],
)  # fmt: skip
def test_untuned_it_is_taken_where_it_gains(size: tuple[int, int, int], taken: bool) -> None:
    default = schedule_space(matmul(*size), Mode(V4)).default()
    assert (default.algorithm == "strassen") is taken


@pytest.mark.parametrize(("rows", "taken"), [(49, False), (64, True)])
def test_a_faster_core_needs_more_rows_for_the_weights_read(rows: int, taken: bool) -> None:
    """It multiplies twice as fast and reads as fast."""
    zen5 = resolve_target("znver5")
    default = schedule_space(matmul(rows, 512, 2048), Mode(zen5)).default()
    assert (default.algorithm == "strassen") is taken


@pytest.mark.parametrize(("rows", "taken"), [(49, False), (128, False), (169, True)])
def test_modules_of_webassembly_need_many_rows(rows: int, taken: bool) -> None:
    default = schedule_space(
        matmul(rows, 512, 2048), Mode(resolve_target("wasm32-relaxed"))
    ).default()
    assert (default.algorithm == "strassen") is taken


def test_half_precision_is_left_alone() -> None:
    make = Maker()
    a = make.input("a", 128, 256, dtype=DType.FLOAT16)
    y = make("matmul", a, make.input("b", 256, 256, dtype=DType.FLOAT16))
    workload = as_workload(make.graph(y), ("b",))
    assert TEMPLATE.space(workload, Mode(V4)) is None


@pytest.mark.parametrize(
    ("workload", "threads", "tiles"),
    [
        (rows_times_weights(22, 192, 64), 1, 3),
        (rows_times_weights(22, 192, 64), 2, 6),
        (rows_times_weights(22, 192, 64), 3, 3),  # as many panels as threads
        (rows_times_weights(23, 192, 64), 2, 3),  # the last row would be added twice
        (pointwise(16, 64, 192, 6), 2, 6),
    ],
)
def test_threads_share_rows_where_they_cannot_share_panels_evenly(
    workload: Workload, threads: int, tiles: int
) -> None:
    schedule = Schedule.of(
        "strassen", order="products-inner", tile=4, vectors=2, unroll=1, prefetch=0
    )
    kernel = lower_schedule(workload, schedule, Mode(V4, threads))
    assert stage_extent(kernel.nest.stages[1]) == tiles
    check_exactly(workload, schedule, 512, threads)


@pytest.mark.parametrize(
    ("workload", "threads", "blocks"),
    [
        (rows_times_weights(700, 64, 128), 1, 2),
        (rows_times_weights(700, 64, 128), 3, 3),
        (pointwise(16, 64, 32, 50, halo=True), 2, 4),
    ],
)
def test_sums_of_a_block_of_rows_at_a_time(workload: Workload, threads: int, blocks: int) -> None:
    """A thread's own sums: one stage, however many threads."""
    schedule = Schedule.of("strassen", order="rows-outer", tile=4, vectors=1, unroll=1, prefetch=0)
    nest = lower_schedule(workload, schedule, Mode(V4, threads)).nest
    assert stage_extent(nest.stages[-1]) == blocks
    assert [tensor.name for tensor in nest.scratch] == ["sums"]
    check_exactly(workload, schedule, 512, threads)


@pytest.mark.parametrize(("rows", "offered"), [(700, True), (701, False), (128, False)])
def test_blocks_need_many_rows_and_no_odd_one(rows: int, offered: bool) -> None:
    workload = rows_times_weights(rows, 64, 128)
    space = TEMPLATE.space(workload, Mode(V4))
    assert space is not None
    (orders,) = (knob.values for knob in space.knobs if knob.name == "order")
    assert ("rows-outer" in orders) is offered
    schedule = Schedule.of("strassen", order="rows-outer", tile=4, vectors=1, unroll=1, prefetch=0)
    if not offered:
        with pytest.raises(ScheduleError, match="rows"):
            lower_schedule(workload, schedule, Mode(V4))
