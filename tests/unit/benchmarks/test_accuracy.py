"""Errors against float64: the comparisons, and the tables."""

from __future__ import annotations

import pytest

from benchmarks import accuracy
from tilewright.compiler.graph.text import parse_graph
from tilewright.compiler.plan.workload import Workload, make_workload
from tilewright.compiler.targets.host import host_target

MATMUL = (
    'graph "product"\ninput a: float32[3,64]\ninput b: float32[64,5]\n'
    "product: float32[3,5] = matmul(a, b)\noutput product\n"
)


@pytest.fixture
def workload() -> Workload:
    graph = parse_graph(MATMUL)
    return make_workload(graph, [node.name for node in graph.nodes])


def test_a_product_rounds_but_little(workload: Workload) -> None:
    # 64 products in float32 cannot be exact; sqrt(64) roundings of 2**-24 are 5e-7
    assert 0.0 < accuracy.kernel_error(workload) < 2e-6


def test_the_worst_kernel_of_an_algorithm_is_kept() -> None:
    graph = parse_graph(MATMUL)
    (found,) = accuracy.kernel_errors([graph, graph], host_target())
    assert found.kernels == 1
    assert found.worst.startswith("matmul")
    assert found.error > 0.0


def test_a_model_is_compared_in_both_modes() -> None:
    fast, strict = accuracy.model_errors("mlp")
    assert (fast.numerics, strict.numerics) == ("fast", "strict")
    assert fast.onnxruntime == strict.onnxruntime > 0.0
    text = accuracy.markdown("today.", [fast, strict], [])
    assert f"| mlp | strict | {strict.error:.1e} |" in text
