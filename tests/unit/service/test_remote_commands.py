"""Commands that talk to a service, against one that listens."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from compiler.schedule.schedule import Schedule
from db.storage import Storage
from db.stores.leases import NewRequest
from service.cli import run as run_cli
from service.jobs.job_spec import JobBudget
from tests.unit.service.test_jobs_api import onnx_bytes
from tuner.measure.measurement import Measurement, Phase, RecordKey, Status, Trial

TARGET = "t" * 64


@pytest.fixture(autouse=True)
def served(server: Any, owner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What commands find in their environment."""
    monkeypatch.setenv("TILEWRIGHT_SERVER", server.url)
    monkeypatch.setenv("COLUMNS", "200")


def test_a_worker_is_drained_and_used_again(
    storage: Storage, capsys: pytest.CaptureFixture[str]
) -> None:
    board = storage.workers.register("board", [TARGET], {})
    other = storage.workers.register("other", [TARGET], {})
    storage.leases.submit([NewRequest("a", TARGET, {})])
    storage.leases.claim(board.id, [TARGET], limit=1, lease_seconds=60)
    assert run_cli(["workers", "drain", "board"]) == 0
    assert "worker board is drained: 1 requests in hand" in capsys.readouterr().out
    assert storage.workers.get(board.id).draining and not storage.workers.get(other.id).draining
    assert run_cli(["workers"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "board" in line]
    assert line.split()[1:4] == ["board", "draining", "1"]
    assert run_cli(["workers", "resume", board.id[:8]]) == 0
    assert "worker board gets work again" in capsys.readouterr().out
    assert not storage.workers.get(board.id).draining


def test_a_name_of_two_workers_says_nothing(
    storage: Storage, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = (storage.workers.register("twin", [TARGET], {}) for _ in range(2))
    assert run_cli(["workers", "drain", "twin"]) == 1
    error = capsys.readouterr().err
    assert first.id[:12] in error and second.id[:12] in error
    assert run_cli(["workers", "drain", "nobody"]) == 1
    assert "there is no worker 'nobody'" in capsys.readouterr().err
    storage.workers.leave(first.id)
    assert run_cli(["workers", "drain", "twin"]) == 0, "the one that is left"
    assert storage.workers.get(second.id).draining
    assert run_cli(["workers", "--token", "x", "drain", "twin"]) == 1
    assert "go behind 'drain'" in capsys.readouterr().err


def test_every_option_of_submit_reaches_the_job(
    storage: Storage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """None is silently ignored."""
    path = tmp_path / "tiny.onnx"
    path.write_bytes(onnx_bytes())
    arguments = ["--trials", "7", "--seconds", "11", "--seed", "13", "--stop-gain", "25%"]
    arguments += ["--target-ms", "1.5", "--strategy", "random", "--unconstrained"]
    arguments += [
        "--dim",
        "batch=2,4",
        "--pad",
        "--weight-limit",
        "1000000",
        "--threads",
        "2",
        "--numerics",
        "strict",
    ]
    arguments += ["--target", "x86-64-v3", "--detach"]
    assert run_cli(["submit", str(path), *arguments]) == 0
    (job,) = storage.jobs.list()
    assert job.id in capsys.readouterr().out
    assert (job.target, job.threads, job.numerics) == ("x86-64-v3", 2, "strict")
    assert job.options == {
        "trials": 7,
        "seconds": 11.0,
        "seed": 13,
        "stop_gain": 0.25,
        "target_ms": 1.5,
        "strategy": "random",
        "unconstrained": True,
        "dims": {"batch": [2, 4]},
        "pad": True,
        "weight_limit": 1_000_000,
        "worker_id": None,
    }
    # and another option than these would have to be among them
    others = {"dims", "pad", "weight_limit", "worker_id"}
    assert {field.name for field in fields(JobBudget)} | others == set(job.options)


def test_a_job_says_how_its_trials_failed(
    storage: Storage, capsys: pytest.CaptureFixture[str]
) -> None:
    job = storage.jobs.create(storage.models.add(b"model", "m").digest, "host")
    assert run_cli(["jobs", job.id]) == 0
    assert "failed trials: none" in capsys.readouterr().out
    statuses = [Status.OK, Status.CRASH, Status.BUILD_ERROR, Status.CRASH]
    trials = [
        Trial(
            f"trial {number}",
            RecordKey("w" * 64, TARGET),
            Schedule.of("direct", tile=number),
            Measurement(status, samples_seconds=(1.0,) if status is Status.OK else ()),
            Phase.SCREEN,
            job.id,
            "1",
        )
        for number, status in enumerate(statuses)
    ]
    storage.records.add_trials(trials)
    assert run_cli(["jobs", job.id]) == 0
    assert "failed trials: 2 crash, 1 build error" in capsys.readouterr().out
