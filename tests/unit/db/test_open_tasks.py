from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from tilewright.db.errors import StaleLeaseError
from tilewright.db.stores.jobs import JobClaim, JobStore
from tilewright.db.stores.open_tasks import OpenTask, OpenTaskStore

CONV, POOL = (OpenTask(name * 64, "t" * 64, 1, "fast", "7") for name in "cp")


@pytest.fixture
def open_tasks(engine: sa.Engine, clock: Any) -> OpenTaskStore:
    return OpenTaskStore(engine, clock)


@pytest.fixture
def claims(jobs: JobStore, model_digest: str) -> list[JobClaim]:
    """Two jobs that tuners work on."""
    found = []
    for _ in range(2):
        jobs.create(model_digest, "host", "host-key")
        taken = jobs.claim("tuner", 30)
        assert taken is not None
        found.append(taken[0])
    return found


def test_a_task_is_one_jobs_at_a_time(open_tasks: OpenTaskStore, claims: list[JobClaim]) -> None:
    first, second = claims
    assert open_tasks.take(first, [CONV]) == {CONV}
    assert open_tasks.take(second, [CONV, POOL]) == {POOL}
    assert open_tasks.take(first, [CONV, POOL]) == {CONV}, "its own stay its own"
    others = [
        replace(CONV, **{name: value})
        for name, value in (("threads", 2), ("numerics", "strict"), ("codegen_version", "8"))
    ]
    assert open_tasks.take(second, others) == set(others), "other keys are other tasks"
    open_tasks.release(first)
    assert open_tasks.take(second, [CONV]) == {CONV}


@pytest.mark.parametrize("end", ["cancel", "pause", "release", "lost"])
def test_a_job_that_no_tuner_holds_holds_no_task(
    open_tasks: OpenTaskStore, jobs: JobStore, claims: list[JobClaim], clock: Any, end: str
) -> None:
    first, second = claims
    open_tasks.take(first, [CONV])
    match end:
        case "release":
            jobs.release(first)
        case "lost":
            clock.advance(29)
            jobs.renew(second, 30)
            clock.advance(1)
        case _:
            getattr(jobs, end)(first.job_id)
    assert open_tasks.take(second, [CONV]) == {CONV}
    if end != "lost":
        with pytest.raises(StaleLeaseError):
            open_tasks.take(first, [CONV])
    else:
        jobs.renew(first, 30)
        assert open_tasks.take(first, [CONV]) == set(), "another has it by now"


def test_a_tuner_that_was_believed_dead_lets_go_of_nothing_that_the_next_one_took(
    open_tasks: OpenTaskStore, jobs: JobStore, claims: list[JobClaim], clock: Any
) -> None:
    first, second = claims
    open_tasks.take(first, [CONV])
    clock.advance(29)
    jobs.renew(second, 30)
    clock.advance(1)
    taken = jobs.claim("other", 30)
    assert taken is not None and taken[0].job_id == first.job_id
    assert open_tasks.take(second, [CONV]) == {CONV}, "the new tuner has not begun with it"
    open_tasks.release(second)
    assert open_tasks.take(taken[0], [CONV]) == {CONV}
    open_tasks.release(first)
    assert open_tasks.take(second, [CONV]) == set()
