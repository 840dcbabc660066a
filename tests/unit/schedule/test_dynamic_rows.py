"""Maps, rows and scalar loops over open extents mean their workloads at every size."""

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
from tilewright.compiler.loops.layout import blocked
from tilewright.compiler.mode import Mode
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.schedule.select import lower_schedule, untuned_schedules
from tilewright.compiler.sizes import Dimension


def gelu(make: Maker, n: int) -> str:
    x = make.input("x", 3, n, 20)
    return make("gelu", make("add", x, make.input("w", 20)))


def gelu_of_all(make: Maker, n: int, m: int) -> str:
    return make("gelu", make.input("x", n, m))


def columns(make: Maker, n: int) -> str:
    x = make.input("x", 5, n)
    return make("add", x, make.input("y", 5, 1))


def transposed(make: Maker, n: int, m: int) -> str:
    return make("transpose", make.input("x", 2, n, m), perm=(0, 2, 1))


def heads(make: Maker, n: int) -> str:
    x = make("reshape", make.input("x", 2, n, 24), shape=(2, n, 3, 8))
    return make("relu", make("transpose", x, perm=(0, 2, 1, 3)))


MAPS: dict[str, tuple[Build, tuple[Dimension, ...]]] = {
    "rows": (gelu, (N,)),
    "every extent": (gelu_of_all, (N, M)),
    "columns": (columns, (N,)),
    "transposed": (transposed, (N, M)),
    "heads": (heads, (N,)),
}


def softmax(make: Maker, n: int) -> str:
    return make("softmax", make.input("x", n, 37), axis=1)


def softmax_of_short(make: Maker, n: int) -> str:
    return make("softmax", make.input("x", n, 3), axis=1)


def softmax_of_any(make: Maker, n: int, m: int) -> str:
    return make("softmax", make.input("x", m, n), axis=1)


def softmax_of_columns(make: Maker, n: int, m: int) -> str:
    return make("softmax", make.input("x", 2, n, m), axis=1)


def norm(make: Maker, n: int) -> str:
    x = make("add", make.input("x", 2, n, 48), make.input("y", 2, n, 48))
    return make("layer_norm", x, make.input("w", 48), make.input("w2", 48), axis=2)


def largest(make: Maker, n: int, m: int) -> str:
    return make("reduce_max", make.input("x", m, n, 5), axes=(1,), keepdims=0)


def total(make: Maker, n: int) -> str:
    return make("reduce_sum", make.input("x", 3, n), axes=(1,), keepdims=1)


ROWS: dict[str, tuple[Build, tuple[Dimension, ...]]] = {
    "softmax of open rows": (softmax, (N,)),
    "softmax of short rows": (softmax_of_short, (N,)),
    "softmax of an open length": (softmax_of_any, (N, M)),
    "softmax of columns": (softmax_of_columns, (N, M)),
    "layer norm": (norm, (N,)),
    "the largest of an open length": (largest, (N, M)),
    "the sum of an open length": (total, (N,)),
}


@pytest.mark.parametrize("case", [*MAPS, *ROWS])
def test_every_size_is_computed(case: str) -> None:
    build, dimensions = (MAPS | ROWS)[case]
    workload = dynamic_workload(build, *dimensions)
    algorithm = "map" if case in MAPS else "row"
    tried = [s for s in schedules(workload) if s.algorithm == algorithm]
    sizes = ONE if len(dimensions) == 1 else TWO
    for schedule in tried:
        assert_right(workload, schedule, sizes)
    assert_right(workload, Schedule.of("scalar"), sizes[:4])
    assert tried


def test_channels_in_blocks_stay_in_their_blocks() -> None:
    def activation(make: Maker, n: int, m: int) -> str:
        return make("relu", make.input("x", n, 16, m, 3))

    halo = ((0, 0), (0, 0), (1, 1), (1, 1))
    places = {"x": (blocked(4, 1, 8), ()), "relu_0": (blocked(4, 1, 8), halo)}
    workload = dynamic_workload(activation, N, M, places=places)
    for schedule in schedules(workload):
        assert_right(workload, schedule, TWO)


def test_a_workload_without_open_sizes_is_lowered_as_ever() -> None:
    workload = dynamic_workload(softmax, N)
    fixed = workload.at({"n": 6})
    first = next(untuned_schedules(fixed, Mode(TARGET)))
    assert next(untuned_schedules(workload, Mode(TARGET))) == first
    kernel = lower_schedule(workload, first, Mode(TARGET))
    assert kernel.nest.at({"n": 6}) == lower_schedule(fixed, first, Mode(TARGET)).nest
