"""Forms that were refused once, compiled: one of each kind."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright
from tests.unit.ops.edge_cases import (
    BLOCKS,
    CERTAIN,
    EMPTY,
    GRIDS,
    NO_STEPS,
    RECURRENT,
    SAMPLED,
    SEEDED,
    TRAINED,
)
from tests.unit.ops.rule_case import Case

KINDS = [
    *(EMPTY[0], EMPTY[6], EMPTY[7], EMPTY[-1]),
    *CERTAIN,
    *(kind[0] for kind in (BLOCKS, GRIDS, NO_STEPS, RECURRENT, SEEDED, TRAINED)),
    *(SAMPLED[0], SAMPLED[-2]),
]


@pytest.mark.parametrize("case", KINDS, ids=lambda case: case.name)
def test_a_compiled_form_agrees_with_onnx_runtime(case: Case) -> None:
    model, feeds = case.model()
    expected = case.expected(model, feeds)
    inputs = {name: np.asarray(array) for name, array in feeds.items()}
    found = tilewright.compile_model(model).run(inputs)
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.shape == theirs.shape
        np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=max(case.atol, 1e-5))
