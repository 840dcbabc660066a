"""Products with open rows, columns, sums and batches mean their workloads at every size."""

from __future__ import annotations

import pytest

from tests.graphs import Maker
from tests.unit.schedule.dynamic_nests import (
    ONE,
    TARGET,
    TWO,
    Build,
    M,
    N,
    assert_right,
    dynamic_workload,
    schedules,
)
from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import ScheduleError
from tilewright.compiler.loops.expr import Role
from tilewright.compiler.mode import Mode
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.schedule.select import lower_schedule, untuned_schedules
from tilewright.compiler.sizes import Dimension, is_dynamic
from tilewright.compiler.targets.host import resolve_target


def rows(make: Maker, n: int) -> str:
    product = make("matmul", make.input("x", n, 24), make.input("w", 24, 40))
    return make("gelu", make("add", product, make.input("w2", 40)))


def batch_of_rows(make: Maker, n: int, m: int) -> str:
    product = make("matmul", make.input("x", m, n, 12), make.input("w", 12, 20))
    return make("add", product, make.input("y", m, n, 20))


def columns(make: Maker, n: int) -> str:
    return make("matmul", make.input("x", 7, 12), make.input("y", 12, n))


def columns_of_weights(make: Maker, n: int) -> str:
    return make("matmul", make.input("w", 7, 12), make.input("y", 12, n))


def sums(make: Maker, n: int) -> str:
    return make("matmul", make.input("x", 7, n), make.input("y", n, 20))


def batches(make: Maker, n: int, m: int) -> str:
    return make("matmul", make.input("x", m, 9, 8), make.input("y", m, 8, n))


def square(make: Maker, n: int) -> str:
    return make("matmul", make.input("x", 2, n, 8), make.input("y", 2, 8, n))


def of_scores(make: Maker, n: int) -> str:
    return make("matmul", make.input("x", 2, n, n), make.input("y", 2, n, 16))


def transposed(make: Maker, n: int) -> str:
    keys = make("transpose", make.input("y", 2, n, 16), perm=(0, 2, 1))
    return make("matmul", make.input("x", 2, n, 16), keys)


def one_row(make: Maker, n: int) -> str:
    return make("matmul", make.input("x", 1, n), make.input("y", n, 24))


def gemm(make: Maker, n: int) -> str:
    return make("gemm", make.input("x", n, 24), make.input("w", 40, 24), trans_b=1)


def one_row_of_keys(make: Maker, n: int) -> str:
    keys = make("transpose", make.input("y", 3, n, 16), perm=(0, 2, 1))
    return make("matmul", make.input("x", 3, 1, 16), keys)


def of_bytes(make: Maker, n: int) -> str:
    x, w = make.input("x", n, 24, dtype=DType.UINT8), make.input("w", 24, 40, dtype=DType.INT8)
    return make("matmul", x, w, accumulator="int32")


def of_halves(make: Maker, n: int) -> str:
    x, w = (
        make.input("x", n, 24, dtype=DType.BFLOAT16),
        make.input("w", 24, 40, dtype=DType.BFLOAT16),
    )
    return make("matmul", x, w, accumulator="float32")


def of_blocks(make: Maker, n: int) -> str:
    x, w = make.input("x", n, 64), make.input("w", 20, 8, dtype=DType.UINT32)
    return make("block_matmul", x, w, make.input("w2", 20, 2), bits=4, block=32)


