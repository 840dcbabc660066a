"""The arithmetic of a race and its report; nothing is compared by time."""

from __future__ import annotations

import argparse
import json
import re
import sys
from dataclasses import asdict
from io import StringIO
from pathlib import Path
from time import sleep

import numpy as np
import pytest

from benchmarks import answering, engines, models, race
from benchmarks.report import (
    LONGEST_ERROR,
    Origin,
    RaceReport,
    RaceRow,
    command,
    cpu_name,
    read_data,
    write_report,
)


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
    answering.serve(engines.Served(engines.ENGINES["onnxruntime"]).answer, requests, answers)
    first, second = [json.loads(line) for line in answers.getvalue().splitlines()]
    assert "dance" in first["error"]
    assert "no such model" in second["error"]


def test_a_run_longer_than_its_turn_is_timed_once() -> None:
    samples = engines.turn(lambda: sleep(0.002) or [], seconds=0.001, least=3)
    assert len(samples["wall"]) == 1


def test_scaling_races_each_engine_on_one_thread_too() -> None:
    options = race.RaceOptions(threads=2, rounds=1, turn_seconds=0.01, least_runs=1, scaling=True)
    results = race.race("mlp", ["onnxruntime", "untuned"], options)
    assert list(results) == ["onnxruntime", "untuned", "onnxruntime on 1", "untuned on 1"]
    assert not any(result.error for result in results.values())
    report = RaceReport(threads=2, rounds=1, scaling=True)
    race.add_results(report, "mlp", results)
    assert all((row.speedup is None) == row.engine.endswith(" on 1") for row in report.rows)
    assert "over 1 thread" in report.table()


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
    assert "time over ONNX Runtime's: below 1, the engine is faster" in text
    assert "| mlp | untuned | 1.000 | 1.000 | 0.900 | 0.800 | 1.0e-06 |" in text
    assert "cannot run: not installed" in text
    data = read_data(tmp_path / "race.json.gz")
    assert data["rows"][0]["rounds"] == [[0.001]]
    assert data["origin"]["commit"] == report.origin.commit


@pytest.mark.parametrize(
    ("numbers", "name"),
    [
        ("cpu family\t: 25\nmodel\t\t: 1\n", "AMD EPYC family 25 model 1 stepping 1"),
        ("", "AMD EPYC"),
    ],
)
def test_the_cpus_name_tells_generations_apart(tmp_path: Path, numbers: str, name: str) -> None:
    one = f"processor\t: 0\n{numbers}model name\t: AMD EPYC\nstepping\t: 1\n\n"
    (tmp_path / "cpuinfo").write_text(one + one.replace(": 1\n", ": 2\n"))
    assert cpu_name(tmp_path / "cpuinfo") == name


def test_an_unknown_cpu_has_a_name(tmp_path: Path) -> None:
    assert cpu_name(tmp_path / "missing")


def _compare(folder: Path, got: np.ndarray) -> race.EngineResult:
    np.savez(folder / "onnxruntime.npz", np.array([0.0, 10.0]))
    np.savez(folder / "untuned.npz", got)
    results = {name: race.EngineResult() for name in ("onnxruntime", "untuned")}
    race.compare(results, folder)
    return results["untuned"]


def test_outputs_are_compared_over_the_largest(tmp_path: Path) -> None:
    result = _compare(tmp_path, np.array([0.001, 10.0]))
    assert result.largest_error == pytest.approx(1e-4)
    assert result.error == ""


@pytest.mark.parametrize("got", [[0.1, 10.0], [np.nan, 10.0], [0.0, 10.0, 0.0]])
def test_an_engine_that_computes_something_else_is_out(tmp_path: Path, got: list[float]) -> None:
    assert "outputs" in _compare(tmp_path, np.array(got)).error


def test_the_summary_is_the_geometric_mean_of_what_ran() -> None:
    report = RaceReport(threads=1, rounds=1)
    for model, ratio in (("a", 0.5), ("b", 2.0), ("c", 8.0)):
        report.rows.append(RaceRow(model, "one", ratio=ratio, minimum_ratio=1.0))
    report.rows.append(RaceRow("a", "two", ratio=0.9, minimum_ratio=0.8))
    report.add_failure("b", "two", "no such operator")
    lines = report.summary().splitlines()
    assert lines[2:] == ["| one | 3 of 3 | 2.000 | 1.000 |", "| two | 1 of 2 | 0.900 | 0.800 |"]


