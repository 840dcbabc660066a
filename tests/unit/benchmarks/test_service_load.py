"""The load on the service: one very short run against real processes."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.service_load import main


def test_a_run_reports_every_kind_of_request(tmp_path: Path) -> None:
    output = tmp_path / "load"
    short = ["--rounds", "1", "--seconds", "0.1", "--clients", "2", "--records", "30"]
    idle = ["--streams", "3", "--polls", "2", "--retained", "10", "--databases", "sqlite"]
    assert main([*short, *idle, "--output", str(output)]) == 0
    report = json.loads(output.with_suffix(".json").read_text())
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
