"""The tuner process with a stand-in for the measuring: states, cancelling, giving back."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.service.tuners import loop, queue_job, running, work_once
from tests.waiting import until
from tilewright.compiler.targets.host import resolve_target
from tilewright.db.errors import StorageError, StorageKind
from tilewright.db.job_states import JobState
from tilewright.db.storage import Storage
from tilewright.db.stores.jobs import Job, JobStore
from tilewright.db.stores.leases import NewRequest, RequestState
from tilewright.service.cli.serving import _watch_parent
from tilewright.service.jobs.device.leased_device import LeasedDevice
from tilewright.service.jobs.device.remote_runner import RemoteRunner
from tilewright.service.jobs.pipeline import run_job
from tilewright.service.jobs.pipeline.job_run import JobReporter
from tilewright.service.jobs.process import tuner_process
from tilewright.service.jobs.process.job_lease import JobLease
from tilewright.service.jobs.process.tuner_process import TunerProcess
from tilewright.service.settings import Settings
from tilewright.tuner.cancel import CancelToken


def test_a_stopped_tuner_gives_its_jobs_back(
    storage: Storage, job: Job, tuner: TunerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    # of other tasks: the second one would wait for the first one's
    other = queue_job(storage, job.model_digest, threads=2, options={"trials": 4})
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


def test_a_tuner_ends_with_the_process_that_started_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not before: it checks its parent again and again."""
    told: queue.Queue[str] = queue.Queue()
    parents = [7]

    def parent() -> int:
        told.put("asked")
        return parents[-1]

    monkeypatch.setattr("tilewright.service.cli.serving.os.getppid", parent)
    _watch_parent(lambda: told.put("stopped"))
    assert [told.get(timeout=60) for _ in range(3)] == ["asked"] * 3
    parents.append(1)
    while told.get(timeout=60) != "stopped":
        pass


def test_a_tuner_works_on_as_many_jobs_as_it_is_set_to(
    settings: Settings,
    storage: Storage,
    job: Job,
    tuner: TunerProcess,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for _ in range(4):
        queue_job(storage, job.model_digest, options={"trials": 4})
    go = threading.Event()

    def wait(runner: RemoteRunner, token: Any) -> bool:
        go.wait(60)
        return False

    monkeypatch.setattr(run_job, "tune_tasks", loop(wait))
    two = settings.model_copy(update={"tuner_jobs": 2, "tuner_poll_seconds": 0.05})
    tuner = TunerProcess(two, storage, "two at a time")
    with running(tuner):
        until(lambda: len(tuner._runs) == 2)  # a job is running before the tuner has it in hand
        assert storage.jobs.counts()[JobState.RUNNING] == 2
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
    queue_job(storage, job.model_digest, options={"trials": 4})
    assert tuner.take() is None
    tuner.stop()
    until(lambda: storage.jobs.get(job.id).state is not JobState.RUNNING)


def stopped_within(
    storage: Storage, tuner: TunerProcess, monkeypatch: pytest.MonkeyPatch, stop: Callable[[], Job]
) -> Job:
    """The job after `stop`, once the tuner that measured for it has released it."""
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


def test_a_job_without_a_worker_keeps_no_other_one_waiting(
    storage: Storage, job: Job, tuner: TunerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the tuner that it would have blocked for ever."""
    pi = resolve_target("x86-64-v2")
    waiting = queue_job(storage, job.model_digest, pi.name, options={"trials": 4}, priority=9)
    monkeypatch.setattr(run_job, "tune_tasks", loop(lambda runner, token: False))
    with running(tuner):
        until(lambda: storage.jobs.get(job.id).state is JobState.SUCCEEDED)
        until(lambda: storage.jobs.get(waiting.id).state is JobState.WAITING)
        found = storage.jobs.get(waiting.id)
        assert "no worker runs target 'x86-64-v2'; start one" in (found.reason or "")
        storage.workers.register("pi", [pi.key], {})
        until(lambda: storage.jobs.get(waiting.id).state is JobState.SUCCEEDED)


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


def test_a_target_that_cannot_be_built_for_here_fails_the_job_and_not_the_tuner(
    storage: Storage, job: Job, tuner: TunerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = queue_job(storage, job.model_digest, "wasm32", options={"trials": 4, "seconds": None})
    monkeypatch.setattr(run_job, "tune_tasks", loop(lambda runner, token: False))
    monkeypatch.setattr(
        "tilewright.compiler.bindings.c_library.toolchain.importlib.util.find_spec",
        lambda name: None,
    )
    assert work_once(tuner) and work_once(tuner)
    failed = storage.jobs.get(other.id)
    assert failed.state is JobState.FAILED
    assert (failed.error or "").startswith("there is no C compiler for 'wasm32'")
    assert storage.jobs.get(job.id).state is JobState.SUCCEEDED


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ZeroDivisionError("oops"), "internal error: ZeroDivisionError: oops"),
        (OSError(28, "the disk is full"), "the tuner's machine: the disk is full"),
        (OSError("it is odd"), "the tuner's machine: it is odd"),
        (MemoryError(), "the tuner's machine: there is not enough memory"),
    ],
)
def test_a_bug_or_a_sick_machine_fails_the_job_and_not_the_tuner(
    storage: Storage,
    job: Job,
    tuner: TunerProcess,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    said: str,
) -> None:
    def broken(runner: RemoteRunner, token: Any) -> bool:
        raise error

    monkeypatch.setattr(run_job, "tune_tasks", loop(broken))
    assert work_once(tuner)
    assert storage.jobs.get(job.id).error == said


def test_the_memory_of_jobs_is_given_back_once_no_job_runs(
    storage: Storage, job: Job, tuner: TunerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_back: queue.Queue[JobState] = queue.Queue()

    def give() -> None:
        given_back.put(storage.jobs.get(job.id).state)

    monkeypatch.setattr(tuner_process, "release_memory", give)
    monkeypatch.setattr(run_job, "tune_tasks", loop(lambda runner, token: False))
    with running(tuner):
        assert given_back.get(timeout=60).final
    assert given_back.empty(), "once"


def test_a_tuner_that_comes_back_keeps_the_run_under_way(storage: Storage, job: Job) -> None:
    """The phase `choosing` withdraws only the requests of this life's search."""
    claimed = storage.jobs.claim("second life", 60)
    assert claimed is not None
    target = resolve_target("host")
    before = NewRequest("race", target.key, {"kind": "run"}, job_id=job.id)
    storage.leases.submit([before])
    tokens = CancelToken(), CancelToken()
    reporter = JobReporter(storage, JobLease(storage, claimed[0], 60), job)
    with LeasedDevice(storage, job.id, target, *tokens) as device:
        reporter.device = device
        reporter.phase("choosing")
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
    with JobLease(storage, claimed[0], 0.04) as hold:
        assert hold.interrupt.wait(30.0)
        assert hold.interrupt.reason == "paused"
    assert not answers
