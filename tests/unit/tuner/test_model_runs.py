"""Whole models: random inputs, errors of outputs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import OutOfMemoryError
from tilewright.compiler.runtime.program import Port
from tilewright.tuner.measure.model_runs import draw_inputs, input_spec, largest_error


def test_inputs_are_of_their_names_and_seeds() -> None:
    x, y = Port("x", DType.FLOAT32, (2, 3)), Port("y", DType.INT64, (400,))
    drawn, turned = draw_inputs([x, y], 3), draw_inputs([y, x], 3)
    assert list(drawn) == ["x", "y"]
    for name, array in drawn.items():
        np.testing.assert_array_equal(array, turned[name])
    assert drawn["x"].dtype == np.float32 and set(drawn["y"]) == {0, 1}
    assert not np.array_equal(drawn["x"], draw_inputs([x], 4)["x"])
    other = input_spec("z", (2, 3), DType.FLOAT32, 3).draw()
    assert not np.array_equal(drawn["x"], other)


def test_bfloat16_is_drawn_as_bits() -> None:
    drawn = input_spec("x", (1000,), DType.BFLOAT16, 0).draw()
    assert drawn.dtype == np.uint16
    values = (drawn.astype(np.uint32) << 16).view(np.float32)
    assert 0.8 < values.std() < 1.2


def test_inputs_that_do_not_fit_are_refused() -> None:
    with pytest.raises(OutOfMemoryError, match="for arrays of the inputs"):
        draw_inputs([Port("x", DType.FLOAT64, (1 << 20, 1 << 20))])


@pytest.mark.parametrize(
    ("actual", "expected", "error"),
    [
        ([1.0, 2.0], [1.0, 4.0], 0.5),
        ([0.5], [0.0], 0.5),
        ([np.nan, 4.0], [np.nan, 4.0], 0.0),
        ([np.nan], [1.0], math.inf),
        ([1.0], [np.inf], math.inf),
        ([-np.inf], [np.inf], math.inf),
        ([1.0, 2.0], [1.0], math.inf),
        ([], [], 0.0),
    ],
)
def test_errors_are_relative_to_the_largest_value(
    actual: list[float], expected: list[float], error: float
) -> None:
    found = largest_error(np.array(actual, np.float32), np.array(expected, np.float32))
    assert found == error or (math.isinf(error) and found > 1e30)
