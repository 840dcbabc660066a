"""What templates share: how evenly threads are busy, and pieces of pads and concatenations."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.loops.expr import Tensor
from compiler.loops.index import Axis
from compiler.ops.interpret import run_graph
from compiler.schedule.select import schedule_space
from compiler.schedule.structure import LoopSpec, edges, parallel_balance
from tests.graphs import Maker
from tests.kernels import HOST, as_workload, run_workload


@pytest.mark.parametrize(
    ("loops", "threads", "share"),
    [
        ([(6, 1)], 1, 1.0),
        ([(8, 1)], 4, 1.0),
        ([(6, 1)], 4, 6 / 8),
        ([(8, 2)], 4, 1.0),
        ([(9, 2)], 4, 5 / 8),  # the last tile is ragged
        ([(1, 1), (6, 1)], 4, 6 / 8),  # a loop of one iteration vanishes
        ([(2, 1), (64, 1)], 4, 2 / 4),  # what is inside is not split
        ([(1, 1)], 4, 1 / 4),
    ],
)
def test_threads_wait_for_those_with_one_tile_more(
    loops: list[tuple[int, int]], threads: int, share: float
) -> None:
    specs = [LoopSpec(Axis(f"a{n}", extent), step) for n, (extent, step) in enumerate(loops)]
    assert parallel_balance(specs, threads) == share


@pytest.mark.parametrize(("with_halo", "expected"), [(True, (1, 2)), (False, (2, 4))])
def test_a_halo_shortens_the_edges(with_halo: bool, expected: tuple[int, int]) -> None:
    c, i, k = Axis("c", 4), Axis("i", 9), Axis("k", 7)
    x = Tensor("x", (4, 9), halo=((0, 0), (1, 2)))
    assert edges(x[c, i + k - 2], i, with_halo=with_halo) == expected


@pytest.mark.parametrize("more", [{}, {"value": 2.5}])
def test_what_is_padded_is_zero_unless_it_is_said(more: dict[str, float]) -> None:
    g = Maker()
    graph = g.graph(g("pad", g.input("x", 3, 5), pads=(1, 0, 0, 2), **more))
    workload = as_workload(graph)
    x = np.arange(15, dtype=np.float32).reshape(3, 5)
    (expected,) = run_graph(graph, {"x": x})
    assert expected[0, 0] == more.get("value", 0.0)
    for schedule in schedule_space(workload, HOST, threads=1):
        found = run_workload(workload, schedule, HOST, [x], np.random.default_rng(0))
        np.testing.assert_array_equal(found, expected)
