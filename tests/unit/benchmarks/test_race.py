"""The arithmetic of a race and its report; nothing is compared by time."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import numpy as np
import pytest

from benchmarks import engines, race
from benchmarks.report import RaceReport, write_report


def test_the_ratio_is_taken_round_by_round() -> None:
    # the machine is twice as slow in the second round: the ratio does not see it
    mine = race.EngineResult(rounds=[[1.0, 1.2, 1.1], [2.2, 2.2, 2.2]])
    theirs = race.EngineResult(rounds=[[2.2], [4.4]])
    assert race.round_ratio(mine, theirs) == pytest.approx(0.5)
    assert race.fastest(mine) == 1.0


def test_a_turn_warms_up_and_keeps_both_clocks() -> None:
    runs = []
    samples = engines.turn(lambda: runs.append(1) or [], seconds=0.0, least=3)
    assert len(samples["cpu"]) == len(samples["wall"]) == 3
    assert len(runs) > 3


def test_an_engine_that_fails_answers_and_goes_on() -> None:
    requests = StringIO('{"do": "dance"}\n{"do": "load", "model": "no such model"}\n')
    answers = StringIO()
    engines.serve(engines.ENGINES["onnxruntime"], requests, answers)
    first, second = [json.loads(line) for line in answers.getvalue().splitlines()]
    assert "dance" in first["error"]
    assert "no such model" in second["error"]


def test_a_race_in_two_processes() -> None:
    options = race.RaceOptions(rounds=2, turn_seconds=0.01, least_runs=2)
    results = race.race("mlp", ["onnxruntime", "untuned"], options)
    assert results["untuned"].error == ""
    assert all(len(result.rounds) == 2 for result in results.values())
    error = results["untuned"].largest_error
    assert error is not None
    assert error < 1e-4


def test_a_report_says_where_it_comes_from(tmp_path: Path) -> None:
    report = RaceReport(threads=1, rounds=1)
    report.add(
        "mlp",
        "untuned",
        version="1.0",
        load_seconds=0.1,
        rounds=[[0.001]],
        ratio=0.9,
        minimum_ratio=0.8,
        largest_error=1e-6,
    )
    report.add_failure("mlp", "openvino", "not installed")
    write_report(report, tmp_path, "race")
    text = (tmp_path / "race.md").read_text()
    assert "untuned 1.0" in text
    assert "| mlp | untuned | 1.000 | 1.000 | 0.900 | 0.800 | 1.0e-06 |" in text
    assert "failed: not installed" in text
    data = json.loads((tmp_path / "race.json").read_text())
    assert data["rows"][0]["rounds"] == [[0.001]]
    assert data["commit"] == report.commit


def test_outputs_are_compared_over_the_largest(tmp_path: Path) -> None:
    np.savez(tmp_path / "onnxruntime.npz", np.array([0.0, 10.0]))
    np.savez(tmp_path / "untuned.npz", np.array([0.1, 10.0]))
    results = {name: race.EngineResult() for name in ("onnxruntime", "untuned")}
    race.compare(results, tmp_path)
    assert results["untuned"].largest_error == pytest.approx(0.01)
