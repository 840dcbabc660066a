"""The README's picture shows the numbers of the committed race."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.report import write_data
from benchmarks.speedups import PICTURE, RACE, RESULTS, draw, label, speedups


def race(folder: Path) -> Path:
    ratios = [("a", "onnxruntime", 1.0), ("a", "openvino", 0.9), ("a", "untuned", 0.5)]
    ratios += [("b", "onnxruntime", 1.0), ("b", "untuned", 0.25)]
    rows = [{"model": m, "engine": e, "ratio": r, "error": ""} for m, e, r in ratios]
    rows.append({"model": "b", "engine": "openvino", "ratio": 0.0, "error": "it failed"})
    path = folder / "race.json.gz"
    write_data(path, json.dumps({"rows": rows}))
    return path


def test_a_speedup_is_the_peers_time_by_ours(tmp_path: Path) -> None:
    found = speedups(race(tmp_path))
    assert list(found) == ["b", "a"]
    assert found["b"] == {"onnxruntime": 4.0}
    assert found["a"] == {"onnxruntime": 2.0, "openvino": pytest.approx(1.8)}


def test_the_committed_picture_shows_the_committed_race() -> None:
    picture = PICTURE.read_text()
    for model, of in speedups(RESULTS / f"{RACE}.json.gz").items():
        assert f">{model}<" in picture
        for speedup in of.values():
            assert f">{label(speedup)}<" in picture


def test_a_picture_has_a_label_for_each_bar(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    draw(speedups(race(tmp_path)), tmp_path / "made.svg")
    picture = (tmp_path / "made.svg").read_text()
    assert all(f">{text}<" in picture for text in ("a", "b", "4.00x", "2.00x", "1.80x"))
