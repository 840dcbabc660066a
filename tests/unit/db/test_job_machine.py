"""Jobs against a simple model of them: whatever users, tuners, workers and clocks do, in any order.

The model keeps a job as a few plain fields and decides in a few lines whose turn it is.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.examples import examples
from tests.unit.db.conftest import Clock
from tilewright.db.engine import open_engine
from tilewright.db.errors import StaleLeaseError, StateError
from tilewright.db.job_states import HELD_STATES, TRANSITIONS, JobState
from tilewright.db.migrate import upgrade
from tilewright.db.stores.blob_folder import BlobFolder
from tilewright.db.stores.blobs import BlobStore
from tilewright.db.stores.events import EventStore
from tilewright.db.stores.job_claims import ALONE_SECONDS, SHARED_ATTEMPTS
from tilewright.db.stores.jobs import JobClaim, JobProgress, JobStore
from tilewright.db.stores.leases import LeaseStore, NewRequest, RequestState
from tilewright.db.stores.models import ModelStore

LEASE, STALL, WAIT, MOST = 30.0, 100.0, 200.0, 3
OWNERS, TARGETS = ("ann", "bob"), ("pi", "pc")


@dataclass
class Known:
    """The model's state of a job."""

    id: str
    owner: str
    target: str
    priority: int
    age: int
    state: JobState
    moved: float
    token: int = 0
    attempts: int = 0
    deadline: float = 0.0
    trials: int = 0
    claims: list[JobClaim] = field(default_factory=list)
    steps: int = 1

    @property
    def held(self) -> bool:
        return self.state in HELD_STATES

    def free(self, now: float) -> bool:
        if self.held:
            return self.lost(now)
        waited = self.state is JobState.WAITING and self.moved + WAIT <= now
        return self.state is JobState.QUEUED or waited

    def lost(self, now: float) -> bool:
        return self.held and (self.deadline <= now or self.moved <= now - STALL)

    def overdue(self, now: float) -> bool:
        """Whether tuners start no other jobs, so that one of them has room for this job alone."""
        since = self.deadline if self.held else self.moved
        return self.free(now) and self.attempts >= SHARED_ATTEMPTS and since <= now - ALONE_SECONDS

    def step(self, state: JobState, now: float) -> None:
        assert state in TRANSITIONS[self.state]
        self.state, self.moved, self.steps = state, now, self.steps + 1


