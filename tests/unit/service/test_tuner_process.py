"""The tuner process with a stand-in for the measuring: states, cancelling, giving back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from compiler.choices import RULE
from compiler.target import Target, resolve_target
from db.errors import StorageError, StorageKind
from db.job_states import JobState
from db.storage import Storage
from db.stores.jobs import Job, JobStore
from db.stores.leases import NewRequest, RequestState
from service.jobs import job_run, run_job
from service.jobs.device import Checked
from service.jobs.hold import Hold
from service.jobs.job_run import JobReporter
from service.jobs.known_plan import keep_choice
from service.jobs.leased_device import LeasedDevice
from service.jobs.local_device import LocalDevice
from service.jobs.planning import ModelRequest, plan_model
from service.jobs.remote_runner import RemoteRunner
from service.jobs.run_queue import JobCancelled
from service.jobs.tuner_process import TunerProcess
from service.settings import Settings
from tests.unit.tuner.fakes import FakeBuilder
from tuner.cancel import CancelToken
from tuner.events import Ended, Finished, Started, TaskSnapshot
from tuner.measure.measurement import Measurement, Phase, RecordKey, Status, Trial
from tuner.measure.model_runs import Race
from tuner.measure.wire import Case, MeasureRequest


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
    monkeypatch.setattr(TunerProcess, "builder", FakeBuilder())
    monkeypatch.setattr(job_run, "LeasedDevice", LocalWorker)
    return process


def work_once(tuner: TunerProcess) -> bool:
    """Take a job, if there is one, and work on it here to its end."""
    run = tuner.take()
    if run is not None:
        run.run()
    return run is not None


class LocalWorker(LeasedDevice):
    """A worker on this machine, without the queue between: what runs whole, runs here."""

    here = LocalDevice()

    def runs(self, target: Target) -> bool:
        return self.here.runs(target)

    def check(self, *arguments: Any, **more: Any) -> Checked:
        return self.here.check(*arguments, **more)

    def race(self, *arguments: Any, **more: Any) -> Race:
        return self.here.race(*arguments, **more)


def loop(body: Callable[[RemoteRunner, Any], bool]) -> Callable[..., Finished]:
    """A tune loop that only reports; `body` says whether it was cancelled."""

    def tune(
        tasks: Any, storage: Any, builder: Any, device: LeasedDevice, budget: Any, **options: Any
    ) -> Finished:
        statuses = tuple(TaskSnapshot(t.name, t.key, t.count, from_store=True) for t in tasks)
        options["on_event"](Started(statuses, 0))
        cancelled = body(device.runner, options["token"])
        ended = Ended.CANCELLED if cancelled else Ended.TRIALS
        finished = Finished(statuses, (None,) * len(statuses), 0, 0.1, ended=ended)
        options["on_event"](finished)
        return finished

    return tune


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
    kinds = [event.kind for event in storage.events.since(job.id)]
    assert kinds[0] == "state"
    assert "progress" in kinds
    assert storage.workloads.workload(storage.tasks.list(job.id)[0].workload_key)
    assert storage.plans.list(job.model_digest)
    assert not work_once(tuner)


def test_a_job_tunes_the_plan_that_is_known(
    storage: Storage, job: Job, tuner: TunerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    decision = {"choice": RULE.to_json(), "name": "by rule", "reason": "nothing is faster"}
    planned = replace(plan_model(ModelRequest(model_bytes())), decision=decision)
    keep_choice(planned, storage, 1.0, job_id="", worker=None)
    monkeypatch.setattr(run_job, "tune_tasks", loop(lambda runner, token: False))
    assert work_once(tuner)
    done = storage.jobs.get(job.id)
    assert done.result is not None and done.result["plan"] == decision
    assert storage.records.count_trials(job.id)[Status.OK] == 0


def test_the_same_artifact_has_the_same_digest(
    storage: Storage, job: Job, tuner: TunerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_job, "tune_tasks", loop(lambda runner, token: False))
    again = storage.jobs.create(job.model_digest, "host", options={"trials": 4})
    assert work_once(tuner)
    assert work_once(tuner)
    first, second = (storage.jobs.get(i).artifact_digest for i in (job.id, again.id))
    assert first == second


@contextmanager
def running(tuner: TunerProcess) -> Iterator[None]:
    """The tuner in a thread, as its process runs it."""
    thread = threading.Thread(target=tuner.run)
    thread.start()
    try:
        yield
    finally:
        tuner.stop()
        thread.join(60)
        assert not thread.is_alive()


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for something that another thread does."""
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, "it did not happen"
        time.sleep(0.01)


