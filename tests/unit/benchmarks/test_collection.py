"""`make collection`: commands under limits, and a report that lists deviations."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest

from benchmarks import collection, process_memory
from benchmarks.collection import Row, facts, run, sharded
from benchmarks.collection_models import Collected, collected, groups
from benchmarks.collection_quantised import QUANTISED
from benchmarks.real_fetch import FetchError
from benchmarks.report import read_lines, write_lines

GOOD = Row("g/m", "c", exit_code=0, verified=True, wall_seconds=30.0, peak_bytes=1 << 30)

HELD_BYTES = 150 << 20

HOLDS = f"""
import os, sys, time
if os.fork() == 0:
    held = b'x' * {HELD_BYTES}
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.01)
    os._exit(0)
os.wait()
"""
"""A process whose child holds memory until a file, the first argument, exists."""


def python(
    code: str, *arguments: str, memory_gb: float = 8.0, seconds: float = 60.0
) -> collection.Done:
    command = [sys.executable, "-c", code, *arguments]
    return run(command, dict(os.environ), memory_gb, seconds)


def test_what_the_children_hold_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, resident_bytes = tmp_path / "seen", process_memory.resident_bytes

    def resident(process: int) -> int:
        found = resident_bytes(process)
        if found > HELD_BYTES:
            seen.touch()
        return found

    monkeypatch.setattr(process_memory, "resident_bytes", resident)
    done = python(HOLDS, str(seen))
    assert done.exit_code == 0 and done.peak_bytes > HELD_BYTES


def test_a_command_has_limits_of_memory_and_time() -> None:
    done = python("print('begun'); held = b'x' * (3 << 30)", memory_gb=2.0)
    assert done.exit_code == 1 and "MemoryError" in done.said and done.printed == "begun\n"
    late = python("import time; print('begun', flush=True); time.sleep(60)", seconds=1.0)
    assert late.exit_code is None and late.seconds < 20


def test_modules_are_compiled_once_for_all_processes() -> None:
    code = "import sys; print(sys.dont_write_bytecode)"
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    assert run([sys.executable, "-c", code], environment, 1.0, 60.0).printed == "False\n"


def test_what_is_not_as_asked_is_said() -> None:
    assert GOOD.faults(20.0) == []
    bad = Row("g/m", "c", exit_code=1, wall_seconds=36.0, peak_bytes=5 << 30, traceback=True)
    assert bad.faults(20.0) == ["exit 1", "traceback", "not verified", "5.0 GiB", "36 s"]
    assert Row("g/m", "c", exit_code=None).faults(20.0) == ["killed: it went on and on"]
    large = Row("g/m", "c", exit_code=0, verified=True, peak_bytes=5 << 30, model_bytes=1 << 30)
    assert large.faults(20.0) == [], "a large model may hold more"
    slow = replace(GOOD, scalar="7.0% (conv 7.0%)", too_scalar=True)
    assert slow.faults(20.0) == ["scalar 7.0% (conv 7.0%)"]
    assert "7.0% (conv 7.0%)" in slow.cells(20.0)


def test_a_tuned_model_says_how_much_of_it_is_scalar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes: list[int | None] = [0]

    def command(words: Any, *_: Any) -> collection.Done:
        if words[3] != "--json":
            return collection.Done(0, "", "", 3.0, 7)
        printed = json.dumps({"scalar": "0.0%", "too_scalar": False})
        return collection.Done(codes[0], printed, "", 3.0, 7)

    monkeypatch.setattr(collection, "run", command)
    options = collection.common_options("", "c")
    options.add_argument("--seconds", type=float, default=20.0)
    model = Collected("g", "m", lambda folder: tmp_path / "m.onnx")
    assert collection.tried(model, options.parse_args([])).scalar == "0.0%"
    for code, said in ((1, "exit 1"), (None, "killed")):
        codes[0] = code
        faults = collection.tried(model, options.parse_args([])).faults(20.0)
        assert any(fault.startswith(f"scalar unknown: {said}") for fault in faults)


def test_facts_are_those_of_the_commands_own_json() -> None:
    report = {
        "trials": 12,
        "verified": True,
        "largest_error": 2e-7,
        "ranges": ["one program for rows=1..64"],
        "end_to_end": None,
        "phases": {"import": 0.4, "tuning": 20.0},
    }
    found = facts(json.dumps(report))
    assert (
        found["certificate"] == "verified: as a whole: largest error 2.0e-07 of the largest output"
    )
    assert (found["trials"], found["verified"], found["ratio"]) == (12, True, None)
    assert found["profile"] == "one program for rows=1..64"
    assert found["phases"] == "time: import 0.4 s, tuning 20.0 s"
    assert facts("no JSON") == {}


def test_a_run_goes_on_where_it_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(folder: Path) -> Path:
        raise FetchError("the index | is away")

    asked: list[str] = []

    def command(words: Any, *_: Any) -> collection.Done:
        asked.append(words[4])
        return collection.Done(
            1, "", "Traceback (most recent call last):\n  File x\n    f()\nE: boom\n", 3.0, 7
        )

    def listed(*_: Any) -> list[Collected]:
        found = [Collected("g", name, lambda folder: tmp_path / "m.onnx") for name in "abc"]
        return [*found, Collected("g", "d", missing)]

    monkeypatch.setattr(collection, "collected", listed)
    monkeypatch.setattr(collection, "run", command)
    monkeypatch.setattr(collection, "commit", lambda: "now")
    options = ["--results", str(tmp_path), "--folder", str(tmp_path)]
    write_lines(tmp_path / "collection.jsonl.gz", [{"identity": "g/a", "commit": "old"}])
    collection.main([*options, "--limit", "2"])
    collection.main(options)
    assert len(asked) == 3, "each once, and what another commit wrote again"
    monkeypatch.setattr(collection, "commit", lambda: "later")
    collection.main([*options, "--any-commit"])
    assert len(asked) == 3, "nor is that done again if it is asked for"
    rows = read_lines(tmp_path / "collection.jsonl.gz")
    assert [row["identity"] for row in rows] == ["g/a", "g/b", "g/c", "g/d"]
    assert rows[0]["traceback"] and rows[0]["last_line"] == "File x f() E: boom"
    table = (tmp_path / "collection.md").read_text()
    assert "4 models, 3 of them tried: 0 ended" in table
    assert "not tried: the index \\| is away" in table


def test_shards_are_equal_parts() -> None:
    models = collected(groups(), 1.0)
    assert len(models) > 250, "the lists of real models, and what needs no network"
    parts = [sharded(models, f"{number}/3") for number in (1, 2, 3)]
    assert sorted(m.identity for p in parts for m in p) == sorted(m.identity for m in models)
    assert len({model.identity for model in models}) == len(models)
    with pytest.raises(ValueError, match="1/4"):
        sharded(models, "4/3")


def test_each_quantised_model_is_made_in_another_way() -> None:
    made = {name: build() for name, build in QUANTISED.items()}
    assert len(made) == 10
    opsets = {
        onnx.helper.make_opsetid("", m.opset_import[0].version).version for m in made.values()
    }
    assert {13, 21} <= opsets
    kinds = {node.op_type for model in made.values() for node in model.graph.node}
    assert {"QLinearConv", "QuantizeLinear", "MatMulInteger", "MatMulNBits"} <= kinds
    types = {t.data_type for model in made.values() for t in model.graph.initializer}
    wanted = (onnx.TensorProto.INT4, onnx.TensorProto.UINT16, onnx.TensorProto.INT8)
    assert types.issuperset(wanted)
