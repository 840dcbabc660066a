"""The tuner process with a stand-in for the measuring: states, cancelling, giving back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from compiler.choices import RULE
from db.job_states import JobState
from db.storage import Storage
from db.stores.jobs import Job
from service.jobs import tuner_process
from service.jobs.graph_choice import keep_plan
from service.jobs.planning import ModelRequest, plan_model
from service.jobs.remote_runner import RemoteRunner
from service.jobs.tuner_process import TunerProcess
from service.settings import Settings
from tuner.events import Finished, Started, TaskStatus
from tuner.measure.measurement import Status


def model_bytes() -> bytes:
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], "fc")],
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 4])],
        [numpy_helper.from_array(np.ones((4, 4), np.float32), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    data: bytes = model.SerializeToString()
    return data


@pytest.fixture
def job(storage: Storage) -> Job:
    digest = storage.models.add(model_bytes(), "tiny").digest
    return storage.jobs.create(digest, "host", options={"trials": 4, "seconds": None})


@pytest.fixture
def tuner(settings: Settings, storage: Storage, monkeypatch: pytest.MonkeyPatch) -> TunerProcess:
    fast = settings.model_copy(update={"job_lease_seconds": 0.4})
    process = TunerProcess(fast, storage, "test")
    monkeypatch.setattr(TunerProcess, "builder", property(lambda self: None))
    return process


def loop(body: Callable[[RemoteRunner, Any], bool]) -> Callable[..., Finished]:
    """A tune loop that only reports; `body` says whether it was cancelled."""

    def tune(
        tasks: Any, storage: Any, builder: Any, runner: RemoteRunner, budget: Any, **options: Any
    ) -> Finished:
        statuses = tuple(TaskStatus(t.name, t.key, t.count, from_store=True) for t in tasks)
        options["on_event"](Started(statuses, 0))
        cancelled = body(runner, options["token"])
        finished = Finished(statuses, (None,) * len(statuses), 0, 0.1, cancelled, "")
        options["on_event"](finished)
        return finished

    return tune


def test_a_job_without_trials_becomes_an_artifact(
    storage: Storage, job: Job, tuner: TunerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuner_process, "tune_tasks", loop(lambda runner, token: False))
    assert tuner.work_once()
    done = storage.jobs.get(job.id)
    assert (done.state, done.error) == (JobState.SUCCEEDED, None)
    assert done.artifact_digest in storage.blobs
    assert done.result is not None
    assert done.result["verified"] is True and done.result["unverified"] == []
    assert done.result["largest_error"] < 1e-5
    kinds = [event.kind for event in storage.events.since(job.id)]
    assert kinds[0] == "state"
    assert "progress" in kinds
    assert storage.workloads.workload(storage.tasks.list(job.id)[0].workload_key)
    assert storage.plans.list(job.model_digest)
    assert not tuner.work_once()


def test_a_job_tunes_the_plan_that_is_known(
    storage: Storage, job: Job, tuner: TunerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    decision = {"choice": RULE.to_json(), "name": "by rule", "reason": "nothing is faster"}
    keep_plan(plan_model(ModelRequest(model_bytes())), storage, 1.0, decision)
    monkeypatch.setattr(tuner_process, "tune_tasks", loop(lambda runner, token: False))
    assert tuner.work_once()
    done = storage.jobs.get(job.id)
    assert done.result is not None and done.result["plan"] == decision
    assert storage.records.count_trials(job.id)[Status.OK] == 0


def test_the_same_artifact_has_the_same_digest(
    storage: Storage, job: Job, tuner: TunerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuner_process, "tune_tasks", loop(lambda runner, token: False))
    again = storage.jobs.create(job.model_digest, "host", options={"trials": 4})
    assert tuner.work_once()
    assert tuner.work_once()
    first, second = (storage.jobs.get(i).artifact_digest for i in (job.id, again.id))
    assert first == second


def test_a_cancelled_job_stops_within_a_renewal(
    storage: Storage, job: Job, tuner: TunerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait(runner: RemoteRunner, token: Any) -> bool:
        storage.jobs.request_cancel(job.id)
        return bool(token.wait(10))

    monkeypatch.setattr(tuner_process, "tune_tasks", loop(wait))
    assert tuner.work_once()
    assert storage.jobs.get(job.id).state is JobState.CANCELLED


def test_a_stopped_tuner_gives_its_job_back(
    storage: Storage, job: Job, tuner: TunerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(runner: RemoteRunner, token: Any) -> bool:
        threading.Timer(0.1, tuner.stop).start()
        while True:
            runner.poll(0.05)

    monkeypatch.setattr(tuner_process, "tune_tasks", loop(stop))
    assert tuner.work_once()
    back = storage.jobs.get(job.id)
    assert (back.state, back.attempts) == (JobState.QUEUED, 0)


def test_a_tuner_lets_go_of_a_job_that_another_one_has(
    storage: Storage, job: Job, tuner: TunerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def steal(runner: RemoteRunner, token: Any) -> bool:
        later = type(storage.jobs)(storage.engine, lambda: time.time() + 1000)
        assert later.claim("thief", 1000) is not None
        while True:
            runner.poll(0.05)

    monkeypatch.setattr(tuner_process, "tune_tasks", loop(steal))
    assert tuner.work_once()
    taken = storage.jobs.get(job.id)
    assert (taken.state, taken.tuner) == (JobState.RUNNING, "thief")


def test_a_model_that_cannot_be_tuned_fails_with_a_sentence(
    storage: Storage, tuner: TunerProcess
) -> None:
    digest = storage.models.add(b"no model", "bad").digest
    job = storage.jobs.create(digest, "host")
    assert tuner.work_once()
    failed = storage.jobs.get(job.id)
    assert failed.state is JobState.FAILED
    assert failed.error
    assert "\n" not in failed.error


def test_a_type_that_the_target_lacks_fails_the_job_and_not_the_tuner(
    storage: Storage, job: Job, tuner: TunerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LLVM aborts on a bfloat16 product for WebAssembly, and its process with it."""
    ports = [
        helper.make_tensor_value_info(name, TensorProto.BFLOAT16, [4, 4])
        for name in ("a", "b", "y")
    ]
    product = helper.make_node("MatMul", ["a", "b"], ["y"], "fc")
    graph = helper.make_graph([product], "narrow", ports[:2], ports[2:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    digest = storage.models.add(model.SerializeToString(), "narrow").digest
    narrow = storage.jobs.create(digest, "wasm32", options={"trials": 4, "seconds": None})
    monkeypatch.setattr(tuner_process, "tune_tasks", loop(lambda runner, token: False))
    assert tuner.work_once() and tuner.work_once()
    failed = storage.jobs.get(narrow.id)
    assert failed.state is JobState.FAILED
    assert failed.error == (
        "the fused workload of matmul: target 'wasm32' cannot compute in bfloat16"
    )
    assert storage.jobs.get(job.id).state is JobState.SUCCEEDED


def test_a_bug_fails_the_job_and_not_the_tuner(
    storage: Storage, job: Job, tuner: TunerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(runner: RemoteRunner, token: Any) -> bool:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(tuner_process, "tune_tasks", loop(broken))
    assert tuner.work_once()
    assert storage.jobs.get(job.id).error == "internal error: ZeroDivisionError: oops"


def test_a_wrong_answer_of_the_whole_model_is_no_artifact(
    storage: Storage, job: Job, tuner: TunerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    from service.jobs import verification

    monkeypatch.setattr(tuner_process, "tune_tasks", loop(lambda runner, token: False))
    zeros = [np.zeros((2, 4), np.float32)]
    monkeypatch.setattr(verification, "run_graph", lambda graph, inputs, **_: zeros)
    assert tuner.work_once()
    failed = storage.jobs.get(job.id)
    assert failed.state is JobState.FAILED
    assert "differs from its reference" in (failed.error or "")
    assert failed.artifact_digest is None
