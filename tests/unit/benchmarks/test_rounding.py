"""The count of ties finds differing values, and reports them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks import rounding
from benchmarks.report import read_data


def test_what_differs_is_counted_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compiled(proto: Any, keep: bool) -> Any:
        def run(feeds: Any) -> Any:
            (wanted,) = rounding.evaluator(proto).run(None, feeds)
            wanted.flat[0] += 1 if wanted.flat[0] < 100 else -1
            return [wanted]

        return SimpleNamespace(run=run)

    monkeypatch.setattr(rounding, "compile_model", compiled)
    arguments = ["--draws", "2", "--kinds", "qlinear_matmul", "--results", str(tmp_path)]
    assert rounding.main(arguments) == 0
    (row,) = read_data(tmp_path / "rounding.json.gz")["rows"]
    assert (row["models"], row["apart"], row["most"]) == (2, 2, 1)
    assert row["share"] == pytest.approx(2 / row["elements"])
    assert "| qlinear_matmul | 2 |" in (tmp_path / "rounding.md").read_text()


def test_a_model_that_is_right_has_no_other_quanta() -> None:
    found = rounding.count("matmul_integer", 1)
    assert found.elements > 0 and found.apart == 0 and np.isclose(found.share, 0)
