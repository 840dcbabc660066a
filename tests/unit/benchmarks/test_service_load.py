"""The load test of the service: one very short run against real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.report import read_data
from benchmarks.service_load import Result, main
from benchmarks.service_load_client import Answered


def test_a_run_reports_every_kind_of_request(tmp_path: Path) -> None:
    output = tmp_path / "load"
    short = ["--rounds", "1", "--seconds", "0.1", "--clients", "2", "--records", "30"]
    idle = ["--streams", "3", "--polls", "2", "--retained", "10", "--databases", "sqlite"]
    assert main([*short, *idle, "--output", str(output)]) == 0
    report = read_data(output.with_suffix(".json.gz"))
    rows = [(row["beside"], row["kind"], row["failures"]) for row in report["results"]]
    kinds = ("bare", "single", "bulk", "new bulk", "model", "claim")
    assert rows == [
        (beside, kind, 0)
        for beside in (
            "nothing",
            "3 streams, 2 polls",
            "20 commits a second",
            "20 new records a second",
        )
        for kind in kinds
    ]
    assert all(row["rate"] > 0 for row in report["results"])
    assert "| sqlite | nothing | bulk |" in output.with_suffix(".md").read_text()


def test_slow_answers_are_told_beside_those_of_the_bare_route() -> None:
    """Of each round: a delay of both does not count against the service."""

    def answered(slowest: float) -> Answered:
        return Answered(1.0, [1e-3] * 97 + [slowest] * 3, 0)

    rounds = [
        {"bare": answered(0.01), "single": answered(0.02)},
        {"bare": answered(0.1), "single": answered(0.4)},
        {"bare": answered(0.05), "single": answered(0.15)},
    ]
    found = Result.of("sqlite", "nothing", "single", rounds)
    assert (found.p99_ms, found.least_p99_ms) == (150.0, 20.0)
    assert found.p99_ratio == pytest.approx(3.0), "2, 4 and 3"
    assert Result.of("sqlite", "nothing", "bare", rounds).p99_ratio == 1.0
