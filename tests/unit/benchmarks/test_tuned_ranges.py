"""The statement about times in the comparison of tuned ranges with tuned sizes."""

from __future__ import annotations

import math

from benchmarks.report import Origin
from benchmarks.tuned_ranges import CASES, RangeResult, SizeResult, report


def test_the_gain_of_a_range_is_a_share_of_that_of_its_sizes() -> None:
    twice = SizeResult(7, 4.0, 2.0, 8.0, 2.0)
    same = SizeResult(384, 3.0, 3.0, 1.0, 1.0)
    assert (twice.range_gain, twice.own_gain) == (2.0, 4.0)
    result = RangeResult("model", (twice, same))
    assert math.isclose(result.range_gain, math.sqrt(2)) and math.isclose(result.own_gain, 2.0)
    assert math.isclose(result.share, 0.5), "of logarithms: a gain of 1 is none"
    text = report(Origin(commit="c"), [result])
    assert "the range gains 1.414, sizes gain 2.000 (geometric means): 0.50 of it" in text
    assert (
        "| model | 7 | 4000.000 | 2000.000 | 2.000 | 8000.000 | 2000.000 | 4.000 | 1.000 |" in text
    )


def test_no_size_is_one_that_the_range_is_measured_at() -> None:
    from tilewright.compiler.sizes.ranges import parse_range
    from tilewright.tuner.random_sizes import sample_sizes

    for case in CASES.values():
        drawn = sample_sizes([parse_range(case.dimension, case.range)])
        assert not {size for each in drawn for _, size in each.sizes} & set(case.sizes)