CASES: dict[str, tuple[Build, tuple[Dimension, ...], set[str]]] = {
    "rows": (rows, (N,), {"gemm"}),
    "a batch of rows": (batch_of_rows, (N, M), {"gemm"}),
    "columns": (columns, (N,), {"gemm"}),
    "columns of weights": (columns_of_weights, (N,), {"gemm"}),
    "sums": (sums, (N,), {"gemm"}),
    "batches": (batches, (N, M), {"gemm"}),
    "square": (square, (N,), {"gemm"}),
    "of scores": (of_scores, (N,), {"gemm"}),
    "transposed": (transposed, (N,), {"gemm"}),
    "one row": (one_row, (N,), {"gemv"}),
    "gemm": (gemm, (N,), {"gemm"}),
    "one row of keys": (one_row_of_keys, (N,), {"dot", "gemv"}),
    "bytes": (of_bytes, (N,), {"gemm"}),
    "halves": (of_halves, (N,), {"gemm"}),
    "blocks": (of_blocks, (N,), {"blocks"}),
}


@pytest.mark.parametrize("case", CASES)
def test_every_size_is_computed(case: str) -> None:
    build, dimensions, algorithms = CASES[case]
    workload = dynamic_workload(build, *dimensions)
    sizes = ONE if len(dimensions) == 1 else TWO
    tried = [s for s in schedules(workload) if s.algorithm in algorithms]
    assert {s.algorithm for s in tried} == algorithms
    for schedule in tried:
        assert_right(workload, schedule, sizes, tolerance=2e-2 if case == "halves" else 3e-5)


@pytest.mark.parametrize("build", [square, of_scores, transposed, sums])
def test_a_packed_matrix_is_shared_and_open(build: Build) -> None:
    workload = dynamic_workload(build, N)
    schedule = Schedule.of(
        "gemm", tile=3, vectors=2, order="lanes-outer", unroll=2, pack=True, split=1, prefetch=0
    )
    nest = assert_right(workload, schedule, ONE)
    (panels,) = [tensor for tensor in nest.buffers if tensor.role is Role.SHARED]
    assert is_dynamic(panels.bytes)


def test_rows_of_bytes_are_multiplied_in_groups() -> None:
    workload = dynamic_workload(of_bytes, N)
    target = resolve_target("x86-64-v4")
    nest = assert_right(workload, next(untuned_schedules(workload, Mode(target))), ONE, target)
    assert any(compute.dot is not None for compute in nest.computes)


@pytest.mark.parametrize("order", ["products-inner", "products-outer"])
def test_an_odd_row_of_quadrants_is_computed_where_there_is_one(order: str) -> None:
    workload = dynamic_workload(rows, Dimension("n", 2, 40))
    schedule = Schedule.of("strassen", tile=3, vectors=2, unroll=2, order=order, prefetch=0)
    assert_right(workload, schedule, [{"n": n} for n in (2, 3, 8, 9, 21, 40)], tolerance=1e-4)
    even = dynamic_workload(rows, Dimension("n", 1, 20, multiple=2))
    nest = assert_right(even, schedule, [{"n": n} for n in (2, 6, 40)], tolerance=1e-4)
    assert not any(axis.name == "last" for axis in nest.axes)
    with pytest.raises(ScheduleError, match="does not apply"):
        lower_schedule(dynamic_workload(rows, N), schedule, Mode(TARGET))


def test_open_rows_take_the_tile_of_any_rows_and_keep_panels_in_the_cache() -> None:
    workload = dynamic_workload(rows, Dimension("n", 1, 512))
    fixed = workload.at({"n": 128})
    schedule = next(untuned_schedules(workload, Mode(TARGET)))
    of_any = next(untuned_schedules(fixed, Mode(TARGET), any_rows=True))
    assert schedule["tile"] == of_any["tile"]
    assert schedule["vectors"] == of_any["vectors"]
    assert (schedule["order"], of_any["order"]) == ("lanes-outer", "lanes-inner")


def test_an_open_sum_is_not_cut_into_parts() -> None:
    workload = dynamic_workload(sums, Dimension("n", 1, 100_000))
    schedule = Schedule.of(
        "gemm", tile=2, vectors=1, order="lanes-inner", unroll=1, pack=False, split=2, prefetch=0
    )
    with pytest.raises(ScheduleError, match="does not divide into 2 parts"):
        lower_schedule(workload, schedule, Mode(TARGET))
