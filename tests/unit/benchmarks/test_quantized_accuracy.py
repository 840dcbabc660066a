"""What quantising loses, in both engines, and with a stated loss."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks import quantized_accuracy


@pytest.mark.parametrize(("method", "stated"), [("static", 29.5), ("int4", 21.0)])
def test_a_small_model_by_each_method(method: str, stated: float) -> None:
    row = quantized_accuracy.measure("mlp", method, stated)
    assert abs(row.apart_db) < 0.3
    assert row.sqnr_db < row.stated_db == stated
    assert row.reached_db is not None and row.reached_db >= row.stated_db
    assert row.kept is not None and 0 < row.kept < row.layers
    text = quantized_accuracy.markdown("from here", [row, replace(row, reached_db=None)])
    assert f"| mlp | {method} | {row.sqnr_db:.2f} |" in text
    assert text.count("not kept") == 1
