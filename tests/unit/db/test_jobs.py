from __future__ import annotations

from typing import Any

import pytest

from tests.unit.db.claiming import take
from tilewright.db.errors import NotFoundError, StaleLeaseError, StateError
from tilewright.db.job_states import JobState
from tilewright.db.stores.events import EventStore
from tilewright.db.stores.jobs import JobClaim, JobProgress, JobStore
from tilewright.db.stores.leases import LeaseStore, NewRequest, RequestState
from tilewright.db.stores.workers import WorkerStore


def test_a_new_job_waits(jobs: JobStore, model_digest: str, clock: Any, events: EventStore) -> None:
    job = jobs.create(
        model_digest,
        "host",
        "host-key",
        threads=2,
        numerics="strict",
        options={"trials": 10},
        owner="t1",
    )
    assert job.state is JobState.QUEUED
    assert (job.threads, job.numerics, job.options) == (2, "strict", {"trials": 10})
    assert (job.owner, job.target, job.created_at) == ("t1", "host", clock())
    assert jobs.get(job.id) == job
    assert [(e.sequence, e.kind, e.data) for e in events.since(job.id)] == [
        (1, "state", {"state": "queued"})
    ]


def test_unknown_model_and_job(jobs: JobStore) -> None:
    with pytest.raises(NotFoundError, match="model 'nope'"):
        jobs.create("nope", "host", "host-key")
    with pytest.raises(NotFoundError, match="job 'nope'"):
        jobs.get("nope")
    with pytest.raises(NotFoundError):
        jobs.cancel("nope")


def test_idempotency_key_is_the_owners(
    jobs: JobStore, model_digest: str, events: EventStore
) -> None:
    first = jobs.create(model_digest, "host", "host-key", owner="a", idempotency_key="k")
    assert jobs.create(model_digest, "host", "host-key", owner="a", idempotency_key="k") == first
    assert (
        jobs.create(model_digest, "host", "host-key", owner="b", idempotency_key="k").id != first.id
    )
    anonymous = jobs.create(model_digest, "host", "host-key", idempotency_key="k")
    assert jobs.create(model_digest, "host", "host-key", idempotency_key="k").id == anonymous.id
    assert (
        jobs.create(model_digest, "host", "host-key").id
        != jobs.create(model_digest, "host", "host-key").id
    )
    assert len(events.since(first.id)) == 1


def test_listing(jobs: JobStore, model_digest: str, clock: Any) -> None:
    made = []
    for number in range(5):
        made.append(jobs.create(model_digest, "host", "host-key", owner="ab"[number % 2]))
        clock.advance(number % 2)
    newest = sorted(made, key=lambda job: (job.created_at, job.id), reverse=True)
    assert jobs.list() == newest
    assert jobs.list(limit=2, after=jobs.list(limit=2).next) == newest[2:4]
    assert jobs.list(limit=5).next is None
    assert jobs.list(owner="b") == [job for job in newest if job.owner == "b"]
    claim = take(jobs)
    assert [job.id for job in jobs.list(state=JobState.RUNNING)] == [claim.job_id]
    counts = jobs.counts()
    assert counts[JobState.RUNNING] == 1
    assert counts[JobState.QUEUED] == 4
    assert counts[JobState.FAILED] == 0


def test_a_lost_tuners_job_is_taken_over_and_the_lost_one_is_fenced_off(
    jobs: JobStore, model_digest: str, clock: Any, events: EventStore
) -> None:
    job = jobs.create(model_digest, "host", "host-key")
    old = take(jobs, "tuner-1")
    clock.advance(29)
    assert jobs.claim("tuner-2", 30) is None
    clock.advance(1)
    new = take(jobs, "tuner-2")
    assert new == JobClaim(job.id, "tuner-2", 2)
    for write in (
        lambda: jobs.renew(old, 30),
        lambda: jobs.progress(old, JobProgress(trials_done=1)),
        lambda: jobs.transition(old, JobState.SUCCEEDED),
        lambda: jobs.release(old),
    ):
        with pytest.raises(StaleLeaseError, match="tuner-1"):
            write()
    assert jobs.get(job.id).progress == JobProgress()
    assert jobs.renew(new, 30).fencing_token == 2
    assert [e.kind for e in events.since(job.id)] == ["state", "state", "taken_over"]


def test_a_tuner_that_was_late_but_not_replaced_goes_on(
    jobs: JobStore, model_digest: str, clock: Any
) -> None:
    jobs.create(model_digest, "host", "host-key")
    claim = take(jobs)
    clock.advance(100)
    assert jobs.renew(claim, 30).deadline == clock() + 30
    assert jobs.claim("tuner-2", 30) is None


