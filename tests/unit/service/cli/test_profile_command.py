"""`tilewright show time`: a table, JSON, and a trace that adds up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.runtime.dynamic_programs import dynamic_program
from tests.unit.service.command_line import data_folder, model, run
from tilewright.compiler.runtime.program import KernelCall
from tilewright.service.jobs.report.profiling import (
    ModelProfile,
    ProfileStep,
    StepKind,
    steps_of,
    traces,
)

__all__ = ["data_folder", "model"]  # fixtures

STEPS = (
    ProfileStep(1, StepKind.KERNEL, "conv [red]", 3e-6),
    ProfileStep(2, StepKind.COPY, "copy of 8 bytes", 1e-6),
    ProfileStep(3, StepKind.KERNEL, "conv [red]", 2e-6),
)
PROFILE = ModelProfile("net", "znver5", "a CPU", 2, STEPS)


def test_what_runs_often_is_one_row_and_the_dearest_comes_first() -> None:
    rows = [(name, kind, count) for name, kind, count, _ in PROFILE.by_name()]
    assert rows == [("conv [red]", StepKind.KERNEL, 2), ("copy of 8 bytes", StepKind.COPY, 1)]
    assert PROFILE.by_name()[0][3] == pytest.approx(5e-6)
    assert PROFILE.to_json()["seconds"] == pytest.approx(6e-6)


def test_a_trace_lays_the_steps_end_to_end_in_microseconds() -> None:
    made = json.loads(json.dumps(traces([PROFILE])))
    spans = [event for event in made["traceEvents"] if event["ph"] == "X"]
    assert [event["ts"] for event in spans] == pytest.approx([0.0, 3.0, 4.0])
    assert [event["dur"] for event in spans] == pytest.approx([3.0, 1.0, 2.0])
    assert [event["args"]["instruction"] for event in spans] == [1, 2, 3]
    names = {e["name"]: e["args"]["name"] for e in made["traceEvents"] if e["ph"] == "M"}
    assert names == {"process_name": "net", "thread_name": "znver5, 2 threads"}


def test_instructions_are_named_by_what_they_do() -> None:
    program = dynamic_program().at({"past": 3, "chunk": 8})
    seconds = [1.0 * n for n in range(len(list(program.walk())))]
    named = steps_of(program, seconds, ["join", "twice"])
    assert [step.name for step in named[:2]] == ["join", "twice"]
    assert named[2].name.startswith("twice ") and named[2].seconds == 2.0
    told = steps_of(program, seconds, operators={"twice": ["add", "relu"]})
    assert told[2].name.startswith("add +relu ")
    others = {step.kind: step.name for step in named[3:]}
    assert others == {StepKind.COPY: "copy of 3 bytes", StepKind.NATIVE: "positions"}
    assert sum(isinstance(i, KernelCall) for i in program.walk()) == 3


def test_a_model_and_its_artifact(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "trace.json"
    assert run("show", "time", model, "--dim", "batch=2", "--trace", out) == 0
    text = capsys.readouterr().out
    assert "tiny: " in text and "matmul" in text and "100.0 %" in text and f"trace: {out}" in text
    (span,) = [e for e in json.loads(out.read_text())["traceEvents"] if e["ph"] == "X"]
    assert span["cat"] == "kernel" and span["dur"] > 0
    folder = tmp_path / "a"
    assert run("compile", model, "--dim", "batch=1..8", "-o", folder) == 0
    capsys.readouterr()
    assert run("show", "time", folder, "--dim", "batch=3", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    kernels = [step for step in told["steps"] if step["kind"] == "kernel"]
    assert kernels[0]["name"] == "matmul +relu 3x4" and told["seconds"] > 0
    refused = [
        ((folder, "--dim", "rows=@3"), "'rows', which has no range"),
        ((folder, "--dim", "batch=3@3"), "takes no hints"),
        ((folder, "--dim", "batch=1..4"), "keeps its ranges"),
        ((folder, "--dim", "batch=9"), "9"),
        ((folder, "--on", "board"), "--on"),
        ((folder, "--numerics", "strict"), "keeps its own"),
        ((model, "--trace", tmp_path / "none" / "t.json"), "does not exist"),
    ]
    for arguments, said in refused:
        assert run("show", "time", *arguments) == 1
        assert said in capsys.readouterr().err


def test_ranges_have_a_table_for_each_size(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, folder = tmp_path / "trace.json", tmp_path / "a"
    assert run("show", "time", model, "--dim", "batch=1..40", "--trace", out) == 0
    text = capsys.readouterr().out
    assert "tiny at batch=6: " in text and "tiny at batch=40: " in text
    spans = [e for e in json.loads(out.read_text())["traceEvents"] if e["ph"] == "X"]
    assert {span["pid"] for span in spans} == {1, 2}
    assert run("compile", model, "--dim", "batch=1..40", "-o", folder) == 0
    capsys.readouterr()
    for what in (model, folder):
        ranged = "1..40" if what is model else ""
        assert run("show", "time", what, "--dim", f"batch={ranged}@3,17", "--json") == 0
        told = json.loads(capsys.readouterr().out)["at_sizes"]
        assert [each["sizes"] for each in told] == [{"batch": 3}, {"batch": 17}]
        assert all(each["seconds"] > 0 for each in told)
