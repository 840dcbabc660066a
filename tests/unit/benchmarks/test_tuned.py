"""The cost and the gain of runs of the tuner."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import tuned
from benchmarks.report import Origin
from benchmarks.tuned import TunedRun, report


def run(ratio: float | None, model: str = "m") -> TunedRun:
    return TunedRun(
        *(model, "bfloat16", 2, 60.0, 9, 4, 300, 20.0, 290, 3, "time", 2e-3, 1e-3, ratio, "tuned")
    )


def test_the_report_says_what_defaults_reach() -> None:
    text = report(Origin(), [run(0.8), run(0.95), run(1.1), run(None)])
    assert "reach 91% of the tuned speed (geometric mean), and 90 % on 2 of 3." in text
    assert "| m | bfloat16 | host | 2 | 60 | 9 | 4 | 290 | 3 | 15.0 | 2.000 | 1.000 |" in text
    assert "| 0.500 | 0.8" in text
    assert "No model was raced" in report(Origin(), [run(None)])


def test_runs_are_kept_a_line_each_until_they_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuned, "tune", lambda name, *asked: run(0.9, name))
    for name in ("mlp", "resnet50"):  # a slice each
        tuned.main(["tune", "--models", name, "--folder", str(tmp_path)])
    tuned.main(["report", "--folder", str(tmp_path), "--output", str(tmp_path / "out")])
    table = (tmp_path / "out.md").read_text()
    assert "| mlp | bfloat16 |" in table and "| resnet50 | bfloat16 |" in table
    assert (tmp_path / "out.json.gz").exists()
