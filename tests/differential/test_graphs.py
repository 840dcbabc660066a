"""Random graphs, several nodes deep, compiled and run, against onnx.reference.

A bounded number of examples, the same each time; more, and others, with
`pytest tests/differential/test_graphs.py --graphs 200 --hypothesis-seed=1`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

import tilewright
from tests.differential.graph_nodes import ELSEWHERE, OWN, drawn, generators
from tests.differential.graphs import Draw, Grower, Rejected
from tests.examples import graphs
from tilewright.compiler.frontend.catalogue import catalogue

# Up to five nodes, each of which may multiply a relative error by a few: sums of at most 1024
# float32 elements in another order are within 1024 * 2**-24 = 6e-5 of their largest, and functions
# are kept to where they change slowly. A read of a wrong element differs by a hundred times that.
TOLERANCE = 2e-3
NODES = 5
ATTEMPTS = 4
EXAMPLES = 2
"""Graphs that begin with an operator."""


def grown(draw: Draw, first: str) -> Grower:
    """A graph whose first node is of this operator, if it applies to anything."""
    g = Grower(draw)
    rank = g.integer(0, 4)
    g.input([g.pick([1, 2, 3, 4, 5, 8, 16]) for _ in range(rank)])
    g.input([1, g.pick([2, 4, 8]), g.pick([2, 5, 6]), g.pick([4, 7])])
    g.input([g.pick([1, 4, 9]), g.pick([3, 16])])
    g.input([3, 4], np.dtype(np.int64))
    g.input([3, 4], np.dtype(np.bool_))
    names = sorted(generators())
    for number in range(g.integer(1, NODES)):
        for _ in range(ATTEMPTS):
            before = len(g.nodes), len(g.values), dict(g.inputs), dict(g.constants)
            try:
                generators()[g.pick(names) if number else first](g)
                break
            except Rejected:
                # values that were added for a node that does not apply go again
                del g.nodes[before[0] :], g.values[before[1] :]
                g.inputs, g.constants = before[2], before[3]
    return g


def check(g: Grower) -> None:
    model = g.model()
    if not g.expected:
        return
    results: list[Any] = tilewright.compile_model(model).run(g.inputs)
    for (name, value), got in zip(g.expected.items(), results, strict=True):
        expected = value.array
        assert got.shape == expected.shape, name
        assert got.dtype == expected.dtype, name
        if value.exact or expected.dtype.kind != "f":
            np.testing.assert_array_equal(got, expected, err_msg=name)
            continue
        scale = max(1.0, float(np.abs(expected).max(initial=0)))
        np.testing.assert_allclose(got, expected, rtol=0, atol=TOLERANCE * scale, err_msg=name)


def test_every_operator_is_drawn_or_covered_elsewhere() -> None:
    known = {entry.op_type for entry in catalogue() if entry.domain == "ai.onnx"}
    apart = [name for names in ELSEWHERE.values() for name in names]
    assert len(set(apart)) == len(apart)
    assert set(apart) <= known
    assert set(OWN) <= set(generators())


@pytest.mark.graphs
@pytest.mark.parametrize("operator", drawn())
def test_random_graphs(operator: str, request: pytest.FixtureRequest) -> None:
    assert settings.default is not None
    stated = request.config.getoption("--graphs", default=None) is not None

    @settings(
        max_examples=graphs(request.config, EXAMPLES),
        derandomize=settings.default.derandomize and not stated,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
        print_blob=False,
    )
    @given(st.data())
    def compared(data: st.DataObject) -> None:
        g = grown(data.draw, operator)
        assume(any(node.op_type == operator for node in g.nodes))
        try:
            check(g)
        except (AssertionError, tilewright.CompilerError) as error:
            raise AssertionError(f"{error}\n{describe(g)}") from error

    compared()


def describe(g: Grower) -> str:
    """The graph in a few lines, to paste into a regression test."""
    lines = [f"{name} = input{array.shape} {array.dtype}" for name, array in g.inputs.items()]
    lines += [f"{name} = {array.tolist()}" for name, array in g.constants.items()]
    for node in g.nodes:
        attributes = {a.name: (a.i or a.f or a.s or list(a.ints)) for a in node.attribute}
        lines.append(
            f"{', '.join(node.output)} = {node.op_type}({', '.join(node.input)}) {attributes}"
        )
    return "\n".join(lines)
