"""Running whole models: drawn inputs, errors of outputs, races in pairs."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import OutOfMemoryError
from tilewright.compiler.runtime.packing import to_bfloat16
from tilewright.compiler.runtime.program import Port
from tilewright.tuner.measure import model_runs
from tilewright.tuner.measure.model_runs import (
    Run,
    compare_runs,
    draw_inputs,
    fastest_seconds,
    input_spec,
    largest_error,
    output_error,
    race,
)
from tilewright.tuner.measure.statistics import Outcome


def spin(rounds: int) -> Run:
    def run() -> None:
        total = 0
        for number in range(rounds):
            total += number

    return run


def test_programs_are_compared_in_pairs() -> None:
    found = compare_runs(spin(2000), spin(40_000), 1)
    assert found.outcome is Outcome.FASTER and found.ratio < 0.5
    assert model_runs.LEAST_PAIRS <= len(found.ratios) <= model_runs.PAIRS
    lost = compare_runs(spin(40_000), spin(2000), 1)
    assert lost.outcome is Outcome.SLOWER and lost.ratio > 2
    assert len(lost.ratios) < model_runs.LEAST_PAIRS


def test_each_challenger_is_made_just_before_its_race() -> None:
    made: list[int] = []

    def challenger(number: int) -> Callable[[], Run]:
        def make() -> Run:
            made.append(number)
            return spin(100)

        return make

    rounds: list[int] = []
    found = race(spin(100), map(challenger, range(2)), 1, lambda: rounds.append(len(made)))
    assert len(found.comparisons) == 2 and {*rounds} == {1, 2}
    assert found.incumbent_seconds > 0


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


@pytest.mark.parametrize(
    ("actual", "expected", "error"),
    [
        ([1.0, -0.0], [1.0, 0.0], 0.0),
        ([1.0, -(2.0**-20)], [1.0, 2.0**-20], 2.0**-19),
        ([0.5, 4.0], [1.0, 4.0], 0.125),
        ([np.nan, 1.0], [np.nan, 1.0], 0.0),
        ([1.0], [np.inf], math.inf),
    ],
)
def test_bfloat16_is_compared_by_its_numbers(
    actual: list[float], expected: list[float], error: float
) -> None:
    """Bits of small numbers of either sign are far apart, those of a half and one are near."""
    port = Port("y", DType.BFLOAT16, (len(actual),))
    assert output_error(port, *(to_bfloat16(np.array(a)) for a in (actual, expected))) == error
    plain = Port("y", DType.FLOAT32, (len(actual),))
    assert output_error(plain, *(np.array(a, np.float32) for a in (actual, expected))) == error


def test_a_slow_program_is_not_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[int] = []
    fastest_seconds(lambda: runs.append(1), threads=1)
    assert len(runs) == model_runs.RUNS
    monkeypatch.setattr(model_runs, "RACE_SECONDS", 0.0)
    runs.clear()
    fastest_seconds(lambda: runs.append(1), threads=1)
    assert len(runs) == 1
