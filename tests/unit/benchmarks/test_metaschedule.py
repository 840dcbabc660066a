"""Runs of two tuners as values, their stored form, and the report on them."""

from __future__ import annotations

import csv
import gzip
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.metaschedule_report import (
    Axis,
    Comparison,
    Raced,
    markdown,
    plot,
    write_samples,
)
from benchmarks.metaschedule_runs import (
    Engine,
    Run,
    Sample,
    defaults_of,
    kept_or_made,
    listen,
    samples_of,
)
from benchmarks.report import Origin

CHILD = """
import sys, time
sys.path.insert(0, ".")
from benchmarks.metaschedule_runs import tell
print("a library's own line")
tell("start")
tell("tasks", weights=[2, 1])
tell("default", task=1, seconds=0.5)
tell("sample", task=1, wall_seconds=3.0, seconds=None, error="no")
tell("sample", task=0, wall_seconds=2.0, seconds=0.25, error="")
"""


def _run(engine: Engine, seed: int, times: list[float | None], *, late: bool = False) -> Run:
    """Two tasks that count 2 and 1 and take 1 s untuned; trials in turns, one per second."""
    samples = [
        Sample(number % 2, number + 1.0, seconds, "" if seconds else "does not build")
        for number, seconds in enumerate(times)
    ]
    return Run(engine, "m", seed, 4, 10.0, "abc", (2, 1), (1.0, 1.0), tuple(samples), late)


def test_kernels_that_were_not_measured_count_untuned() -> None:
    run = _run(Engine.OURS, 0, [0.5, None, 2.0, 0.25])
    found = [(p.trials, p.wall_seconds, p.seconds, p.untuned) for p in run.curve]
    assert found == [
        (0, 0.0, 3.0, 2),
        (1, 1.0, 2.0, 1),
        (2, 2.0, 2.0, 1),  # the first candidate of the other task failed
        (3, 3.0, 2.0, 1),  # slower than the best known
        (4, 4.0, 1.25, 0),
    ]
    assert [p.seconds for p in replace(run, defaults=(1.0, None)).curve] == [*[None] * 4, 1.25]


def test_a_run_says_what_it_knew_by_trials_and_by_seconds() -> None:
    run = _run(Engine.OURS, 0, [0.5, 0.5])
    assert [run.after_seconds(s).trials for s in (0.0, 0.9, 1.0, 50.0)] == [0, 0, 1, 2]
    whole, cut = run.after_trials(4), replace(run, out_of_time=True)
    assert whole is not None and whole.seconds == 1.5, "its space was used up: there it stays"
    assert run.after_trials(5) is None, "it was given 4"
    assert cut.after_trials(4) is None, "nobody knows what it would have found"
    known = cut.after_trials(2)
    assert known is not None and known.seconds == 1.5


@pytest.fixture
def row() -> Comparison:
    """Three seeds each; one of TVM's runs had no time for its fourth trial."""
    runs = [
        _run(Engine.OURS, 0, [0.5, 0.5, 0.25, 0.25]),
        _run(Engine.OURS, 1, [0.5, 0.5, 0.5, 0.5]),
        _run(Engine.OURS, 2, [0.5, 0.5, 0.2, 0.2]),
        _run(Engine.TVM, 0, [None, 0.75, 0.75, 0.75]),
        _run(Engine.TVM, 1, [0.75, 0.75, 0.75, 0.5]),
        _run(Engine.TVM, 2, [0.75, 0.75, 0.6], late=True),
    ]
    return Comparison("m", 10.0, tuple(runs), Raced((2, 1), 2.0, 1.9))