def test_a_long_error_stays_within_its_cell() -> None:
    cell = RaceRow("a", "one", error="first | line\n" + "x" * 500).cells()[2]
    assert cell.startswith("cannot run: first \\| line xxx")
    assert len(cell) < LONGEST_ERROR + 20


def test_an_interpreter_is_named_with_its_engine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    python = tmp_path / "python"
    python.touch()
    options = race._parse(["--python", f"iree={python}"])
    assert dict(options.pythons) == {"iree": str(python)}
    assert "iree" in race.available_engines(dict(options.pythons))
    assert "tuned" not in race.available_engines({})
    for text in ("iree=/no/such/python", f"jax={python}"):
        with pytest.raises(SystemExit):
            race._parse(["--python", text])
    assert "no engine 'jax'" in capsys.readouterr().err


def test_scaling_needs_threads() -> None:
    with pytest.raises(SystemExit):
        race._parse(["--scaling"])


def test_a_nan_in_any_output_is_an_error(tmp_path: Path) -> None:
    outputs = [np.linspace(-1, 1, 9, dtype=np.float32), np.arange(9, dtype=np.float32)]
    broken = [outputs[0] * np.float32(1.00001), np.where(outputs[1] == 4, np.nan, outputs[1])]
    np.savez(tmp_path / f"{race.REFERENCE}.npz", *outputs)
    np.savez(tmp_path / "untuned.npz", *broken)
    results = {name: race.EngineResult() for name in (race.REFERENCE, "untuned")}
    race.compare(results, tmp_path)
    assert "differ by inf" in results["untuned"].error


def test_a_result_says_what_it_cost_and_names_no_place(tmp_path: Path) -> None:
    """The command, and all its options with their defaults; of paths only names."""
    options = argparse.Namespace(rounds=7, results=tmp_path / "results", models=["a", "b"], name="")
    origin = Origin.of(options)
    assert origin.options == {"models": ["a", "b"], "name": "", "results": "results", "rounds": 7}
    assert json.loads(json.dumps(asdict(origin)))["command"] == origin.command
    assert origin.command.startswith("python ") and not re.search(r"(^|\s)/", origin.command)
    sentence = origin.sentence()
    assert origin.command in sentence and "rounds 7" in sentence and str(tmp_path) not in sentence


def test_engines_of_a_narrower_type_race_where_they_are_named(tmp_path: Path) -> None:
    assert not [name for name in race.available_engines({}) if name.endswith("-bf16")]
    results = {race.REFERENCE: race.EngineResult()}
    expected = np.array([1.0, 2.0, -10.0])
    np.savez(tmp_path / f"{race.REFERENCE}.npz", expected)
    for name in ("untuned", "untuned-bf16", "openvino-bf16"):
        off = 1.0 if name == "openvino-bf16" else 0.1
        np.savez(tmp_path / f"{name}.npz", expected + np.array([0.0, off, 0.0]))
        results[name] = race.EngineResult()
    race.compare(results, tmp_path)
    assert results["untuned"].error and results["openvino-bf16"].error
    assert not results["untuned-bf16"].error
    assert results["untuned-bf16"].largest_error == pytest.approx(0.01)


def test_the_untuned_engine_compiles_in_bfloat16() -> None:
    model = models.build("mlp")
    feeds = models.feeds("mlp", model)
    wide, narrow = (
        engines.ENGINES[name].load(model, feeds, 1, "")()[0] for name in ("untuned", "untuned-bf16")
    )
    assert 1e-5 < np.abs(narrow - wide).max() / np.abs(wide).max() < engines.BF16_ERROR


def test_a_result_names_no_folder_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interpreters and folders elsewhere keep their names alone, behind an engine's name too."""
    words = ["--python", "openvino=/opt/peer/bin/python", "--results", "/var/made", "--rounds", "5"]
    monkeypatch.setattr(sys, "orig_argv", ["/usr/bin/python", "-m", "benchmarks.race", *words])
    assert command() == (
        "python -m benchmarks.race --python openvino=python --results made --rounds 5"
    )
    pythons = [("openvino", "/opt/peer/bin/python")]
    options = argparse.Namespace(pythons=pythons, results=Path("/var/made"), name="a=b")
    shown = {"pythons": [["openvino", "python"]], "results": "made", "name": "a=b"}
    assert Origin.of(options).options == shown
