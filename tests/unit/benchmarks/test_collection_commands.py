"""`make collection-commands`: each command on a model, and a table of the failures."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from benchmarks import collection_commands
from benchmarks.collection import Done
from benchmarks.collection_commands import (
    COMMANDS,
    FORTY,
    CommandRow,
    Place,
    serving,
    write_inputs,
)
from benchmarks.collection_models import Collected, collected, groups
from benchmarks.real_fetch import FetchError
from benchmarks.report import read_lines

GOOD = CommandRow("g/m", "run", "c", exit_code=0, wall_seconds=9.0, peak_bytes=1 << 30)


def written_model(path: Path) -> Path:
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Relu", ["x"], ["y"])],
        "small",
        [value("x", onnx.TensorProto.FLOAT, ["rows", 3])],
        [value("y", onnx.TensorProto.FLOAT, ["rows", 3])],
    )
    opset = onnx.helper.make_opsetid("", 17)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=9), path)
    return path


def test_what_is_not_as_asked_is_said() -> None:
    assert GOOD.faults() == []
    bad = CommandRow(
        *("g/m", "run", "c"),
        exit_code=1,
        wall_seconds=61.0,
        cpu_seconds=20.0,
        peak_bytes=5 << 30,
        traceback=True,
    )
    assert bad.faults() == ["exit 1", "traceback", "5.0 GiB", "61 s (20 s of a core)"]
    assert CommandRow("g/m", "run", "c").faults() == ["killed: it went on and on"]
    assert CommandRow("g/m", "run", "c", "no index").faults() == ["not tried: no index"]


def test_there_are_forty_models_of_each_group_without_a_network() -> None:
    known = collected(groups(), 1.0)
    names = {model.name for model in known}
    assert len(set(FORTY)) == 40 and names.issuperset(FORTY)


def test_inputs_are_those_that_came_with_a_model_or_drawn(tmp_path: Path) -> None:
    model, target = written_model(tmp_path / "model.onnx"), tmp_path / "inputs.npz"
    write_inputs(model, target)
    assert np.load(target)["x"].shape == (1, 3)
    feeds: dict[str, Any] = {"0/x": np.ones((5, 3)), "1/x": np.ones((2, 3))}
    np.savez(tmp_path / "feeds.npz", **feeds)
    write_inputs(model, target)
    assert np.load(target)["x"].shape == (5, 3)


def test_each_command_runs_once_and_what_a_failed_one_makes_is_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(folder: Path) -> Path:
        raise FetchError("the index | is away")

    asked: list[Sequence[str]] = []

    def command(words: Sequence[str], *_: Any) -> Done:
        asked.append(words[3:])
        if words[3] == "compile":
            said = f"Traceback (most recent call last)\nE: {words[4]} is | bad"
            return Done(1, "", said, 3.0, 7)
        return Done(0, '{"run": "tune-1"}', "", 3.0, 7, 1.5)

    @contextmanager
    def service(folder: Path, *_: float) -> Iterator[Place]:
        yield Place(folder, "http://127.0.0.1:1", os.getpid(), 8.0, 60.0)

    file = written_model(tmp_path / "m.onnx")
    found = [Collected("g", "a", lambda folder: file), Collected("g", "b", missing)]
    monkeypatch.setattr(collection_commands, "chosen_models", lambda options: found)
    monkeypatch.setattr(collection_commands, "serving", service)
    monkeypatch.setattr(collection_commands, "run", command)
    options = ["--results", str(tmp_path), "--name", "c", "--only", "a", "b"]
    collection_commands.main([*options, "--limit", "1"])
    collection_commands.main(options)
    lines = read_lines(tmp_path / "c.jsonl.gz")
    rows = {(row["identity"], row["command"]): row for row in lines}
    assert len(rows) == len(lines) == 2 * len(COMMANDS)
    assert rows["g/a", "run DIR"]["problem"] == "`compile` failed"
    assert rows["g/a", "compile"]["last_line"] == "E: m.onnx is | bad", "no path of a machine"
    assert rows["g/a", "run"]["cpu_seconds"] == 1.5
    assert ["job", "replay", "tune-1"] in asked
    assert sum(words[0] == "run" for words in asked) == 1, "the artifact is missing"
    table = (tmp_path / "c.md").read_text()
    assert "not tried: the index \\| is away" in table
    assert "| compile | 0 of 1 | 3 | 3 | 0 | 0.00 |" in table
    assert "- g/a, `compile`: E: m.onnx is \\| bad" in table


def test_a_wanted_command_has_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        collection_commands, "run", lambda *_: Done(0, '{"run": "tune-1"}', "", 1.0, 1)
    )
    file = written_model(tmp_path / "m.onnx")
    place = Place(tmp_path, "http://127.0.0.1:1", os.getpid(), 8.0, 60.0)
    model = Collected("g", "a", lambda folder: file)
    rows = collection_commands.tried(model, place, tmp_path, ["diff"])
    assert [row.command for row in rows] == ["compile", "tune", "diff"]


def test_commands_run_beside_a_service(tmp_path: Path) -> None:
    file = written_model(tmp_path / "m.onnx")
    model = Collected("g", "a", lambda folder: file)
    with serving(tmp_path, 8.0, 120.0) as place:
        rows = list(
            collection_commands.tried(model, place, tmp_path, ["show graph", "record find"])
        )
    assert [(row.command, row.exit_code) for row in rows] == [("show graph", 0), ("record find", 0)]
    looked = rows[-1]
    assert looked.peak_bytes > rows[0].peak_bytes, "the service counts"
