"""Rows of an earlier count that stay, in their places."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import counted
from benchmarks.counted import PEER, Count, kept, table, write
from benchmarks.report import Origin

ROWS = [
    Count("minilm-l6-128", "neoverse-n1", "ours", 8, 1, 1, 1, 1e-6, "old"),
    Count("mobilenetv2", "riscv64", "ours", 6, 1, 1, 1, None, "new"),
    Count("mobilenetv2", "neoverse-n1", "ours", 4, 1, 1, 1, 1e-6, "old"),
    Count("mobilenetv2", "neoverse-n1", PEER, 5, 1, 1, 1, None, "old"),
]


def test_what_is_not_counted_again_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counted, "RESULTS_FOLDER", tmp_path)
    write(Origin(), ROWS, "some")
    found = kept("some", ["mobilenetv2", "resnet50"], ["riscv64"])
    assert sorted(found, key=repr) == sorted((r for r in ROWS if r.commit == "old"), key=repr)
    assert "| mobilenetv2 | riscv64 | ours |" in (tmp_path / "some.md").read_text()


def test_rows_are_in_the_order_of_models_and_machines() -> None:
    """RISC-V next to our own code for AArch64; a model that was not counted there has no ratio."""
    _, rows = table([*ROWS, Count("resnet50", "riscv64", "ours", 6, 1, 1, 1)])
    assert [row[:3] for row in rows[:3]] == [
        ["mobilenetv2", "neoverse-n1", PEER],
        ["mobilenetv2", "neoverse-n1", "ours"],
        ["mobilenetv2", "riscv64", "ours"],
    ]
    assert [row[7] for row in rows] == ["1.000", "0.800", "1.500", "", ""]
