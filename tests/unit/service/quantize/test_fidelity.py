"""Signal, noise and answers of a classification, and the measures of a loss."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from tilewright.service.quantize.errors import QuantizeError
from tilewright.service.quantize.fidelity import (
    Fidelity,
    OutputFidelity,
    TopOne,
    added,
    noise_ratio,
)
from tilewright.service.quantize.limit import (
    LeastSqnr,
    MostChanged,
    check_limit,
    keeps,
    parse_limit,
)

ONES = np.ones((2, 50), np.float32)


def test_a_hundredth_of_the_power_is_20_db() -> None:
    near = Fidelity.of(ONES, ONES + np.float32(0.1))
    assert near.sqnr_db == pytest.approx(20, abs=1e-5)
    assert near.noise_ratio == pytest.approx(0.01)
    assert near.cosine == pytest.approx(1)
    assert Fidelity.of(ONES, -ONES).cosine == pytest.approx(-1)


def test_equal_arrays_are_exact_and_json_has_no_infinity() -> None:
    for array in (ONES, np.zeros((0,), np.float32), 0 * ONES):
        same = Fidelity.of(array, array)
        assert (same.sqnr_db, same.cosine, same.noise_ratio) == (math.inf, 1.0, 0.0)
    assert Fidelity.of(ONES, ONES).to_json() == {"sqnr_db": None, "cosine": 1.0, "exact": True}


def test_noise_without_a_signal_is_all_noise() -> None:
    lost = Fidelity.of(0 * ONES, ONES)
    assert lost.sqnr_db == -math.inf and math.isnan(lost.cosine)
    assert json.loads(json.dumps(lost.to_json(), allow_nan=False))["exact"] is False


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_counts_only_where_it_differs(special: float) -> None:
    first, second = ONES.copy(), ONES.copy()
    first[0, 0] = special
    assert Fidelity.of(first, second).sqnr_db == -math.inf
    assert (Fidelity.of(first, second) + Fidelity.of(ONES, ONES)).sqnr_db == -math.inf
    second[0, 0] = special
    assert Fidelity.of(first, second).sqnr_db == math.inf


def test_sums_over_samples_are_those_of_all_elements() -> None:
    random = np.random.default_rng(0)
    first, second = (random.standard_normal((4, 9)).astype(np.float32) for _ in range(2))
    parts = Fidelity.of(first[:1], second[:1]) + Fidelity.of(first[1:], second[1:])
    whole = Fidelity.of(first, second)
    assert parts.sqnr_db == pytest.approx(whole.sqnr_db)
    assert parts.cosine == pytest.approx(whole.cosine)


def test_shapes_must_agree() -> None:
    with pytest.raises(ValueError, match="differ"):
        Fidelity.of(ONES, ONES[:1])


@pytest.mark.parametrize(
    ("shape", "is_one"),
    [((4, 3), True), ((4, 3, 1, 1), True), ((4, 1), False), ((3,), False), ((4, 3, 2), False)],
)
def test_what_is_a_classification(shape: tuple[int, ...], is_one: bool) -> None:
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    assert (TopOne.of(array, array) == TopOne(4, 4)) is is_one
    assert TopOne.of(array.astype(np.int64), array) is None


def test_answers_that_changed_are_counted() -> None:
    first = np.eye(4, dtype=np.float32)
    top = TopOne.of(first, first[[0, 1, 2, 2]])
    assert top == TopOne(4, 3) and top.changed == 0.25
    assert (top + TopOne(4, 4)).changed == 0.125


def test_rows_that_became_nan_have_another_answer() -> None:
    """The largest entry of NaNs is at 0."""
    first = np.eye(3, dtype=np.float32)
    second = first.copy()
    second[0] = np.nan
    assert TopOne.of(first, second) == TopOne(3, 2) == TopOne.of(second, first)
    second = first.copy()
    second[1, 1] = np.nan
    assert TopOne.of(first, second) == TopOne(3, 2)
    assert TopOne.of(second, second) == TopOne(3, 3), "nothing became of them by quantising"


def test_rows_with_several_largest_expected_entries_have_no_answer() -> None:
    """A tie of the quantised values is an answer: the first one, which `argmax` returns."""
    first = np.eye(4, dtype=np.float32)
    first[1] = 0.5
    first[2, 3] = 1.0
    assert TopOne.of(first, first) == TopOne(2, 2, tied=2)
    assert TopOne.of(first, 0 * first) == TopOne(2, 1, tied=2)
    assert TopOne.of(0 * first, first) == TopOne(0, 0, tied=4)
    assert TopOne(2, 1, 2) + TopOne(3, 3, 1) == TopOne(5, 4, 3)
    assert output(20, TopOne(2, 1, 2)).to_json()["top_one"] == {"rows": 2, "same": 1, "tied": 2}


def test_a_classification_without_answers_has_no_share() -> None:
    with pytest.raises(QuantizeError, match="no row of 'y' has a single largest element"):
        check_limit(MostChanged(0.25), (output(1, TopOne(0, 0, tied=4)),))
    assert check_limit(MostChanged(0.25), (output(1, TopOne(4, 4, tied=4)),)) == ()
    both = (output(1, TopOne(4, 4)), output(1, TopOne(0, 0, tied=4), "z"))
    (note,) = check_limit(MostChanged(0.25), both)
    assert note.startswith("25 % limits no loss of 'z': no row has a single largest element")


def output(sqnr_db: float, top: TopOne | None = None, name: str = "y") -> OutputFidelity:
    return OutputFidelity(name, Fidelity(1.0, 10 ** (-sqnr_db / 10)), top)


def test_outputs_are_added_one_by_one() -> None:
    both = added((output(20, TopOne(1, 1)),), (output(10, TopOne(1, 0)),))
    assert both[0].top_one == TopOne(2, 1)
    assert noise_ratio((output(20), output(10))) == pytest.approx(0.1)
    assert added((output(20),), (output(20, TopOne(1, 1)),))[0].top_one is None


def test_limits_are_read_with_their_units() -> None:
    assert parse_limit("30dB") == LeastSqnr(30) == parse_limit(" 30 db")
    assert parse_limit("1%") == MostChanged(0.01)
    assert str(parse_limit("1%")) == "1 %" and str(parse_limit("30dB")) == "30 dB"


@pytest.mark.parametrize("text", ["", "30", "dB", "nandB", "infdB", "-1%", "100%", "x%", "30dB%"])
def test_other_limits_are_refused(text: str) -> None:
    with pytest.raises(QuantizeError, match="expected decibels"):
        parse_limit(text)


def test_every_output_keeps_the_limit() -> None:
    assert keeps(LeastSqnr(10), (output(20), output(10.001)))
    assert not keeps(LeastSqnr(10), (output(20), output(9.9)))
    assert keeps(MostChanged(0.25), (output(1, TopOne(4, 3)), output(1)))
    assert not keeps(MostChanged(0.2), (output(1, TopOne(4, 3)),))


@pytest.mark.parametrize("rows", [100, 200, 1000])
def test_a_share_may_be_lost_whole(rows: int) -> None:
    """Shares that are not sums of powers of 2 come out the same however they are written."""
    for changed in range(rows):
        limit = parse_limit(f"{100 * changed / rows:.10g}%")
        assert keeps(limit, (output(1, TopOne(rows, rows - changed)),)), changed
        assert not keeps(limit, (output(1, TopOne(rows, rows - changed - 1)),)), changed


def test_limits_that_samples_cannot_show() -> None:
    assert check_limit(LeastSqnr(10), (output(1),)) == ()
    assert check_limit(MostChanged(0), (output(1, TopOne(4, 4)),)) == ()
    assert check_limit(MostChanged(0.25), (output(1, TopOne(4, 4)),)) == ()
    (note,) = check_limit(MostChanged(0.01), (output(1, TopOne(4, 4)),))
    assert "100 rows would show it" in note
    with pytest.raises(QuantizeError, match="no output is a classification"):
        check_limit(MostChanged(0.01), (output(1),))


def test_outputs_that_a_share_does_not_limit_are_named() -> None:
    lost = output(-math.inf, name="boxes")
    assert lost.fidelity.sqnr_db == -math.inf
    (note,) = check_limit(MostChanged(0.25), (output(1, TopOne(4, 4)), lost))
    assert "25 % limits no loss of 'boxes'" in note
    assert check_limit(LeastSqnr(10), (output(1, TopOne(4, 4)), lost)) == ()
