"""`tilewright job submit` and `job watch` show a job from its start to the artifact."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.unit.service.api_calls import onnx_bytes
from tilewright.db.job_states import JobState
from tilewright.db.storage import Storage
from tilewright.db.stores.jobs import JobClaim, JobProgress
from tilewright.db.stores.tasks import JobTask, TaskStatus
from tilewright.service.cli import run as run_cli
from tilewright.service.client import Client
from tilewright.service.jobs.device.targets import target_key
from tilewright.service.jobs.pipeline.tuning import store_artifact
from tilewright.tuner.protocol.version import PROTOCOL

PROGRESS = JobProgress("tuning", 1, 0, 40, 10, 2, 4e-3, 3e-3, 90.0, 0.05)
DONE = JobProgress("verifying", 1, 1, 40, 40, 3, 4e-3, 2e-3, 0.0, 0.0)
TARGET = ("--target", "x86-64-v3")
FACTS = {"flops": 2e6, "executed_flops": 1e6, "origin": "random"}


@pytest.fixture(autouse=True)
def served(server: Any, storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of commands, and a worker that jobs need not wait for."""
    storage.workers.register("board", [target_key("x86-64-v3")], {}, protocol=PROTOCOL)
    monkeypatch.setenv("TILEWRIGHT_SERVER", server.url)
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.onnx"
    path.write_bytes(onnx_bytes())
    return path


def finish(storage: Storage, claim: JobClaim, folder: Path) -> None:
    """Tune a job to its end."""
    storage.jobs.progress(claim, PROGRESS, event={"candidates_per_second": 12.34, "workers": 0})
    storage.jobs.progress(claim, PROGRESS, event={"candidates_per_second": 12.34, "workers": 0})
    tasks = [
        JobTask("a" * 64, "cheap", 3, 1.0, TaskStatus.TUNED, 2e-4, 1e-4, 20, FACTS),
        JobTask("b" * 64, "dear", 1, 1.0, TaskStatus.TUNED, 4e-3, 2e-3, 20, {}),
    ]
    storage.tasks.put(claim, tasks)
    (folder / "made").mkdir()
    (folder / "made" / "manifest.json").write_text("{}")
    digest = store_artifact(folder / "made", storage)
    storage.jobs.progress(claim, DONE)
    storage.jobs.transition(claim, JobState.SUCCEEDED, result={}, artifact_digest=digest)


@contextmanager
def tuner(storage: Storage, folder: Path, error: str = "") -> Iterator[None]:
    """A tuner that runs alongside the command: it takes one job and ends it."""

    def work() -> None:
        while (found := storage.jobs.claim("t", 60)) is None:
            if over.wait(0.01):
                return
        if error:
            storage.jobs.transition(found[0], JobState.FAILED, error=error)
        else:
            finish(storage, found[0], folder)

    over, thread = threading.Event(), threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_a_model_is_submitted_followed_and_fetched(
    storage: Storage, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "below" / "artifact"
    with tuner(storage, tmp_path):
        assert (
            run_cli(["job", "submit", str(model), *TARGET, "--dim", "batch=1", "-o", str(output)])
            == 0
        )
    (job,) = storage.jobs.list()
    lines = capsys.readouterr().out.splitlines()
    assert f"job {job.id}" in lines
    # a phase once, though its progress was reported twice
    assert [line for line in lines if line.startswith("tuning")] == [
        "tuning 1 tasks, no worker yet"
    ]
    # the most expensive first, with its rate per second
    dear, cheap = (line.split() for line in lines if line.strip().startswith(("dear", "cheap")))
    assert (dear[0], cheap[0]) == ("dear", "cheap")
    assert cheap[:4] == ["cheap", "3", "200.0", "100.0"] and "20.0" in cheap and "10.0" in cheap
    (summary,) = [line for line in lines if line.startswith("kernels")]
    assert "4.00" in summary and "2.00" in summary and "40 trials, 3 failed" in summary
    assert lines[lines.index(f"artifact: {output}") + 1].startswith("run it: tilewright run ")
    assert (output / "manifest.json").read_text() == "{}"
    assert [path.name for path in output.parent.iterdir()] == ["artifact"]
    # the folder is there now
    assert run_cli(["job", "fetch", job.id, "-o", str(output)]) == 1
    assert "exists already" in capsys.readouterr().err
    assert run_cli(["job", "watch", job.id]) == 0
    assert run_cli(["job", "fetch", job.id, "-o", str(tmp_path / "again")]) == 0
    assert (tmp_path / "again" / "manifest.json").exists()


def test_a_job_that_fails_says_why(
    storage: Storage, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with tuner(storage, tmp_path, "the board burnt down"):
        assert run_cli(["job", "submit", str(model), *TARGET, "--dim", "batch=1"]) == 1
    told = capsys.readouterr()
    (job,) = storage.jobs.list()
    assert f"job {job.id} failed: the board burnt down" in told.err
    assert run_cli(["job", "show", job.id]) == 0
    assert "error: the board burnt down" in capsys.readouterr().out


def test_a_job_that_fails_is_json_all_the_same(
    storage: Storage, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with tuner(storage, tmp_path, "the board burnt down"):
        assert run_cli(["job", "submit", str(model), *TARGET, "--dim", "batch=1", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    (job,) = storage.jobs.list()
    assert (told["id"], told["state"]) == (job.id, "failed")
    assert told["error"] == "the board burnt down" and told["tasks"] == []


def test_events_go_on_after_a_stream_that_broke(
    storage: Storage, server: Any, owner: str, model: Path, tmp_path: Path
) -> None:
    """The service restarts: no event is lost and none comes twice."""
    job = storage.jobs.create(storage.models.add(onnx_bytes(), "m").digest, TARGET[1], "host-key")
    found = storage.jobs.claim("t", 60)
    assert found is not None
    with Client(server.url, owner) as client:
        assert client.health().status == "ok"
        seen = []
        for event in client.events(job.id):
            seen.append(event.sequence)
            if len(seen) == 1:
                server.stop()
                server.start()
                finish(storage, found[0], tmp_path)
    assert seen == list(range(seen[0], seen[0] + len(seen))) and len(seen) > 4