def test_a_stopped_tuner_gives_its_jobs_back(
    storage: Storage, job: Job, tuner: TunerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    # of other tasks: the second one would wait for the first one's
    other = storage.jobs.create(job.model_digest, "host", threads=2, options={"trials": 4})
    under_way = threading.Barrier(3)

    def wait(runner: RemoteRunner, token: Any) -> bool:
        under_way.wait(60)
        while True:
            runner.poll(0.05)

    monkeypatch.setattr(run_job, "tune_tasks", loop(wait))
    with running(tuner):
        under_way.wait(60)
    for each in (job, other):
        back = storage.jobs.get(each.id)
        assert (back.state, back.attempts) == (JobState.QUEUED, 0)


def test_a_tuner_works_on_as_many_jobs_as_it_is_set_to(
    settings: Settings,
    storage: Storage,
    job: Job,
    tuner: TunerProcess,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for _ in range(4):
        storage.jobs.create(job.model_digest, "host", options={"trials": 4})
    go = threading.Event()

    def wait(runner: RemoteRunner, token: Any) -> bool:
        go.wait(60)
        return False

    monkeypatch.setattr(run_job, "tune_tasks", loop(wait))
    two = settings.model_copy(update={"tuner_jobs": 2, "tuner_poll_seconds": 0.05})
    tuner = TunerProcess(two, storage, "two at a time")
    with running(tuner):
        until(lambda: storage.jobs.counts()[JobState.RUNNING] == 2)
        assert tuner.take() is None
        go.set()
        until(lambda: storage.jobs.counts()[JobState.SUCCEEDED] == 5)
    digests = {each.artifact_digest for each in storage.jobs.list()}
    assert len(digests) == 1, "what was built at the same time is what is built alone"


def test_a_job_that_may_kill_its_tuner_has_it_for_itself(
    storage: Storage, job: Job, tuner: TunerProcess
) -> None:
    for ago in (1000, 500):
        past = JobStore(storage.engine, lambda ago=ago: time.time() - ago)
        assert past.claim("lost", 1) is not None
    suspect = tuner.take()
    assert suspect is not None and suspect.job.attempts == 3
    tuner._start(suspect)
    storage.jobs.create(job.model_digest, "host", options={"trials": 4})
    assert tuner.take() is None
    tuner.stop()
    until(lambda: storage.jobs.get(job.id).state is not JobState.RUNNING)


def stopped_within(
    storage: Storage, tuner: TunerProcess, monkeypatch: pytest.MonkeyPatch, stop: Callable[[], Job]
) -> Job:
    """The job as `stop` left it once its tuner, which was measuring for it, has let go of it."""
    measuring, let_go = threading.Event(), threading.Event()

    def measure(runner: RemoteRunner, token: Any) -> bool:
        measuring.set()
        try:
            while not token.cancelled:
                runner.poll(0.05)
        finally:
            let_go.set()
        return True

    monkeypatch.setattr(run_job, "tune_tasks", loop(measure))
    with running(tuner):
        assert measuring.wait(60)
        stopped = stop()
        began = time.monotonic()
        assert let_go.wait(60)
        seconds = time.monotonic() - began
        until(lambda: not tuner._runs)
    assert seconds < 2.0, "the tuner lets go of what it measures within two seconds"
    return stopped


def test_a_job_is_cancelled_at_once(
    storage: Storage, job: Job, tuner: TunerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = stopped_within(storage, tuner, monkeypatch, lambda: storage.jobs.cancel(job.id))
    assert stopped.state is JobState.CANCELLED
    assert storage.jobs.get(job.id) == stopped


def test_a_job_is_paused_at_once_and_goes_on(
    storage: Storage, job: Job, tuner: TunerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = stopped_within(storage, tuner, monkeypatch, lambda: storage.jobs.pause(job.id))
    assert stopped.state is JobState.PAUSED
    assert storage.jobs.get(job.id) == stopped
    storage.jobs.resume(job.id)
    monkeypatch.setattr(run_job, "tune_tasks", loop(lambda runner, token: False))
    again = TunerProcess(tuner._settings, storage, "again")
    assert work_once(again)
    assert storage.jobs.get(job.id).state is JobState.SUCCEEDED


# ---- jobs without a worker


def test_a_job_without_a_worker_keeps_no_other_one_waiting(
    storage: Storage, job: Job, tuner: TunerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the tuner that it would have blocked for ever."""
    pi = resolve_target("x86-64-v2")
    storage.workloads.put_target(pi.key, pi.name, pi.to_json())
    waiting = storage.jobs.create(
        job.model_digest, pi.name, target_key=pi.key, options={"trials": 4}, priority=9
    )
    monkeypatch.setattr(run_job, "tune_tasks", loop(lambda runner, token: False))
    with running(tuner):
        until(lambda: storage.jobs.get(job.id).state is JobState.SUCCEEDED)
        until(lambda: storage.jobs.get(waiting.id).state is JobState.WAITING)
        found = storage.jobs.get(waiting.id)
        assert "no worker for target 'x86-64-v2' is alive" in (found.reason or "")
        storage.workers.register("pi", [pi.key], {})
        until(lambda: storage.jobs.get(waiting.id).state is JobState.SUCCEEDED)


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
    storage.workloads.put_target(target.key, target.name, target.to_json())
    storage.jobs.cancel(job.id)
    worker = storage.workers.register("desk", [target.key], {})
    mine = storage.jobs.create(
        job.model_digest, "host", target_key=target.key, options={"trials": 4}
    )

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
    storage.workloads.put_target(target.key, target.name, target.to_json())
    vain = storage.jobs.create(
        job.model_digest,
        "host",
        target_key=target.key,
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


def test_a_job_whose_every_trial_failed_is_incomplete(
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
    assert (found.state, found.reason) == (JobState.INCOMPLETE, "all 3 trials failed: 3 crash")
    assert found.artifact_digest in storage.blobs, "the defaults are delivered"


def test_a_tuner_lets_go_of_a_job_that_another_one_has(
    storage: Storage, job: Job, tuner: TunerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def steal(runner: RemoteRunner, token: Any) -> bool:
        later = type(storage.jobs)(storage.engine, lambda: time.time() + 1000)
        assert later.claim("thief", 1000) is not None
        while True:
            runner.poll(0.05)

    monkeypatch.setattr(run_job, "tune_tasks", loop(steal))
    assert work_once(tuner)
    taken = storage.jobs.get(job.id)
    assert (taken.state, taken.tuner) == (JobState.RUNNING, "thief")


def test_a_model_that_cannot_be_tuned_fails_with_a_sentence(
    storage: Storage, tuner: TunerProcess
) -> None:
    digest = storage.models.add(b"no model", "bad").digest
    job = storage.jobs.create(digest, "host")
    assert work_once(tuner)
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
    monkeypatch.setattr(run_job, "tune_tasks", loop(lambda runner, token: False))
    assert work_once(tuner) and work_once(tuner)
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

    monkeypatch.setattr(run_job, "tune_tasks", loop(broken))
    assert work_once(tuner)
    assert storage.jobs.get(job.id).error == "internal error: ZeroDivisionError: oops"


def test_a_wrong_answer_of_the_whole_model_is_no_artifact(
    storage: Storage, job: Job, tuner: TunerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    from service.jobs import verification

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
    """`host` is the machine of the api, and may be another than the tuner's."""
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


@pytest.mark.parametrize("sizes", [[2, 4], 2])
def test_a_job_may_have_several_sizes(
    storage: Storage, tuner: TunerProcess, monkeypatch: pytest.MonkeyPatch, sizes: Any
) -> None:
    """Jobs of earlier releases have one."""
    proto = onnx.load_from_string(model_bytes())
    for value in (proto.graph.input[0], proto.graph.output[0]):
        value.type.tensor_type.shape.dim[0].dim_param = "rows"
    digest = storage.models.add(proto.SerializeToString(), "open").digest
    options = {"trials": 4, "dims": {"rows": sizes}, "pad": isinstance(sizes, list)}
    job = storage.jobs.create(digest, "host", options=options)
    monkeypatch.setattr(run_job, "tune_tasks", loop(lambda runner, token: False))
    assert work_once(tuner)
    done = storage.jobs.get(job.id)
    assert (done.state, done.error) == (JobState.SUCCEEDED, None)
    assert done.result is not None and done.result["verified"]
    assert len(done.result["plans"]) == (2 if isinstance(sizes, list) else 1)


def test_a_tuner_that_comes_back_keeps_the_run_under_way(storage: Storage, job: Job) -> None:
    """Settling withdraws what this life's search asked for, and nothing of its predecessor's."""
    claimed = storage.jobs.claim("second life", 60)
    assert claimed is not None
    target = resolve_target("host")
    before = NewRequest("race", target.key, {"kind": "run"}, job_id=job.id)
    storage.leases.submit([before])
    tokens = CancelToken(), CancelToken()
    reporter = JobReporter(storage, Hold(storage, claimed[0], 60), job)
    with LeasedDevice(storage, job.id, target, *tokens) as device:
        reporter.device = device
        reporter.phase("settling")
    (status,) = storage.leases.of_job(job.id)
    assert status.state is RequestState.QUEUED


def test_a_hold_asks_again_why_it_is_lost_when_the_database_did_not_answer(
    storage: Storage, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    claimed = storage.jobs.claim("first", 60)
    assert claimed is not None
    storage.jobs.pause(job.id)
    answers = [StorageError("the database is locked", StorageKind.LOCKED)]
    get = storage.jobs.get

    def flaky(job_id: str) -> Job:
        if answers:
            raise answers.pop()
        return get(job_id)

    monkeypatch.setattr(storage.jobs, "get", flaky)
    with Hold(storage, claimed[0], 0.04) as hold:
        assert hold.interrupt.wait(30.0)
        assert hold.interrupt.reason == "paused"
    assert not answers
