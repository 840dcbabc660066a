"""Jobs with the same tasks: one measures, and the others wait and adopt."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.small_program import model_bytes
from tests.unit.service.tuners import LocalWorker, running
from tests.waiting import until
from tilewright.compiler.mode import Mode
from tilewright.compiler.program.build import CODEGEN_VERSION
from tilewright.compiler.targets.host import resolve_target
from tilewright.db.job_states import JobState
from tilewright.db.storage import Storage
from tilewright.service.jobs.device.local_device import LocalDevice
from tilewright.service.jobs.knowledge import shared_tasks
from tilewright.service.jobs.knowledge.shared_tasks import SharedTasks
from tilewright.service.jobs.pipeline import job_run
from tilewright.service.jobs.plan.model_tasks import tasks_of
from tilewright.service.jobs.plan.planning import ModelRequest, plan_model
from tilewright.service.jobs.process import tuner_process
from tilewright.service.jobs.process.interrupts import Interrupted
from tilewright.service.jobs.process.job_lease import JobLease
from tilewright.service.jobs.process.tuner_process import TunerProcess
from tilewright.service.options import JobBudget
from tilewright.service.settings import Settings
from tilewright.tuner.events import Finished
from tilewright.tuner.measure.builder import ProcessBuilder
from tilewright.tuner.protocol.measurement import Measurement, Phase, Status, Trial, TuningRecord
from tilewright.tuner.tasks import Task

pytestmark = pytest.mark.usefixtures("references_here")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_tasks, "LOOK_SECONDS", 0.01)


@pytest.fixture
def tasks() -> list[Task]:
    """The tasks of a small model: two of them differ."""
    found = tasks_of(plan_model(ModelRequest(model_bytes(), Mode(resolve_target("x86-64-v3")))))
    assert len(found) >= 2
    return found


@pytest.fixture
def holds(storage: Storage) -> Iterator[list[JobLease]]:
    """Two jobs in the hands of tuners."""
    digest = storage.models.add(b"model", "m").digest
    with ExitStack() as stack:
        found = []
        for _ in range(2):
            storage.jobs.create(digest, "host", "host-key")
            claimed = storage.jobs.claim("tuner", 60)
            assert claimed is not None
            found.append(stack.enter_context(JobLease(storage, claimed[0], 60)))
        yield found


def share(storage: Storage, hold: JobLease, waits: list[str] | None = None) -> SharedTasks:
    told = [] if waits is None else waits
    return SharedTasks(storage, hold, lambda: told.append(hold.claim.job_id))


def done(tasks: list[Task]) -> Finished:
    return Finished((), (None,) * len(tasks), 0, 0.1)


def record(storage: Storage, task: Task) -> None:
    ok = Measurement(Status.OK, samples_seconds=(1e-6,), max_error=0.0, tolerance=1e-4, checks=5)
    schedule = task.space.default()
    storage.records.add_record(TuningRecord(task.key, schedule, ok, "t", CODEGEN_VERSION, "0"))


def test_what_another_job_tunes_is_put_off_and_adopted(
    storage: Storage, tasks: list[Task], holds: list[JobLease]
) -> None:
    first, second = holds
    held, free = tasks[:1], tasks[1:]
    asked: list[list[str]] = []
    waits: list[str] = []
    waiting = threading.Event()

    def tune_second(some: list[Task], budget: JobBudget) -> Finished:
        asked.append([task.name for task in some])
        if len(some) < len(tasks):
            assert budget.trials < 100 and budget.target_ms is None, "a part of the budget"
            for task in some:
                record(storage, task)
            waiting.set()
        return done(some)

    def tune_first(some: list[Task], budget: JobBudget) -> Finished:
        other = share(storage, second, waits)
        budget = JobBudget(trials=100, target_ms=1.0)
        thread = threading.Thread(target=other.tune, args=(tasks, budget, tune_second))
        thread.start()
        threads.append(thread)
        assert waiting.wait(60)
        until(lambda: bool(waits))
        for task in some:
            record(storage, task)
        return done(some)

    threads: list[threading.Thread] = []
    share(storage, first).tune(held, JobBudget(trials=100), tune_first)
    threads[0].join(60)
    assert asked == [[task.name for task in free], [task.name for task in tasks]]
    assert waits == [second.claim.job_id]


def test_a_job_takes_over_when_the_other_one_ends(
    storage: Storage, tasks: list[Task], holds: list[JobLease]
) -> None:
    first, second = holds

    def tune(some: list[Task], budget: JobBudget) -> Finished:
        asked.append(len(some))
        return done(some)

    asked: list[int] = []
    mine = [shared_tasks._open_task(task) for task in tasks]
    storage.open_tasks.take(first.claim, mine)
    waits: list[str] = []
    job = share(storage, second, waits)
    thread = threading.Thread(target=job.tune, args=(tasks, JobBudget(trials=100), tune))
    thread.start()
    until(lambda: bool(waits))
    assert asked == []
    storage.jobs.cancel(first.claim.job_id)
    thread.join(60)
    assert asked == [len(tasks)]


def test_a_job_waits_no_longer_than_its_time(
    storage: Storage, tasks: list[Task], holds: list[JobLease]
) -> None:
    """It compares the best known schedules, and measures no more."""
    first, second = holds
    storage.open_tasks.take(first.claim, [shared_tasks._open_task(task) for task in tasks])
    now = iter(range(1000))
    job = SharedTasks(storage, second, lambda: None, lambda: float(next(now)))
    budgets: list[JobBudget] = []

    def tune(some: list[Task], budget: JobBudget) -> Finished:
        budgets.append(budget)
        return done(some)

    job.tune(tasks, JobBudget(trials=100, seconds=5.0), tune)
    assert [budget.trials for budget in budgets] == [0]


def test_a_job_waits_until_others_spent_what_it_might_have(
    storage: Storage, tasks: list[Task], holds: list[JobLease]
) -> None:
    first, second = holds
    storage.open_tasks.take(first.claim, [shared_tasks._open_task(task) for task in tasks])
    budgets: list[JobBudget] = []

    def measure() -> None:
        trials = [
            Trial(
                f"t{number}",
                tasks[0].key,
                tasks[0].space.default(),
                Measurement(Status.OK, samples_seconds=(1e-6,)),
                Phase.SCREEN,
                first.claim.job_id,
            )
            for number in range(6)
        ]
        storage.records.add_trials(trials)

    def tune(some: list[Task], budget: JobBudget) -> Finished:
        budgets.append(budget)
        return done(some)

    SharedTasks(storage, second, measure).tune(tasks, JobBudget(trials=3), tune)
    assert [budget.trials for budget in budgets] == [0]


def test_a_job_measures_itself_what_another_does_not_get_on_with(
    storage: Storage, tasks: list[Task], holds: list[JobLease]
) -> None:
    """Its only worker may be in quarantine, while this job's are well."""
    first, second = holds
    held = [shared_tasks._open_task(task) for task in tasks]
    storage.open_tasks.take(first.claim, held)
    now = itertools.count(0.0, 60.0)
    job = SharedTasks(storage, second, lambda: None, lambda: next(now))
    budgets: list[JobBudget] = []

    def tune(some: list[Task], budget: JobBudget) -> Finished:
        budgets.append(budget)
        return done(some)

    job.tune(tasks, JobBudget(trials=3), tune)
    assert budgets == [JobBudget(trials=3)]
    assert next(now) >= shared_tasks.QUIET_SECONDS
    assert not storage.open_tasks.take(second.claim, held), "they are still the other's"


