"""Models of all kinds go through the main job without options: by the command line, and over HTTP.
Each ends with an artifact that was verified."""

from __future__ import annotations

import json
from contextlib import nullcontext
from functools import cache
from pathlib import Path

import onnx
import pytest

from tests.integration.small_models import SMALL
from tests.services import served
from tilewright import load_artifact
from tilewright.service.api.schemas.jobs import JobRequest
from tilewright.service.archive import unpack
from tilewright.service.cli import run as run_cli
from tilewright.service.client import Client
from tilewright.service.jobs.device import local_device
from tilewright.service.jobs.device.local_device import LocalDevice
from tilewright.service.jobs.process import builders
from tilewright.tuner.measure.builder import ProcessBuilder

TRIALS = 1


@cache
def model(name: str) -> bytes:
    proto = SMALL[name]()
    onnx.checker.check_model(proto)
    data: bytes = proto.SerializeToString()
    return data


@pytest.mark.parametrize("name", SMALL)
def test_tune_ends_with_a_verified_artifact(
    name: str,
    builder: ProcessBuilder,
    device: LocalDevice,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(local_device, "LocalDevice", lambda given: nullcontext(device))
    monkeypatch.setattr(builder, "close", lambda: None)
    monkeypatch.setattr(builders, "open_builder", lambda settings, timings=None: builder)
    monkeypatch.setenv("TILEWRIGHT_DATA_FOLDER", str(tmp_path / "data"))
    (tmp_path / "m.onnx").write_bytes(model(name))
    command = ["tune", str(tmp_path / "m.onnx"), "--trials", str(TRIALS), "--json"]
    code = run_cli([*command, "-o", str(tmp_path / "artifact")])
    printed = capsys.readouterr()
    assert code == 0 and "Traceback" not in printed.err, printed.err
    report = json.loads(printed.out)
    assert report["verified"], report
    assert report["trials"] == TRIALS or "artifact has" in report["note"], report["note"]
    assert load_artifact(tmp_path / "artifact").output_names
    last = [line.partition(":")[0] for line in printed.err.splitlines()[-3:]]
    assert last == ["verified", "artifact", "run it"]


OVER_HTTP = ("encoder", "qdq", "branches")
"""Integers, rounding and a choice. The parts specific to HTTP, including a tuner's children, are
the same for all models, and each model takes the service tens of seconds."""


@pytest.mark.acceptance
@pytest.mark.timeout(600)
def test_jobs_end_with_verified_artifacts(tmp_path: Path) -> None:
    with served(tmp_path) as client:
        jobs = {name: submitted(client, name, tmp_path) for name in OVER_HTTP}
        found = {name: fetched(client, job, tmp_path / name) for name, job in jobs.items()}
    assert found == dict.fromkeys(OVER_HTTP, ("succeeded", None, True))


def submitted(client: Client, name: str, folder: Path) -> str:
    """A job of a model, with default options but for its trials."""
    file = folder / f"{name}.onnx"
    file.write_bytes(model(name))
    digest = client.upload(file).digest
    return str(client.submit(JobRequest(model=digest, trials=TRIALS)).id)


def fetched(client: Client, job: str, folder: Path) -> tuple[str, str | None, bool]:
    """How a job ended, and whether its artifact was verified and can be loaded."""
    ended = client.wait(job)
    if ended.result is None:
        return ended.state, ended.error, False
    folder.mkdir()
    client.artifact(job, folder / "artifact.tar")
    unpack(folder / "artifact.tar", folder / "artifact")
    assert load_artifact(folder / "artifact").output_names
    return ended.state, ended.error, bool(ended.result["verified"])
