"""Commands that talk to a service, against one that listens."""

from __future__ import annotations

import json
import tarfile
import threading
from dataclasses import fields
from io import BytesIO
from pathlib import Path
from typing import Any

import onnx
import pytest

from tests.unit.service.api_calls import onnx_bytes
from tilewright.compiler.dtypes import DType
from tilewright.compiler.graph.ir import Graph, Node
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.plan.workload import Boundary, make_workload
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.targets.host import host_target
from tilewright.db.job_states import JobState
from tilewright.db.storage import Storage
from tilewright.db.stores.leases import NewRequest
from tilewright.service.cli import remote
from tilewright.service.cli import run as run_cli
from tilewright.service.options import JobBudget
from tilewright.service.settings import Settings
from tilewright.tuner.protocol.measurement import Measurement, Phase, RecordKey, Status, Trial

TARGET = "t" * 64


@pytest.fixture(autouse=True)
def served(server: Any, owner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of commands."""
    monkeypatch.setenv("TILEWRIGHT_SERVER", server.url)
    monkeypatch.setenv("COLUMNS", "200")


def test_a_worker_is_drained_and_used_again(
    storage: Storage, capsys: pytest.CaptureFixture[str]
) -> None:
    board = storage.workers.register("board", [TARGET], {})
    other = storage.workers.register("other", [TARGET], {})
    storage.leases.submit([NewRequest("a", TARGET, {})])
    storage.leases.claim(board.id, [TARGET], limit=1, lease_seconds=60)
    assert run_cli(["device", "drain", "board"]) == 0
    assert "worker board is drained: 1 requests in hand" in capsys.readouterr().out
    assert storage.workers.get(board.id).draining and not storage.workers.get(other.id).draining
    assert run_cli(["device", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (line,) = [line for line in lines if line.strip().startswith(board.id[:12])]
    assert line.split()[1:4] == ["board", "draining", "1"]
    assert run_cli(["device", "resume", board.id[:8]]) == 0
    assert "worker board gets work again" in capsys.readouterr().out
    assert not storage.workers.get(board.id).draining


def test_a_name_of_two_workers_says_nothing(
    storage: Storage, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = (storage.workers.register("twin", [TARGET], {}) for _ in range(2))
    assert run_cli(["device", "drain", "twin"]) == 1
    error = capsys.readouterr().err
    assert first.id[:12] in error and second.id[:12] in error
    assert run_cli(["device", "drain", "nobody"]) == 1
    assert "there is no worker 'nobody'" in capsys.readouterr().err
    storage.workers.leave(first.id)
    assert run_cli(["device", "drain", "twin"]) == 0, "the one that is left"
    assert storage.workers.get(second.id).draining


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
        "--precision",
        "bfloat16",
    ]
    arguments += ["--target", "x86-64-v3", "--priority", "-3", "--wait", "60", "--detach"]
    assert run_cli(["job", "submit", str(path), *arguments]) == 0
    (job,) = storage.jobs.list()
    out = capsys.readouterr().out
    assert job.id in out
    assert "waiting for worker: no worker runs target 'x86-64-v3'; start one" in out
    assert (job.priority, job.wait_seconds) == (-3, 60.0)
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
        "precision": "bfloat16",
    }
    # and another option than these would have to be among them
    others = {"dims", "pad", "weight_limit", "precision"}
    assert {field.name for field in fields(JobBudget)} | others == set(job.options)


def test_a_job_says_how_its_trials_failed(
    storage: Storage, capsys: pytest.CaptureFixture[str]
) -> None:
    job = storage.jobs.create(storage.models.add(b"model", "m").digest, "host", "host-key")
    assert run_cli(["job", "show", job.id]) == 0
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
    assert run_cli(["job", "show", job.id]) == 0
    assert "failed trials: 2 crash, 1 build error" in capsys.readouterr().out


def test_a_job_is_paused_resumed_and_cancelled(
    storage: Storage, capsys: pytest.CaptureFixture[str]
) -> None:
    job = storage.jobs.create(storage.models.add(b"model", "m").digest, "host", "host-key")
    storage.workers.register("here", ["host-key"], {})
    for verb, state in (("pause", "paused"), ("resume", "queued"), ("cancel", "cancelled")):
        assert run_cli(["job", verb, job.id]) == 0
        assert state in capsys.readouterr().out
        assert storage.jobs.get(job.id).state.value == state
    assert run_cli(["job", "resume", job.id]) == 1
    assert "cancelled, which cannot become queued" in capsys.readouterr().err


def test_a_job_that_tuned_nothing_does_not_end_well(
    storage: Storage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command reports the wait and the reason for the end, and still delivers the defaults."""
    path, folder = tmp_path / "tiny.onnx", tmp_path / "made"
    path.write_bytes(onnx_bytes())
    made = BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        entry = tarfile.TarInfo("manifest.json")
        entry.size = 2
        tar.addfile(entry, BytesIO(b"{}"))
    artifact = storage.blobs.put(made.getvalue())

    def end() -> None:
        while (taken := storage.jobs.claim("t", 60, wait_seconds=0.0)) is None:
            pass
        storage.jobs.transition(
            taken[0], JobState.INCOMPLETE, reason="no\x1b worker", artifact_digest=artifact
        )

    ending = threading.Thread(target=end, daemon=True)
    ending.start()
    arguments = ["job", "submit", str(path), "--dim", "batch=2", "--target", "cortex-a72"]
    assert run_cli([*arguments, "-o", str(folder)]) == 1
    said = capsys.readouterr()
    assert "waiting for worker: no worker runs target 'cortex-a72'; start one" in said.out
    assert "is incomplete: no\\x1b worker" in said.err
    assert (folder / "manifest.json").exists()
    (job,) = storage.jobs.list()
    assert run_cli(["job", "show", job.id]) == 0
    assert "incomplete: no\\x1b worker" in capsys.readouterr().out


def test_a_token_may_have_quotas(storage: Storage, capsys: pytest.CaptureFixture[str]) -> None:
    quotas = ["--max-open-jobs", "5", "--max-running-jobs", "2"]
    assert run_cli(["token", "create", "ci", "--scope", "submit", *quotas]) == 0
    token = storage.tokens.verify(capsys.readouterr().out.strip())
    assert token is not None and (token.max_open_jobs, token.max_running_jobs) == (5, 2)


def test_devices_are_this_machine_and_the_workers_that_live(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    storage.workers.register("board", ["armv8"], {"model": "Cortex", "cores": 4})
    gone = storage.workers.register("other", ["armv9"], {})
    storage.workers.leave(gone.id)
    assert run_cli(["device", "list"]) == 0
    shown = capsys.readouterr().out
    devices, workers = shown.split("\n\n")
    assert "this machine" in devices and "Cortex" in devices and "other" not in devices
    (line,) = [line for line in workers.splitlines() if "other" in line]
    assert "gone" in line
    assert "not listed" not in shown
    # without a service there is this machine, unless a service was named
    monkeypatch.setenv("TILEWRIGHT_SERVER", "http://127.0.0.1:1")
    assert run_cli(["device", "list"]) == 0
    shown = capsys.readouterr().out
    assert "this machine" in shown and "workers are not listed: the service at" in shown
    assert run_cli(["device", "list", "--server", "http://127.0.0.1:1"]) == 1
    assert "does not answer" in capsys.readouterr().err


def test_a_model_nobody_tuned_is_looked_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tiny.onnx"
    path.write_bytes(onnx_bytes())
    asked = ["record", "find", str(path), "--target", "x86-64-v3", "--dim", "batch=1"]
    assert run_cli(asked) == 0
    assert "0 of 1" in capsys.readouterr().out
    assert run_cli(["record", "find", str(tmp_path / "none.onnx")]) == 1
    assert "none.onnx" in capsys.readouterr().err


def test_a_model_with_tensors_in_files_beside_it_is_uploaded_as_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = onnx.load_from_string(onnx_bytes())
    path = tmp_path / "model.onnx"
    data = {"location": "weights.bin", "size_threshold": 0, "convert_attribute": True}
    onnx.save_model(model, path, save_as_external_data=True, **data)
    assert (tmp_path / "weights.bin").stat().st_size > 0
    assert run_cli(["record", "find", str(path)]) == 0
    assert f"known for target {host_target().name}\n" in capsys.readouterr().out
    monkeypatch.setattr(remote, "MESSAGE_BYTES", 100)
    assert run_cli(["record", "find", str(path)]) == 1
    assert "more than a message may have" in capsys.readouterr().err
    (tmp_path / "weights.bin").unlink()
    assert run_cli(["record", "find", str(path)]) == 1
    assert "weights.bin" in capsys.readouterr().err


def test_a_workload_is_looked_up_by_how_its_key_begins(
    storage: Storage, capsys: pytest.CaptureFixture[str]
) -> None:
    x = TensorType(DType.FLOAT32, (4,))
    graph = Graph("g", ("x",), ("y",), (Node("r", "relu", ("x",), ("y",)),), {"x": x, "y": x}, {})
    workload = make_workload(graph, ["r"], {"x": Boundary(x)})
    key = workload.key
    storage.workloads.put_workloads({key: workload.text()})
    for given in (key, key[:6]):
        assert run_cli(["record", "find", given, "--target", "x86-64-v3", "--json"]) == 0
        (found,) = json.loads(capsys.readouterr().out)["schedules"]
        assert found["workload_key"] == key
    assert run_cli(["record", "find", "f" * 40, "--target", "x86-64-v3"]) == 1
    said = capsys.readouterr().err
    assert "is not a file on this machine: workload 'ff" in said and "does not exist" in said


def test_a_list_without_jobs_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["job", "list"]) == 0
    assert capsys.readouterr().out == "no jobs that this token may see\n"
    assert run_cli(["job", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


@pytest.mark.parametrize("token", ["zwo\nlines", "zwo words", "caf\u00e9"])
def test_a_token_that_cannot_be_sent_is_not_printed(
    token: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(["job", "list", "--token", token]) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: --token is not a token, which is one line of printable ASCII")
    assert token[:3] not in said


@pytest.mark.parametrize("source", ["--token", "TILEWRIGHT_TOKEN", "file", "none"])
def test_a_wrong_token_is_named_by_its_source_with_a_remedy(
    source: str,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    named = f"{source} gave it"
    if source == "TILEWRIGHT_TOKEN":
        monkeypatch.setenv(source, "wrong")
    elif source == "file":
        settings.token_file.write_text("wrong")
        named = f"'{settings.token_file}' is the token file"
    elif source == "none":
        settings.token_file.unlink()
        named = f"neither a token nor the token file '{settings.token_file}' exists"
    assert run_cli(["job", "list", *(["--token", "wrong"] if source == "--token" else [])]) == 1
    reason, _, remedy = capsys.readouterr().err.removeprefix("error: ").partition(f": {named}")
    assert "token" in reason
    assert remedy == "; `tilewright token create NAME --scope SCOPE` on the service makes one\n"
