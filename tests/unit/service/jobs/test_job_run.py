"""One job in a tuner's hands, with a stand-in for the measuring: how it ends."""

from __future__ import annotations

import io
import json
import tarfile
from typing import Any

import numpy as np
import onnx
import pytest

from tests.unit.service.tuners import LocalWorker, loop, model_bytes, queue_job, work_once
from tilewright.compiler.mode import Mode
from tilewright.compiler.targets.host import resolve_target
from tilewright.compiler.targets.target import Target
from tilewright.db.job_states import JobState
from tilewright.db.storage import Storage
from tilewright.db.stores.jobs import Job
from tilewright.service.jobs.device.device import Checked
from tilewright.service.jobs.device.leased_device import LeasedDevice
from tilewright.service.jobs.device.remote_runner import RemoteRunner
from tilewright.service.jobs.device.run_queue import JobCancelled
from tilewright.service.jobs.pipeline import job_run, run_job
from tilewright.service.jobs.process.tuner_process import TunerProcess
from tilewright.service.show.messages import result_lines
from tilewright.tuner.events import Finished, Started, TaskSnapshot
from tilewright.tuner.protocol.batches import Case, MeasureRequest
from tilewright.tuner.protocol.measurement import Measurement, Phase, RecordKey, Status, Trial


def test_a_job_without_trials_becomes_an_artifact(
    storage: Storage, job: Job, tuner: TunerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_job, "tune_tasks", loop(lambda runner, token: False))
    assert work_once(tuner)
    done = storage.jobs.get(job.id)
    assert (done.state, done.error) == (JobState.SUCCEEDED, None)
    assert done.artifact_digest in storage.blobs
    assert done.result is not None
    assert done.result["verified"] is True and done.result["unverified"] == []
    assert done.result["largest_error"] < 1e-5
    events = storage.events.since(job.id)
    assert 0 in {event.data.get("workers") for event in events}, "who follows it learns of them"
    kinds = [event.kind for event in events]
    assert kinds[0] == "state"
    assert "progress" in kinds
    assert storage.workloads.workload(storage.tasks.list(job.id)[0].workload_key)
    assert not work_once(tuner)


def test_the_same_artifact_has_the_same_digest(
    storage: Storage, job: Job, tuner: TunerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_job, "tune_tasks", loop(lambda runner, token: False))
    again = queue_job(storage, job.model_digest, options={"trials": 4})
    assert work_once(tuner)
    assert work_once(tuner)
    first, second = (storage.jobs.get(i).artifact_digest for i in (job.id, again.id))
    assert first == second


def make_request(name: str, target_key: str) -> MeasureRequest:
    return MeasureRequest(
        request_id=name,
        key=RecordKey("w" * 64, target_key),
        candidates=(),
        library_digest="d" * 64,
        cases=(Case((), "e" * 64),),
        tolerance=1e-4,
    )


def test_a_job_whose_last_worker_goes_in_the_middle_waits_for_the_next(
    storage: Storage, job: Job, tuner: TunerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_run, "AWAY_SECONDS", 0.0)
    target = resolve_target("host")
    storage.jobs.cancel(job.id)
    worker = storage.workers.register("desk", [target.key], {})
    mine = queue_job(storage, job.model_digest, options={"trials": 4})

    def lose(runner: RemoteRunner, token: Any) -> bool:
        storage.workers.leave(worker.id)
        runner._open["asked"] = make_request("asked", target.key)
        while True:
            runner.poll(0.05)

    monkeypatch.setattr(run_job, "tune_tasks", loop(lose))
    assert work_once(tuner)
    found = storage.jobs.get(mine.id)
    assert (found.state, found.attempts) == (JobState.WAITING, 0)
    assert "worker 'desk' is gone" in (found.reason or "")


def test_a_job_that_waited_in_vain_ends_with_its_defaults(
    storage: Storage, job: Job, tuner: TunerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_run, "LeasedDevice", LeasedDevice)
    storage.jobs.cancel(job.id)
    target = resolve_target("host")
    vain = queue_job(
        storage,
        job.model_digest,
        options={"trials": 4},
        wait_seconds=0.0,
        waits="nobody is there",
    )
    assert work_once(tuner)
    found = storage.jobs.get(vain.id)
    assert found.state is JobState.INCOMPLETE
    assert found.reason == "no worker came in time: nobody is there"
    assert found.artifact_digest in storage.blobs
    assert storage.records.count_trials(vain.id)[Status.OK] == 0
    assert found.result is not None
    lines = result_lines(found.result)
    assert "nothing was measured, as no worker came" in lines
    assert f"not verified: no worker runs target '{target.name}'" in lines
    assert not any("device:" in line or "trials are spent" in line for line in lines)