def test_a_tuner_lost_while_verifying(jobs: JobStore, model_digest: str, clock: Any) -> None:
    jobs.create(model_digest, "host", "host-key")
    jobs.transition(take(jobs), JobState.VERIFYING)
    clock.advance(30)
    claim = take(jobs, "tuner-2")
    assert jobs.renew(claim, 30).state is JobState.RUNNING


def test_a_job_that_kills_its_tuners_fails(jobs: JobStore, model_digest: str, clock: Any) -> None:
    job = jobs.create(model_digest, "host", "host-key")
    clock.advance(1)
    innocent = jobs.create(model_digest, "host", "host-key")
    for _ in range(3):
        assert take(jobs, max_attempts=3).job_id == job.id
        clock.advance(30)
    assert take(jobs, max_attempts=3).job_id == innocent.id
    failed = jobs.get(job.id)
    assert failed.state is JobState.FAILED
    assert failed.error is not None
    assert "3 tuners" in failed.error
    assert failed.tuner is None


def test_progress_forgives_lost_tuners(jobs: JobStore, model_digest: str, clock: Any) -> None:
    job = jobs.create(model_digest, "host", "host-key")
    for trials in range(1, 7):
        claim = take(jobs, max_attempts=2)
        assert claim.job_id == job.id
        jobs.progress(claim, JobProgress(trials_done=trials))
        clock.advance(30)
    assert jobs.get(job.id).state is JobState.RUNNING


def test_giving_back_is_no_attempt(jobs: JobStore, model_digest: str) -> None:
    jobs.create(model_digest, "host", "host-key")
    for token in range(1, 5):
        claim = take(jobs, max_attempts=1)
        assert claim.fencing_token == token
        jobs.release(claim)
        with pytest.raises(StaleLeaseError):
            jobs.renew(claim, 30)
    assert jobs.get(claim.job_id).state is JobState.QUEUED


def test_progress_and_result(
    jobs: JobStore, model_digest: str, events: EventStore, clock: Any
) -> None:
    job = jobs.create(model_digest, "host", target_key="tk")
    claim = take(jobs)
    progress = JobProgress("tuning", 20, 3, 100, 40, 2, 0.05, 0.03, 12.5)
    jobs.progress(claim, progress, event={"task": "conv"})
    assert jobs.get(job.id).progress == progress
    assert jobs.get(job.id).target_key == "tk"
    last = events.since(job.id)[-1]
    assert last.kind == "progress"
    assert last.data["best_seconds"] == 0.03
    assert last.data["task"] == "conv"
    assert jobs.transition(claim, JobState.VERIFYING).state is JobState.VERIFYING
    clock.advance(5)
    done = jobs.transition(
        claim, JobState.SUCCEEDED, result={"speedup": 2.0}, artifact_digest="d" * 64
    )
    assert (done.result, done.artifact_digest) == ({"speedup": 2.0}, "d" * 64)
    assert (done.tuner, done.deadline, done.finished_at) == (None, None, clock())
    assert done.progress.seconds_left is None
    assert events.since(job.id)[-1].data == {"state": "succeeded"}
    with pytest.raises(StaleLeaseError):
        jobs.transition(claim, JobState.FAILED)
    clock.advance(1000)
    assert jobs.claim("tuner-2", 30) is None


def test_failure_says_why(jobs: JobStore, model_digest: str, events: EventStore) -> None:
    job = jobs.create(model_digest, "host", "host-key")
    jobs.transition(take(jobs), JobState.FAILED, error="node 'x': operator Foo: not implemented")
    assert jobs.get(job.id).error == "node 'x': operator Foo: not implemented"
    assert events.since(job.id)[-1].data["error"] == "node 'x': operator Foo: not implemented"


def test_a_step_that_is_not_in_the_table_changes_nothing(
    jobs: JobStore, model_digest: str, events: EventStore
) -> None:
    job = jobs.create(model_digest, "host", "host-key")
    claim = take(jobs)
    before = (jobs.get(job.id), events.since(job.id))
    with pytest.raises(StateError):
        jobs.transition(claim, JobState.RUNNING)
    assert (jobs.get(job.id), events.since(job.id)) == before