def test_a_job_that_waits_for_another_can_be_stopped(
    storage: Storage, tasks: list[Task], holds: list[JobLease]
) -> None:
    first, second = holds
    storage.open_tasks.take(first.claim, [shared_tasks._open_task(task) for task in tasks])
    job = SharedTasks(storage, second, lambda: second.interrupt.cancel("shutdown"))
    with pytest.raises(Interrupted, match="shutdown"):
        job.tune(tasks, JobBudget(trials=3), lambda some, budget: done(some))


def test_the_same_model_twice_is_measured_once(
    settings: Settings, storage: Storage, builder: ProcessBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By two tuners at the same time, with real builds and runs; they plan and verify in this
    process."""
    for limits in ("planning_limits", "verification_limits"):
        monkeypatch.setattr(tuner_process, limits, lambda settings: None)

    class Measured(LocalWorker):
        """With a runner of its own, as each worker has."""

        def __enter__(self) -> Measured:
            self.here = LocalDevice()
            self.here.__enter__()
            return self

        def __exit__(self, *error: Any) -> None:
            self.here.__exit__(*error)

        @property
        def runner(self) -> Any:
            return self.here.runner

        @property
        def trusted(self) -> bool:
            return True

    monkeypatch.setattr(job_run, "LeasedDevice", Measured)
    target = resolve_target("host")
    storage.workloads.put_target(target.key, target.name, target.to_json())
    storage.workers.register("here", [target.key], {})
    digest = storage.models.add(model_bytes(), "mlp").digest
    made = [
        storage.jobs.create(
            digest,
            "host",
            target_key=target.key,
            options={"trials": 12, "seconds": None, "stop_gain": 0.0, "seed": seed},
        )
        for seed in (1, 2)
    ]
    monkeypatch.setattr(TunerProcess, "builder", builder)
    one = settings.model_copy(update={"tuner_jobs": 1, "tuner_poll_seconds": 0.05})
    tuners = [TunerProcess(one, storage, name) for name in ("one", "two")]
    with running(tuners[0]), running(tuners[1]):
        until(lambda: all(storage.jobs.get(job.id).state.final for job in made), 300.0)
    jobs = [storage.jobs.get(job.id) for job in made]
    assert [(job.state, job.error, job.reason) for job in jobs] == [
        (JobState.SUCCEEDED, None, None)
    ] * 2
    keys = {task.workload_key for job in made for task in storage.tasks.list(job.id)}
    counted: Counter[tuple[str, str]] = Counter()
    for task in tasks_of(plan_model(ModelRequest(model_bytes(), Mode()))):
        assert task.key.workload_key in keys
        for trial in storage.records.trials(task.key):
            if trial.phase is Phase.SCREEN:
                counted[trial.key.workload_key, trial.schedule.digest] += 1
    assert counted and max(counted.values()) == 1, "no candidate is measured twice"
