"""Runs that tuned nothing: whether an action is needed, and the sentence about it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.service.tuners import model_bytes
from tilewright.compiler.codegen.link import linkers
from tilewright.service.cli import run as run_cli
from tilewright.service.jobs.pipeline import run_job
from tilewright.service.settings import Settings
from tilewright.tuner.events import Ended, Finished, Started, TaskSnapshot
from tilewright.tuner.protocol.measurement import Measurement, Phase, Status, Trial

pytestmark = pytest.mark.skipif(not linkers(), reason="no linker")


@pytest.fixture
def model(tmp_path: Path, settings: Settings) -> Path:
    path = tmp_path / "small.onnx"
    path.write_bytes(model_bytes())
    return path


def loop(trials: int, ended: Ended) -> Callable[..., Finished]:
    """A tune loop whose every trial crashes."""

    def tune(tasks: Any, storage: Any, *_: Any, job_id: str, **options: Any) -> Finished:
        key, schedule = tasks[0].key, tasks[0].space.default()
        crash = Measurement(Status.CRASH, "signal 11")
        storage.records.add_trials(
            [Trial(f"t{n}", key, schedule, crash, Phase.SCREEN, job_id) for n in range(trials)]
        )
        statuses = tuple(TaskSnapshot(t.name, t.key, t.count, trials, trials) for t in tasks)
        options["on_event"](Started(statuses, 4))
        finished = Finished(statuses, (None,) * len(statuses), trials, 0.1, ended=ended)
        options["on_event"](finished)
        return finished

    return tune


@pytest.mark.usefixtures("few_children")
def test_an_artifact_of_defaults_is_a_success_with_a_sentence(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An expired time limit before the first trial is not an error, with an artifact or without."""
    monkeypatch.setattr(run_job, "tune_tasks", loop(0, Ended.TIME))
    folder = tmp_path / "artifact"
    assert run_cli(["tune", str(model), "--seconds", "2", "-o", str(folder)]) == 0
    said = capsys.readouterr()
    assert "no trial fitted into 2 s: the artifact has the default schedules" in said.out
    assert (folder / "manifest.json").exists() and not said.err
    assert run_cli(["tune", str(model), "--seconds", "2"]) == 0
    assert "nothing was tuned: no trial fitted into 2 s" in capsys.readouterr().out


@pytest.mark.usefixtures("few_children")
@pytest.mark.parametrize("delivered", [True, False])
def test_trials_that_all_failed_are_a_failure_without_an_artifact(
    delivered: bool,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(run_job, "tune_tasks", loop(3, Ended.TRIALS))
    output = ["-o", str(tmp_path / "artifact")] if delivered else []
    assert run_cli(["tune", str(model), "--trials", "4", *output]) == (0 if delivered else 1)
    said = capsys.readouterr()
    assert "all 3 trials failed (3 crash)" in (said.out if delivered else said.err)