def test_cancelling_a_queued_job(jobs: JobStore, model_digest: str, clock: Any) -> None:
    job = jobs.create(model_digest, "host", "host-key")
    assert jobs.cancel(job.id).state is JobState.CANCELLED
    ended = clock()
    clock.advance(5)
    assert jobs.cancel(job.id).finished_at == ended
    assert jobs.claim("tuner-1", 30) is None


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("stop", ["cancel", "pause"])
def test_requests_of_a_job_that_is_stopped_are_measured_no_more(
    jobs: JobStore,
    leases: LeaseStore,
    workers: WorkerStore,
    model_digest: str,
    stop: str,
    held: bool,
) -> None:
    """In the same transaction, whether or not a tuner holds the job."""
    job, other = (
        jobs.create(model_digest, "host", "host-key"),
        jobs.create(model_digest, "host", "host-key"),
    )
    if held:
        take(jobs)
    new = [NewRequest(n, "t", {}, job_id=job.id) for n in ("done", "leased", "queued")]
    leases.submit([*new, NewRequest("other", "t", {}, job_id=other.id)])
    worker = workers.register("w", ["t"], {}).id
    (done,) = leases.claim(worker, ["t"], limit=1, lease_seconds=60)
    leases.complete(done.lease_id, worker, "key", {"kept": 1})
    leases.claim(worker, ["t"], limit=1, lease_seconds=60)
    getattr(jobs, stop)(job.id)
    states = {name: each.state for name, each in leases.status(["queued", "leased"]).items()}
    assert set(states.values()) == {RequestState.CANCELLED}
    assert leases.status([done.request_id])[done.request_id].result == {"kept": 1}
    left = leases.claim(worker, ["t"], limit=9, lease_seconds=60)
    assert [lease.request_id for lease in left] == ["other"]


@pytest.mark.parametrize("stop", ["cancel", "pause"])
def test_a_job_that_is_stopped_is_its_tuners_no_longer(
    jobs: JobStore, model_digest: str, stop: str
) -> None:
    """The job changes at once, before its tuner notices."""
    job = jobs.create(model_digest, "host", "host-key")
    claim = take(jobs)
    stopped = getattr(jobs, stop)(job.id)
    assert stopped.state in (JobState.CANCELLED, JobState.PAUSED)
    assert (stopped.tuner, stopped.deadline) == (None, None)
    for write in (
        lambda: jobs.renew(claim, 30),
        lambda: jobs.progress(claim, JobProgress(trials_done=1)),
        lambda: jobs.tell(claim, [("task", {})]),
        lambda: jobs.transition(claim, JobState.SUCCEEDED),
        lambda: jobs.release(claim),
    ):
        with pytest.raises(StaleLeaseError):
            write()
    assert jobs.get(job.id) == stopped
    assert jobs.claim("tuner-2", 30) is None


def test_a_paused_job_goes_on_where_it_was(
    jobs: JobStore, model_digest: str, events: EventStore, clock: Any
) -> None:
    job = jobs.create(model_digest, "host", "host-key")
    jobs.progress(take(jobs), JobProgress(trials_done=7))
    assert jobs.pause(job.id) == jobs.pause(job.id), "twice is no error"
    assert jobs.claim("tuner-2", 30) is None
    clock.advance(1000)
    assert jobs.resume(job.id).state is JobState.QUEUED
    assert jobs.resume(job.id).state is JobState.QUEUED
    again = jobs.claim("tuner-2", 30)
    assert again is not None and again[0].fencing_token == 2
    assert again[1].progress.trials_done == 7
    states = [e.data["state"] for e in events.since(job.id) if e.kind == "state"]
    assert states == ["queued", "running", "paused", "queued", "running"]


def test_a_job_that_ended_is_neither_paused_nor_resumed(jobs: JobStore, model_digest: str) -> None:
    job = jobs.cancel(jobs.create(model_digest, "host", "host-key").id)
    for change in (jobs.pause, jobs.resume):
        with pytest.raises(StateError, match="cancelled"):
            change(job.id)


def test_progress_without_trials_forgives_no_lost_tuner(
    jobs: JobStore, model_digest: str, clock: Any
) -> None:
    job = jobs.create(model_digest, "host", "host-key")
    for phase in range(3):
        claim = take(jobs, max_attempts=3)
        jobs.progress(claim, JobProgress(phase=f"phase {phase}", trials_done=0))
        clock.advance(30)
    assert jobs.claim("tuner", 30, max_attempts=3) is None
    assert jobs.get(job.id).state is JobState.FAILED


def test_events_resume_anywhere(jobs: JobStore, model_digest: str, events: EventStore) -> None:
    job = jobs.create(model_digest, "host", "host-key")
    other = jobs.create(model_digest, "host", "host-key")
    assert events.append(job.id, [("log", {"text": "a"}), ("log", {"text": "b"})]) == 3
    assert events.append(other.id, [("log", {"text": "c"})]) == 2
    assert events.append(job.id, []) == 3
    assert [e.sequence for e in events.since(job.id)] == [1, 2, 3]
    assert [e.data["text"] for e in events.since(job.id, 1)] == ["a", "b"]
    assert [e.sequence for e in events.since(job.id, 1, limit=1)] == [2]
    assert events.since(job.id, 3) == []
    assert events.since("nope") == []
    with pytest.raises(NotFoundError):
        events.append("nope", [("log", {})])
