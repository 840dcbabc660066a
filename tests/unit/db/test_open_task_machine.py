"""The tuners' jobs and tasks, against a simple model: jobs come, go, die, are taken over, stopped
and resumed.

In the model a job has the tasks that it took under its present claim, and nothing else.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from tests.examples import examples
from tests.unit.db.conftest import Clock
from tilewright.db.engine import writing
from tilewright.db.errors import StaleLeaseError, StateError
from tilewright.db.models import Base, OpenTaskRow
from tilewright.db.stores.blob_folder import BlobFolder
from tilewright.db.stores.blobs import BlobStore
from tilewright.db.stores.jobs import JobClaim, JobStore
from tilewright.db.stores.models import ModelStore
from tilewright.db.stores.open_tasks import OpenTask, OpenTaskStore
from tilewright.db.stores.statements import table_of

LEASE = 30.0
TASKS = tuple(
    OpenTask(workload * 64, "t" * 64, 1, "fast", version)
    for workload, version in ("a1", "a2", "b1")
)
_rows = table_of(OpenTaskRow)


@dataclass
class Known:
    """The model's state of a job."""

    id: str
    state: str = "queued"  # held, paused, ended
    deadline: float = 0.0
    claims: list[JobClaim] = field(default_factory=list)
    has: set[OpenTask] = field(default_factory=set)

    def live(self, now: float) -> bool:
        return self.state == "held" and self.deadline > now


class OpenTasks(RuleBasedStateMachine):
    """Jobs of one database that want the same tasks."""

    engine: sa.Engine

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.jobs: list[Known] = []
        self.folder = Path(tempfile.mkdtemp(prefix="tilewright-tasks-"))
        with writing(self.engine) as connection:
            for table in reversed(Base.metadata.sorted_tables):
                connection.execute(sa.delete(table))
        blobs = BlobStore(self.engine, BlobFolder(self.folder), self.clock)
        self.digest = ModelStore(self.engine, blobs, self.clock).add(b"model", "m").digest
        self.store = JobStore(self.engine, self.clock)
        self.tasks = OpenTaskStore(self.engine, self.clock)

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    @initialize()
    def two_jobs(self) -> None:
        for _ in range(2):
            self.clock.advance(1.0)
            self.jobs.append(Known(self.store.create(self.digest, "host", "host-key").id))
            self.claim()

    def claim(self) -> None:
        now = self.clock()
        free = {
            job.id
            for job in self.jobs
            if job.state == "queued" or (job.state == "held" and job.deadline <= now)
        }
        found = self.store.claim("tuner", LEASE, max_attempts=10**6, stall_seconds=1e12)
        assert (found is None) == (not free)
        if found is not None:
            assert found[1].id in free, "a free one, whichever"
            job = next(job for job in self.jobs if job.id == found[1].id)
            job.state, job.deadline, job.has = "held", now + LEASE, set()
            job.claims.append(found[0])

    def drawn(self, data: Any) -> tuple[Known, JobClaim, bool]:
        """A job, a claim that a tuner has of it or had, and whether it holds."""
        job = data.draw(st.sampled_from([job for job in self.jobs if job.claims]))
        claim = data.draw(st.sampled_from(job.claims))
        return job, claim, job.state == "held" and claim == job.claims[-1]

    @rule(data=st.data(), wanted=st.lists(st.sampled_from(TASKS), min_size=1, max_size=4))
    def take(self, data: Any, wanted: list[OpenTask]) -> None:
        job, claim, holds = self.drawn(data)
        if not holds:
            with pytest.raises(StaleLeaseError):
                self.tasks.take(claim, wanted)
            return
        self.took(job, wanted)

    @rule(which=st.integers(0, 1), wanted=st.sampled_from([TASKS, TASKS[:1]]))
    def take_as_the_holder(self, which: int, wanted: Sequence[OpenTask]) -> None:
        held = [job for job in self.jobs if job.state == "held"]
        if held:
            self.took(held[which % len(held)], wanted)

    def took(self, job: Known, wanted: Sequence[OpenTask]) -> None:
        claim, now = job.claims[-1], self.clock()
        others = [other for other in self.jobs if other is not job]
        theirs = {task for other in others if other.live(now) for task in other.has}
        mine = self.tasks.take(claim, wanted)
        assert mine == set(wanted) - theirs
        for other in others:
            other.has -= mine
        job.has |= mine

    @rule(data=st.data())
    def release(self, data: Any) -> None:
        job, claim, _ = self.drawn(data)
        self.tasks.release(claim)
        if claim == job.claims[-1]:
            job.has = set()

    @rule(data=st.data(), what=st.sampled_from(["renew", "release"]))
    def hold(self, data: Any, what: str) -> None:
        """A tuner goes on with a job, or gives it back."""
        job, claim, holds = self.drawn(data)
        try:
            self.store.renew(claim, LEASE) if what == "renew" else self.store.release(claim)
        except StaleLeaseError:
            assert not holds
            return
        assert holds
        if what == "renew":
            job.deadline = self.clock() + LEASE
        else:
            job.state = "queued"

    @rule(data=st.data(), what=st.sampled_from(["pause", "resume", "resume", "cancel"]))
    def stop(self, data: Any, what: str) -> None:
        job = data.draw(st.sampled_from(self.jobs))
        if what == "cancel":  # there is always work
            self.clock.advance(1.0)
            self.jobs.append(Known(self.store.create(self.digest, "host", "host-key").id))
        try:
            getattr(self.store, what)(job.id)
        except StateError:
            assert job.state == "ended"
            return
        match what:
            case "resume" if job.state == "paused":
                job.state = "queued"
            case "pause" if job.state != "ended":
                job.state = "paused"
            case "cancel":
                job.state = "ended"

    @rule(seconds=st.sampled_from([0.0, 1.0, LEASE]), claims=st.integers(0, 2))
    def time_passes(self, seconds: float, claims: int) -> None:
        """Tuners are silent for so long, and others look for work."""
        self.clock.advance(seconds)
        for _ in range(claims):
            self.claim()

    @invariant()
    def each_task_is_one_jobs(self) -> None:
        now = self.clock()
        held: dict[tuple[str, int], set[OpenTask]] = {}
        with self.engine.connect() as connection:
            for row in connection.execute(sa.select(_rows)):
                task = OpenTask(*(row._mapping[name] for name in OpenTask.__slots__))
                held.setdefault((row.job_id, row.fencing_token), set()).add(task)
        live = [job for job in self.jobs if job.live(now)]
        for job in live:
            assert held.get((job.id, job.claims[-1].fencing_token), set()) == job.has
        assert sum(len(job.has) for job in live) == len(set().union(*(job.has for job in live)))


@pytest.mark.graphs
def test_each_task_is_one_jobs_whatever_becomes_of_them(engine: sa.Engine) -> None:
    run_state_machine_as_test(
        type("OpenTasksOfThisDatabase", (OpenTasks,), {"engine": engine}),
        settings=settings(
            max_examples=examples(25),
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
