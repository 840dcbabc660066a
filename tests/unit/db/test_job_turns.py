"""Which job is taken next, and which is not."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.db.claiming import take
from tilewright.db.errors import QuotaError, StaleLeaseError
from tilewright.db.job_states import JobState
from tilewright.db.stores.events import EventStore
from tilewright.db.stores.job_claims import ALONE_SECONDS
from tilewright.db.stores.jobs import Job, JobClaim, JobProgress, JobStore
from tilewright.db.stores.leases import LeaseStore, NewRequest, RequestState
from tilewright.db.stores.tokens import Scope, TokenStore


def test_claims_are_in_order_and_exclusive(jobs: JobStore, model_digest: str, clock: Any) -> None:
    assert jobs.claim("tuner-1", 30) is None
    first = jobs.create(model_digest, "host", "host-key")
    clock.advance(1)
    second = jobs.create(model_digest, "host", "host-key")
    taken = jobs.claim("tuner-1", 30)
    assert taken is not None
    claim, job = taken
    assert claim == JobClaim(first.id, "tuner-1", 1)
    assert (job.state, job.tuner, job.attempts) == (JobState.RUNNING, "tuner-1", 1)
    assert job.deadline == clock() + 30
    assert job.started_at == clock()
    assert take(jobs, "tuner-2").job_id == second.id
    assert jobs.claim("tuner-3", 30) is None


def suspicious(jobs: JobStore, model_digest: str, clock: Any) -> Job:
    """A job whose tuners were lost, so that it may be the cause."""
    job = jobs.create(model_digest, "host", "host-key")
    for _ in range(2):
        take(jobs, shared=True)
        clock.advance(30)
    return job


def test_a_job_that_may_kill_tuners_is_taken_only_alone(
    jobs: JobStore, model_digest: str, clock: Any
) -> None:
    suspect = suspicious(jobs, model_digest, clock)
    assert jobs.claim("tuner", 30, shared=True) is None
    innocent = jobs.create(model_digest, "host", "host-key")
    assert take(jobs, shared=True).job_id == innocent.id
    assert take(jobs).job_id == suspect.id


def test_tuners_let_go_of_other_jobs_for_one_that_must_be_alone(
    jobs: JobStore, model_digest: str, clock: Any
) -> None:
    suspect = suspicious(jobs, model_digest, clock)
    for _ in range(2):
        jobs.create(model_digest, "host", "host-key")
    assert take(jobs, shared=True).job_id != suspect.id
    clock.advance(ALONE_SECONDS)
    assert jobs.claim("tuner", 30, shared=True) is None, "this tuner would never have it alone"
    assert take(jobs).job_id == suspect.id
    assert take(jobs, shared=True).job_id != suspect.id, "another tuner goes on as before"


def test_a_job_that_its_owner_may_not_run_now_holds_up_nobody(
    jobs: JobStore, model_digest: str, clock: Any
) -> None:
    jobs.create(model_digest, "host", "host-key", owner="ann")
    for _ in range(2):
        take(jobs, shared=True)
        clock.advance(30)
    jobs.create(model_digest, "host", "host-key", owner="ann")
    jobs.renew(take(jobs, shared=True, max_running=1), 1e6)
    clock.advance(ALONE_SECONDS)
    other = jobs.create(model_digest, "host", "host-key", owner="bob")
    assert take(jobs, shared=True, max_running=1).job_id == other.id


def test_owners_take_turns(jobs: JobStore, model_digest: str, clock: Any) -> None:
    """One with a hundred jobs does not keep the next one waiting."""
    many = [jobs.create(model_digest, "host", "host-key", owner="greedy").id for _ in range(4)]
    clock.advance(1)
    few = [jobs.create(model_digest, "host", "host-key", owner="modest").id for _ in range(2)]
    taken = [take(jobs).job_id for _ in range(5)]
    assert taken[0] in many and taken[1] in few
    assert sum(job in few for job in taken[:4]) == 2
    assert taken[4] in many


def test_priority_comes_before_age_and_after_fairness(
    jobs: JobStore, model_digest: str, clock: Any
) -> None:
    old = jobs.create(model_digest, "host", "host-key", owner="a").id
    clock.advance(1)
    urgent = jobs.create(model_digest, "host", "host-key", owner="a", priority=5).id
    urgent_too = jobs.create(model_digest, "host", "host-key", owner="a", priority=4).id
    clock.advance(1)
    low = jobs.create(model_digest, "host", "host-key", owner="b", priority=-5).id
    assert [take(jobs).job_id for _ in range(4)] == [urgent, low, urgent_too, old]


def test_a_lost_tuners_jobs_do_not_count_as_running(
    jobs: JobStore, model_digest: str, clock: Any
) -> None:
    lost = jobs.create(model_digest, "host", "host-key", owner="a").id
    take(jobs)
    clock.advance(30)
    jobs.create(model_digest, "host", "host-key", owner="b")
    assert take(jobs).job_id == lost, "the oldest of two owners with nothing running"


def test_an_owner_has_no_more_running_than_its_quota(
    jobs: JobStore, tokens: TokenStore, model_digest: str
) -> None:
    _, limited = tokens.create("limited", [Scope.SUBMIT], max_running_jobs=1)
    first = jobs.create(model_digest, "host", "host-key", owner=limited.id, priority=1)
    second = jobs.create(model_digest, "host", "host-key", owner=limited.id)
    claim = take(jobs)
    assert claim.job_id == first.id
    assert jobs.claim("tuner", 30) is None
    jobs.transition(claim, JobState.FAILED, error="for the test")
    assert take(jobs).job_id == second.id
    for _ in range(3):
        jobs.create(model_digest, "host", "host-key", owner="another")
    assert take(jobs, max_running=2) and take(jobs, max_running=2)
    assert jobs.claim("tuner", 30, max_running=2) is None


def test_an_owner_has_no_more_open_jobs_than_its_quota(
    jobs: JobStore, tokens: TokenStore, model_digest: str
) -> None:
    _, limited = tokens.create("limited", [Scope.SUBMIT], max_open_jobs=2)
    first = jobs.create(model_digest, "host", "host-key", owner=limited.id, idempotency_key="k")
    jobs.create(model_digest, "host", "host-key", owner=limited.id)
    with pytest.raises(QuotaError, match=r"'limited' has 2 open jobs.*quota of open jobs is 2"):
        jobs.create(model_digest, "host", "host-key", owner=limited.id, max_open=100)
    again = jobs.create(model_digest, "host", "host-key", owner=limited.id, idempotency_key="k")
    assert again.id == first.id, "the first answer stands, whatever the quota says by now"
    jobs.cancel(first.id)
    jobs.create(model_digest, "host", "host-key", owner=limited.id)
    jobs.create(model_digest, "host", "host-key", owner="other", max_open=1)
    with pytest.raises(QuotaError):
        jobs.create(model_digest, "host", "host-key", owner="other", max_open=1)


def nobody(target_key: str, worker_id: str | None) -> bool:
    return False


def why(target_key: str, worker_id: str | None) -> str:
    return f"nobody runs {target_key}"


def test_a_job_without_a_worker_holds_up_nobody(
    jobs: JobStore, model_digest: str, clock: Any, events: EventStore
) -> None:
    waiting = jobs.create(model_digest, "pi", target_key="pi")
    bound = jobs.create(model_digest, "w1", target_key="host", worker_id="w1")
    clock.advance(1)
    served = jobs.create(model_digest, "host", target_key="host")

    def only_host(target_key: str, worker_id: str | None) -> bool:
        return target_key == "host" and worker_id is None

    assert jobs.match(only_host, why, only_wake=True) == 0, "nobody went away"
    assert jobs.match(only_host, why) == 2
    assert jobs.match(only_host, why) == 0
    assert take(jobs).job_id == served.id
    assert jobs.claim("tuner", 30) is None
    found = jobs.get(waiting.id)
    assert (found.state, found.reason) == (JobState.WAITING, "nobody runs pi")
    assert jobs.get(bound.id).state is JobState.WAITING
    last = events.since(waiting.id)[-1].data
    assert last == {"state": "waiting_for_worker", "reason": "nobody runs pi"}
    assert jobs.match(lambda target, worker: True, why, only_wake=True) == 2
    woken = jobs.get(waiting.id)
    assert (woken.state, woken.reason) == (JobState.QUEUED, None)


def test_a_job_that_waits_for_one_worker_is_told_anew_what_became_of_it(
    jobs: JobStore, model_digest: str, clock: Any, events: EventStore
) -> None:
    bound = jobs.create(model_digest, "w1", target_key="host", worker_id="w1", waits="w1 is lost")
    free = jobs.create(model_digest, "pi", target_key="pi", waits="nobody runs pi")
    before = jobs.get(bound.id)
    clock.advance(5)

    def nobody(target_key: str, worker_id: str | None) -> bool:
        return False

    def namesake(target_key: str, worker_id: str | None) -> str:
        return f"another {worker_id} has come"

    for _ in range(2):
        assert jobs.match(nobody, namesake, only_wake=True) == 0
    told = jobs.get(bound.id)
    assert (told.state, told.reason) == (JobState.WAITING, "another w1 has come")
    assert told.progressed_at == before.progressed_at, "it waits no longer than before"
    said = [event.data.get("reason") for event in events.since(bound.id)]
    assert said == ["w1 is lost", "another w1 has come"]
    assert jobs.get(free.id).reason == "nobody runs pi"


def test_a_job_whose_last_worker_is_gone_waits_with_its_trials(
    jobs: JobStore, model_digest: str, leases: LeaseStore
) -> None:
    job = jobs.create(model_digest, "pi", target_key="pi")
    leases.submit([NewRequest("r", "pi", {}, job_id=job.id)])
    claim = take(jobs)
    jobs.progress(claim, JobProgress(trials_done=3))
    jobs.release(claim, waits="the last one left")
    waiting = jobs.get(job.id)
    assert (waiting.state, waiting.reason) == (JobState.WAITING, "the last one left")
    assert (waiting.attempts, waiting.progress.trials_done) == (0, 3)
    assert leases.status(["r"])["r"].state is RequestState.QUEUED, "whoever comes measures it"


def test_a_job_waits_no_longer_than_it_should(
    jobs: JobStore, model_digest: str, clock: Any
) -> None:
    patient = jobs.create(model_digest, "pi", target_key="pi", waits="nobody")
    hasty = jobs.create(model_digest, "pi", target_key="pi", waits="nobody", wait_seconds=10.0)
    assert jobs.claim("tuner", 30, wait_seconds=100) is None
    clock.advance(10)
    assert take(jobs, wait_seconds=100.0).job_id == hasty.id
    clock.advance(20)
    assert jobs.claim("tuner", 30, wait_seconds=100) is None
    clock.advance(70)
    assert patient.id in {take(jobs, wait_seconds=100.0).job_id for _ in range(2)}


def test_a_job_that_makes_no_progress_is_taken_from_its_tuner(
    jobs: JobStore, model_digest: str, clock: Any, events: EventStore
) -> None:
    """The tuner lives and renews its claim: it hangs."""
    job = jobs.create(model_digest, "host", "host-key")
    hung = take(jobs, "hung")
    for counters in (JobProgress(phase="a"), JobProgress(phase="a", trials_done=1)):
        clock.advance(90)
        jobs.renew(hung, 30)
        jobs.progress(hung, counters)
        assert jobs.claim("next", 30, stall_seconds=100) is None
    clock.advance(90)
    jobs.renew(hung, 30)
    jobs.progress(hung, JobProgress(phase="a", trials_done=1))  # nothing new
    clock.advance(10)
    jobs.renew(hung, 30)
    claim = take(jobs, "next", stall_seconds=100.0)
    assert claim.job_id == job.id
    with pytest.raises(StaleLeaseError):
        jobs.renew(hung, 30)
    assert events.since(job.id)[-1].data["reason"] == "no progress for 100 seconds"
    for _ in range(2):
        clock.advance(100)
        jobs.renew(claim, 30)
        taken = jobs.claim("next", 30, stall_seconds=100, max_attempts=3)
        claim = claim if taken is None else taken[0]
    failed = jobs.get(job.id)
    assert (failed.state, failed.error) == (JobState.FAILED, "no progress for 100 seconds")
