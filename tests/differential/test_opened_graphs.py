"""Random graphs with some dimensions of their inputs open: a job plans each that has sizes."""

from __future__ import annotations

import random
import warnings

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.differential.graph_nodes import drawn
from tests.differential.test_graphs import describe, grown
from tests.examples import graphs
from tests.opened import dims_of, dynamic_dimensions, refusal
from tilewright.compiler.errors import ModelWarning

EXAMPLES = 6


@pytest.mark.graphs
@pytest.mark.parametrize("operator", drawn())
def test_a_job_plans_graphs_with_open_dimensions(
    operator: str, request: pytest.FixtureRequest
) -> None:
    assert settings.default is not None

    @settings(
        max_examples=graphs(request.config, EXAMPLES),
        derandomize=settings.default.derandomize,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
        print_blob=False,
    )
    @given(st.data(), st.integers(0, 1 << 30))
    def planned(data: st.DataObject, seed: int) -> None:
        g = grown(data.draw, operator)
        model = g.model()
        if not g.expected:
            return
        dynamic_dimensions(model, random.Random(seed))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ModelWarning)
            found = refusal(model, g.inputs)
        shapes = [(port.name, dims_of(port)) for port in model.graph.input]
        assert not found, f"{found}\n{shapes}\n{describe(g)}"

    planned()
