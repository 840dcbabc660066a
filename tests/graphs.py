"""Building small graphs in tests, and proving that a pass preserves their results."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilewright.compiler import ops
from tilewright.compiler.dtypes import DType
from tilewright.compiler.graph.ir import AttrValue, Graph, Node
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.graph.verify import verify_graph
from tilewright.compiler.ops.interpret import run_graph


class Maker:
    """Collects nodes; calling it applies an operator and returns the result's name."""

    def __init__(self, seed: int = 0) -> None:
        self.inputs: list[str] = []
        self.nodes: list[Node] = []
        self.types: dict[str, TensorType] = {}
        self.constants: dict[str, np.ndarray] = {}
        self.random = np.random.default_rng(seed)

    def input(self, name: str, *shape: int, dtype: DType = DType.FLOAT32) -> str:
        self.inputs.append(name)
        self.types[name] = TensorType(dtype, shape)
        return name

    def constant(self, name: str, value: object) -> str:
        array = np.asarray(value)
        if array.dtype == np.float64:
            array = array.astype(np.float32)
        self.types[name] = TensorType(DType(array.dtype.name), array.shape)
        self.constants[name] = array
        return name

    def weight(self, name: str, *shape: int) -> str:
        return self.constant(name, self.random.standard_normal(shape).astype(np.float32))

    def positive(self, name: str, *shape: int) -> str:
        return self.constant(name, self.random.uniform(0.5, 2.0, shape).astype(np.float32))

    def __call__(self, op: str, *inputs: str, name: str = "", **attrs: AttrValue) -> str:
        output = name or f"{op}_{sum(node.op == op for node in self.nodes)}"
        pairs = tuple(sorted(attrs.items()))
        self.types[output] = ops.get(op).infer([self.types[v] for v in inputs], pairs)
        self.nodes.append(Node(output, op, inputs, (output,), pairs))
        return output

    def graph(self, *outputs: str) -> Graph:
        made = Graph(
            "test",
            tuple(self.inputs),
            outputs,
            tuple(self.nodes),
            dict(self.types),
            dict(self.constants),
        )
        verify_graph(made)
        return made


def random_inputs(graph: Graph, seed: int = 1) -> dict[str, np.ndarray]:
    """Seeded values for every input; integers are 0 or 1, so that they index anything."""
    random = np.random.default_rng(seed)
    values = {}
    for name in graph.inputs:
        kind = graph.types[name]
        if kind.dtype.is_float:
            values[name] = random.standard_normal(kind.shape).astype(kind.dtype.numpy)
        else:
            values[name] = random.integers(0, 2, kind.shape).astype(kind.dtype.numpy)
    return values


def assert_equivalent(before: Graph, after: Graph, tolerance: float = 2e-5) -> None:
    """Both graphs are well formed and compute the same outputs from the same inputs."""
    verify_graph(after)
    assert after.inputs == before.inputs
    assert [after.types[v] for v in after.outputs] == [before.types[v] for v in before.outputs]
    values = random_inputs(before)
    expected, found = run_graph(before, values), run_graph(after, values)
    for a, b in zip(expected, found, strict=True):
        assert a.dtype == b.dtype
        scale = max(1.0, float(np.abs(a).max(initial=0)))
        with np.errstate(invalid="ignore"):  # inf / inf is NaN on both sides
            np.testing.assert_allclose(b / scale, a / scale, rtol=0, atol=tolerance)


def proven(pass_: Callable[[Graph], Graph], graph: Graph, tolerance: float = 2e-5) -> Graph:
    """The graph after a pass, after checking that it computes the same."""
    after = pass_(graph)
    assert_equivalent(graph, after, tolerance)
    again = after
    for _ in range(5):
        last, again = again, pass_(again)
        if again.nodes == last.nodes:
            return after
    raise AssertionError(f"{pass_.__name__} does not settle")


def operators(graph: Graph) -> list[str]:
    """The operators of a graph, in order."""
    return [node.op for node in graph.nodes]