def test_a_job_whose_every_trial_failed_succeeds_with_its_defaults(
    storage: Storage, job: Job, tuner: TunerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(tasks: Any, storage: Storage, *_: Any, **options: Any) -> Finished:
        key = tasks[0].key
        crash = Measurement(Status.CRASH, "signal 11")
        schedule = tasks[0].space.default()
        trials = [Trial(f"t{n}", key, schedule, crash, Phase.SCREEN, job.id) for n in range(3)]
        storage.records.add_trials(trials)
        statuses = tuple(TaskSnapshot(t.name, t.key, t.count, 3, 3) for t in tasks)
        options["on_event"](Started(statuses, 4))
        finished = Finished(statuses, (None,) * len(statuses), 3, 0.1)
        options["on_event"](finished)
        return finished

    monkeypatch.setattr(run_job, "tune_tasks", fail)
    assert work_once(tuner)
    found = storage.jobs.get(job.id)
    note = "all 3 trials failed (3 crash): the artifact has the default schedules"
    assert (found.state, found.reason) == (JobState.SUCCEEDED, note)
    assert found.result is not None
    assert found.result["verified"] is True and found.result["note"] == note
    assert found.artifact_digest in storage.blobs, "the defaults are delivered"


def test_a_model_that_cannot_be_tuned_fails_with_a_sentence(
    storage: Storage, tuner: TunerProcess
) -> None:
    digest = storage.models.add(b"no model", "bad").digest
    job = queue_job(storage, digest)
    assert work_once(tuner)
    failed = storage.jobs.get(job.id)
    assert failed.state is JobState.FAILED
    assert failed.error
    assert "\n" not in failed.error


def test_a_wrong_answer_of_the_whole_model_is_no_artifact(
    storage: Storage, job: Job, tuner: TunerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tilewright.service.jobs.evidence import verification

    monkeypatch.setattr(run_job, "tune_tasks", loop(lambda runner, token: False))
    zeros = [np.zeros((2, 4), np.float32)]
    monkeypatch.setattr(verification, "run_graph", lambda graph, inputs, **_: zeros)
    assert work_once(tuner)
    failed = storage.jobs.get(job.id)
    assert failed.state is JobState.FAILED
    assert "differs from its reference" in (failed.error or "")
    assert failed.artifact_digest is None


def test_a_job_that_is_cancelled_while_it_is_verified_ends(
    storage: Storage, job: Job, tuner: TunerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cancelled(*_: Any, **__: Any) -> Checked:
        storage.jobs.cancel(job.id)
        raise JobCancelled

    monkeypatch.setattr(run_job, "tune_tasks", loop(lambda runner, token: False))
    monkeypatch.setattr(LocalWorker, "check", cancelled)
    assert work_once(tuner)
    assert storage.jobs.get(job.id).state is JobState.CANCELLED


def test_what_the_api_resolved_is_what_is_tuned_for(
    storage: Storage, job: Job, tuner: TunerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`host` is the machine of the api, which may differ from the tuner's."""
    seen: list[Target] = []

    def note(runner: RemoteRunner, token: Any) -> bool:
        return False

    def spy(*arguments: Any, **more: Any) -> LocalWorker:
        seen.append(arguments[2])
        return LocalWorker(*arguments, **more)

    monkeypatch.setattr(run_job, "tune_tasks", loop(note))
    monkeypatch.setattr(job_run, "LeasedDevice", spy)
    target = resolve_target("x86-64-v2")
    storage.workloads.put_target(target.key, target.name, target.to_json())
    storage.jobs.create(job.model_digest, "host", target_key=target.key, options={"trials": 4})
    while work_once(tuner):
        pass
    assert [one.name for one in seen] == [resolve_target("host").name, "x86-64-v2"]


@pytest.mark.parametrize("sizes", [[2, 4], 2, "1..9", ["1..9", 4]])
def test_a_job_may_have_several_sizes(
    storage: Storage, tuner: TunerProcess, monkeypatch: pytest.MonkeyPatch, sizes: Any
) -> None:
    """Jobs of earlier releases have one."""
    proto = onnx.load_from_string(model_bytes())
    for value in (proto.graph.input[0], proto.graph.output[0]):
        value.type.tensor_type.shape.dim[0].dim_param = "rows"
    digest = storage.models.add(proto.SerializeToString(), "open").digest
    several = isinstance(sizes, list)
    options = {"trials": 4, "dims": {"rows": sizes}, "pad": several}
    job = queue_job(storage, digest, options=options)
    monkeypatch.setattr(run_job, "tune_tasks", loop(lambda runner, token: False))
    assert work_once(tuner)
    done = storage.jobs.get(job.id)
    assert (done.state, done.error) == (JobState.SUCCEEDED, None)
    assert done.result is not None and done.result["verified"]
    kept = storage.tuned_sizes.list(digest, Mode())
    assert kept == [{"rows": n} for n in (sizes if several else [sizes]) if isinstance(n, int)]
    assert done.artifact_digest is not None
    with tarfile.open(fileobj=io.BytesIO(storage.blobs.get(done.artifact_digest))) as tar:
        stored = tar.extractfile("manifest.json")
        assert stored is not None
        programs = json.load(stored)["programs"]
    ranged = "1..9" in (sizes if several else [sizes])
    assert programs[0]["program"].get("dimensions") == ({"rows": "1..9"} if ranged else None)