class Jobs(RuleBasedStateMachine):
    """One database, its users, its tuners, and a model of them."""

    empty: Path

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="tilewright-jobs-"))
        shutil.copy(self.empty, self.folder / "jobs.db")
        self.engine = open_engine(f"sqlite:///{self.folder}/jobs.db")
        self.clock = Clock()
        self.store = JobStore(self.engine, self.clock)
        self.leases = LeaseStore(self.engine, self.clock)
        self.events = EventStore(self.engine, self.clock)
        blobs = BlobStore(self.engine, BlobFolder(self.folder / "blobs"), self.clock)
        self.digest = ModelStore(self.engine, blobs, self.clock).add(b"model", "m").digest
        self.jobs: list[Known] = []
        self.alive: set[str] = set(TARGETS)

    def teardown(self) -> None:
        self.engine.dispose()
        shutil.rmtree(self.folder)

    def pick(self, data: Any) -> Known:
        job: Known = data.draw(st.sampled_from(self.jobs))
        return job

    @rule(
        owner=st.sampled_from(OWNERS),
        place=st.sampled_from(TARGETS),
        priority=st.integers(-1, 1),
    )
    def create(self, owner: str, place: str, priority: int) -> None:
        self.clock.advance(1.0)
        waits = None if place in self.alive else "nobody"
        job = self.store.create(
            self.digest,
            place,
            target_key=place,
            owner=owner,
            priority=priority,
            waits=waits,
        )
        self.leases.submit([NewRequest(job.id, place, {}, job_id=job.id)])
        known = Known(job.id, owner, place, priority, len(self.jobs), job.state, self.clock())
        assert job.state is (JobState.QUEUED if waits is None else JobState.WAITING)
        self.jobs.append(known)

    @rule(shared=st.booleans())
    def claim(self, shared: bool) -> None:
        now = self.clock()
        taken = self.store.claim(
            "tuner",
            LEASE,
            max_attempts=MOST,
            wait_seconds=WAIT,
            stall_seconds=STALL,
            shared=shared,
        )
        if shared and any(job.overdue(now) for job in self.jobs):
            assert taken is None
            return
        while True:
            running = dict.fromkeys(OWNERS, 0)
            for job in self.jobs:
                running[job.owner] += job.held and not job.lost(now)
            free = [
                j
                for j in self.jobs
                if j.free(now) and not (shared and j.attempts >= SHARED_ATTEMPTS)
            ]
            turn = min(free, key=lambda j: (running[j.owner], -j.priority, j.age), default=None)
            if turn is None or turn.attempts < MOST:
                break
            turn.step(JobState.FAILED, now)
        if turn is None:
            assert taken is None
            return
        assert taken is not None
        claim, found = taken
        assert found.id == turn.id
        if turn.state is JobState.RUNNING:
            turn.moved = now
        else:
            turn.step(JobState.RUNNING, now)
        turn.token += 1
        turn.attempts += 1
        turn.deadline = now + LEASE
        assert claim == JobClaim(turn.id, "tuner", turn.token)
        turn.claims.append(claim)

    @precondition(lambda self: any(job.claims for job in self.jobs))
    @rule(
        data=st.data(),
        what=st.sampled_from(["renew", "trial", "phase", "verify", "succeed", "release", "wait"]),
    )
    def write(self, data: Any, what: str) -> None:
        """A tuner writes under its claim, or under one that it had."""
        job = data.draw(st.sampled_from([job for job in self.jobs if job.claims]))
        claim = data.draw(st.sampled_from(job.claims))
        now = self.clock()
        holds = job.held and claim.fencing_token == job.token
        after = {
            "verify": JobState.VERIFYING,
            "succeed": JobState.SUCCEEDED,
            "release": JobState.QUEUED,
            "wait": JobState.WAITING,
        }.get(what)
        allowed = after is None or after in TRANSITIONS[job.state]
        try:
            match what:
                case "renew":
                    self.store.renew(claim, LEASE)
                case "trial":
                    self.store.progress(claim, JobProgress(trials_done=job.trials + 1))
                case "phase":
                    self.store.progress(claim, JobProgress(trials_done=job.trials))
                case "release":
                    self.store.release(claim)
                case "wait":
                    self.store.release(claim, waits="gone")
                case _:
                    assert after is not None
                    self.store.transition(claim, after)
        except StaleLeaseError:
            assert not holds
            return
        except StateError:
            assert holds and not allowed
            return
        assert holds and allowed
        match what:
            case "renew":
                job.deadline = now + LEASE
            case "trial":
                job.trials, job.attempts, job.moved = job.trials + 1, 1, now
            case "phase":
                pass
            case _:
                assert after is not None
                job.step(after, now)
                if what in ("release", "wait"):
                    job.attempts = max(0, job.attempts - 1)

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), what=st.sampled_from(["cancel", "pause", "resume"]))
    def stop(self, data: Any, what: str) -> None:
        job = self.pick(data)
        wanted = {
            "cancel": JobState.CANCELLED,
            "pause": JobState.PAUSED,
            "resume": JobState.QUEUED,
        }[what]
        same = {
            "cancel": job.state in (s for s in JobState if s.final),
            "pause": job.state is JobState.PAUSED,
            "resume": not (job.state is JobState.PAUSED or job.state.final),
        }[what]
        try:
            found = getattr(self.store, what)(job.id)
        except StateError:
            assert wanted not in TRANSITIONS[job.state] and not same
            return
        if not same:
            job.step(wanted, self.clock())
        assert found.state is job.state

    @rule(place=st.sampled_from(TARGETS), alive=st.booleans())
    def match(self, place: str, alive: bool) -> None:
        """A worker comes or goes, and a tuner reacts."""
        (self.alive.add if alive else self.alive.discard)(place)
        moved = self.store.match(lambda key, worker: key in self.alive, lambda key, worker: "gone")
        for job in self.jobs:
            wrong = {True: JobState.WAITING, False: JobState.QUEUED}[job.target in self.alive]
            if job.state is wrong:
                other = {JobState.WAITING: JobState.QUEUED, JobState.QUEUED: JobState.WAITING}
                job.step(other[wrong], self.clock())
                moved -= 1
        assert moved == 0

    @rule(seconds=st.sampled_from([1.0, LEASE, STALL, WAIT]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @invariant()
    def it_is_as_the_model_says(self) -> None:
        for job in self.jobs:
            found = self.store.get(job.id)
            assert (found.state, found.attempts, found.fencing_token, found.progressed_at) == (
                job.state,
                job.attempts,
                job.token,
                job.moved,
            )
            assert found.progress.trials_done == job.trials
            assert (found.tuner is not None) == job.held
            assert (found.finished_at is not None) == job.state.final
            (request,) = self.leases.of_job(job.id)
            if job.state.final or job.state is JobState.PAUSED:
                assert request.state is RequestState.CANCELLED
            states = [e for e in self.events.since(job.id) if e.kind == "state"]
            assert len(states) == job.steps
            assert states[-1].data["state"] == job.state.value


@pytest.fixture
def machine(tmp_path: Path) -> type[Jobs]:
    """Over a migrated database that each example copies."""
    path = tmp_path / "empty.db"
    engine = open_engine(f"sqlite:///{path}")
    upgrade(engine)
    engine.dispose()
    return type("Jobs", (Jobs,), {"empty": path})


@pytest.mark.graphs
def test_jobs_do_what_the_model_does(machine: type[Jobs]) -> None:
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples(40),
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
