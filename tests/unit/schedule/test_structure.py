"""Common parts of templates: edges, and pieces of pads and concatenations."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graphs import Maker
from tests.kernels import HOST, as_workload, run_workload
from tilewright.compiler.loops.expr import Tensor
from tilewright.compiler.loops.index import Axis
from tilewright.compiler.mode import Mode
from tilewright.compiler.ops.interpret import run_graph
from tilewright.compiler.schedule.select import schedule_space
from tilewright.compiler.schedule.structure import edges


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
    for schedule in schedule_space(workload, Mode(HOST)):
        found = run_workload(workload, schedule, HOST, [x], np.random.default_rng(0))
        np.testing.assert_array_equal(found, expected)