def test_factors_are_of_medians_over_the_seeds(row: Comparison) -> None:
    first = row.factor(Axis.TRIALS, 1)
    assert first is not None
    assert (first.ours.seconds, first.theirs.seconds, first.value) == (2.0, 2.5, 1.25)
    assert first.ours.untuned and first.theirs.untuned
    third = row.factor(Axis.TRIALS, 3)
    assert third is not None
    assert (third.ours.seconds, third.theirs.seconds) == (1.0, 2.25)
    assert not third.ours.untuned and not third.theirs.untuned
    assert row.factor(Axis.TRIALS, 4) is None, "one of TVM's runs never came to its fourth"
    last = row.factor(Axis.SECONDS, 10.0)
    assert last is not None and last.value == 2.0 / 0.75
    assert [factor.at for factor in row.factors(Axis.SECONDS)] == [1.0, 2.0, 3.0, 4.0]
    assert row.passed(Axis.TRIALS) == 1 and row.passed(Axis.SECONDS) == 1.0


def test_the_report_has_factors_times_and_texts(row: Comparison, tmp_path: Path) -> None:
    broken = replace(row.runs[-1], failure="exit status 1: no memory")
    row = replace(row, runs=(*row.runs[:-1], broken))
    text = markdown([row], (1, 4), (2.0, 60.0), Origin())
    cells = "| m | 3 / 3 | 4 / 4 | 4 / 4 | 1.25 at 1 | 1.25 at 1 | 1 | 1 | 2.00 (1.90) |"
    assert cells in text
    assert "| m | 1.25 (2e+03° / 2.5e+03°) | - |" in text
    assert "| m | 1.50 (1.5e+03 / 2.25e+03°) | - |" in text, "no run had 60 s"
    assert "1 candidates of TVM failed, the last with:\n\n```\ndoes not build\n```" in text
    assert "seed 2 broke off:\n\n```\nexit status 1: no memory\n```" in text
    write_samples([row], tmp_path / "c.csv")
    rows = list(
        csv.DictReader(gzip.decompress((tmp_path / "c.csv").read_bytes()).decode().splitlines())
    )
    assert len(rows) == 3 * 5 + 5 + 5 + 4
    assert rows[4]["engine"] == "tilewright" and rows[4]["model_seconds"] == "0.75"
    assert rows[15]["kernel_seconds"] == "" and rows[15]["untuned_kernels"] == "2"


def test_the_curves_are_a_picture(row: Comparison, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot([row, row], tmp_path / "c.png")
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")


def test_a_child_tells_a_run_and_why_it_failed(tmp_path: Path) -> None:
    lines, failure = listen([sys.executable, "-c", CHILD], tmp_path, 60.0)
    assert failure == "" and [line["kind"] for line in lines[:2]] == ["start", "tasks"]
    assert defaults_of(lines, 2) == (None, 0.5)
    assert samples_of(lines) == (Sample(0, 2.0, 0.25), Sample(1, 3.0, None, "no"))
    command = [sys.executable, "-c", CHILD + "sys.exit('no such operator')"]
    lines, failure = listen(command, tmp_path, 60.0)
    assert len(lines) == 5 and failure == "exit status 1: no such operator"


def test_a_child_that_does_not_end_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.metaschedule_runs.GRACE_SECONDS", 0.0)
    command = [sys.executable, "-c", CHILD + "time.sleep(600)"]
    lines, failure = listen(command, tmp_path, 0.5)
    assert len(lines) == 5 and failure.startswith("exit status -9")


def test_a_run_that_was_interrupted_is_made_again_and_a_whole_one_is_kept(tmp_path: Path) -> None:
    run = _run(Engine.TVM, 3, [0.5, None])
    folder = tmp_path / "tvm-3"
    made = []

    def make() -> Run:
        assert not list(folder.iterdir()), "what was left is gone"
        made.append(run)
        return run

    folder.mkdir()
    (folder / "database.json").write_text("half of it")
    assert kept_or_made(folder, make, lambda kept: True) == run
    assert kept_or_made(folder, make, lambda kept: True) == run and len(made) == 1
    assert json.loads((folder / "run.json").read_text())["engine"] == "tvm"
    assert kept_or_made(folder, make, lambda kept: kept.trials == 64) == run and len(made) == 2
