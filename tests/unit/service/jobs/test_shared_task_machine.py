"""Jobs that want the same tasks, in any order of events: nothing is tuned twice, and no job is
stuck.

Each job is a thread that stops where a real one would measure or wait; the machine decides who goes
on. `tests/unit/db/test_open_task_machine.py` tests the ownership of tasks when tuners die.
"""

from __future__ import annotations

import queue
import tempfile
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.databases import lay_database
from tests.small_program import model_bytes
from tests.unit.service.jobs.test_shared_tasks import done, record
from tilewright.compiler.mode import Mode
from tilewright.compiler.targets.host import resolve_target
from tilewright.db.errors import StaleLeaseError
from tilewright.db.storage import Storage
from tilewright.service.jobs.knowledge.shared_tasks import SharedTasks
from tilewright.service.jobs.plan.model_tasks import tasks_of
from tilewright.service.jobs.plan.planning import ModelRequest, plan_model
from tilewright.service.jobs.process.interrupts import Interrupted, JobCancelled
from tilewright.service.jobs.process.job_lease import JobLease
from tilewright.service.options import JobBudget
from tilewright.service.settings import Settings
from tilewright.service.storage import open_storage
from tilewright.tuner.events import Finished
from tilewright.tuner.tasks import Task

TASKS = tasks_of(plan_model(ModelRequest(model_bytes(), Mode(resolve_target("x86-64-v3")))))
STOPPED = ("waits", "over")


class Job(SharedTasks):
    """`doing` is the reason of its stop: the tasks that it would measure, "waits" or "over"; `had`
    are those that it has measured. In the end it goes over all of its own once more."""

    def __init__(self, storage: Storage, hold: JobLease, wanted: list[Task]) -> None:
        super().__init__(storage, hold, lambda: None, lambda: 0.0)
        self._wanted = wanted
        self.had: frozenset[str] = frozenset()
        self.id = hold.claim.job_id
        self.doing: Any = ""
        self._told: queue.Queue[Any] = queue.Queue()
        self._may_go_on: queue.Queue[None] = queue.Queue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self.doing = self._told.get(timeout=60)

    def go_on(self) -> None:
        """Until it stops again."""
        self._may_go_on.put(None)
        self.doing = self._told.get(timeout=60)

    def _stop_at(self, what: Any) -> None:
        self._told.put(what)
        self._may_go_on.get(timeout=60)

    def _run(self) -> None:
        with suppress(StaleLeaseError, Interrupted, JobCancelled):  # it was stopped
            self.tune(self._wanted, JobBudget(trials=100), self._measure)
        self._told.put("over")

    def _measure(self, tasks: list[Task], budget: JobBudget) -> Finished:
        assert budget.trials > 0, "nobody has waited too long"
        names = frozenset(task.key.workload_key for task in tasks)
        self._stop_at(names)
        self.had |= names
        return done(tasks)

    def _look_again(self) -> None:
        self._stop_at("waits")
        self._hold.check()
        self._storage.jobs.tell(self._hold.claim, [])


class Jobs(RuleBasedStateMachine):
    """Up to three jobs of models that have workloads in common."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        folder = self.stack.enter_context(tempfile.TemporaryDirectory())
        lay_database(Path(folder))
        self.storage = open_storage(Settings(data_folder=Path(folder)))
        self.digest = self.storage.models.add(b"model", "m").digest
        self.jobs: list[Job] = []
        self.stopped: set[str] = set()
        self.known: set[str] = set()

    def teardown(self) -> None:
        """Everybody gets on to the end."""
        for _ in range(100):
            for job in self.jobs:
                if job.doing != "over":
                    job.go_on()
        assert [job.doing for job in self.jobs] == ["over"] * len(self.jobs)
        self.stack.pop_all().close()
        self.storage.close()

    @precondition(lambda self: len(self.jobs) < 3)
    @rule(wanted=st.sampled_from([TASKS, TASKS[:1], TASKS[1:]]))
    def begin(self, wanted: list[Task]) -> None:
        made = self.storage.jobs.create(self.digest, "host", "host-key")
        claimed = self.storage.jobs.claim("tuner", 600)
        assert claimed is not None and claimed[1].id == made.id
        hold = self.stack.enter_context(JobLease(self.storage, claimed[0], 600))
        self.jobs.append(Job(self.storage, hold, wanted))

    @precondition(lambda self: self.jobs)
    @rule(which=st.integers(0, 2), found=st.integers(0, 3))
    def go_on(self, which: int, found: int) -> None:
        """A job that measures finds records of the first tasks of its list, and all jobs adopt
        them."""
        job = self.jobs[which % len(self.jobs)]
        if job.doing == "over":
            return
        if job.doing not in STOPPED and job.id not in self.stopped:
            for task in [t for t in TASKS if t.key.workload_key in job.doing][:found]:
                record(self.storage, task)
                self.known.add(task.key.workload_key)
        job.go_on()

    @precondition(lambda self: self.jobs)
    @rule(which=st.integers(0, 2), how=st.sampled_from(["cancel", "pause"]))
    def stop(self, which: int, how: str) -> None:
        job = self.jobs[which % len(self.jobs)]
        if job.id not in self.stopped and job.doing != "over":
            getattr(self.storage.jobs, how)(job.id)
            self.stopped.add(job.id)

    @invariant()
    def nothing_is_tuned_by_two(self) -> None:
        live = [job for job in self.jobs if job.id not in self.stopped]
        tuned = [job.doing - self.known - job.had for job in live if job.doing not in STOPPED]
        assert sum(map(len, tuned)) == len(frozenset().union(*tuned))


def test_jobs_that_want_the_same_tune_nothing_twice_and_all_end() -> None:
    run_state_machine_as_test(
        Jobs,
        settings=settings(
            max_examples=15,
            stateful_step_count=20,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
