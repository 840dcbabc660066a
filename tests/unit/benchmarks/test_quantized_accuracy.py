"""The loss from quantisation, in both engines, and with a stated loss."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from benchmarks import quantized_accuracy
from tilewright.service.quantize.fidelity import Fidelity


@pytest.mark.parametrize(("method", "stated"), [("static", 29.5), ("int4", 21.0)])
def test_a_small_model_by_each_method(method: str, stated: float) -> None:
    row = quantized_accuracy.measure("mlp", method, stated, 48)
    assert row.samples == 48
    for peer in (row.plain, row.fused):
        assert abs(peer.apart_db) < 0.3
        assert peer.apart_db == pytest.approx(row.sqnr_db - peer.sqnr_db)
        assert 0 <= peer.error_db < 0.2
    assert row.sqnr_db < row.stated_db == stated
    assert row.reached_db is not None and row.reached_db >= row.stated_db
    assert row.kept is not None and 0 < row.kept < row.layers
    missed = replace(row, reached_db=None)
    alone = replace(missed, stated_db=0.0, float_ms=None, quantised_ms=None)
    text = quantized_accuracy.markdown("from here", [row, missed, alone])
    assert text.count(f"| mlp | {method} | 48 | {row.sqnr_db:.2f} |") == 3
    assert text.count("not kept") == 1
    assert text.endswith("| - | - | - | - | - | - |\n")


def test_the_error_of_a_difference_is_that_over_samples() -> None:
    """Noise of a single sample is not a difference between engines."""
    random = np.random.default_rng(0)
    wanted = random.standard_normal((60, 100))

    def drawn(size: float) -> quantized_accuracy.Noise:
        came = wanted + size * random.standard_normal(wanted.shape)
        return [[Fidelity.of(w, c)] for w, c in zip(wanted, came, strict=True)]

    ours = drawn(0.1)
    same, worse = (quantized_accuracy.peer(ours, drawn(size)) for size in (0.1, 0.12))
    assert abs(same.apart_db) < 3 * same.error_db < 0.5
    assert worse.apart_db > 3 * worse.error_db
    assert quantized_accuracy.peer(ours[:1], ours[:1]).error_db == math.inf
