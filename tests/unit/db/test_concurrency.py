"""Several processes on one database: claims are exclusive, and a killed process costs nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tilewright import db
from tilewright.db.errors import StaleLeaseError
from tilewright.db.job_states import JobState
from tilewright.db.stores.blobs import BlobStore
from tilewright.db.stores.events import EventStore
from tilewright.db.stores.jobs import JobClaim, JobStore
from tilewright.db.stores.leases import Completion, LeaseStore, NewRequest, RequestState
from tilewright.db.stores.models import ModelStore
from tilewright.db.stores.tasks import WorkloadStore
from tilewright.db.stores.workers import WorkerStore

PEER = Path(__file__).with_name("peer.py")
ROOT = Path(db.__file__).parents[2]
NAMES = ("a", "b", "c")


_idle: list[Any] = []
"""Processes for the next test: starting one takes longer than its part in a test."""


@pytest.fixture(scope="module", autouse=True)
def no_peer_stays() -> Iterator[None]:
    yield
    while _idle:
        end(_idle.pop())


@contextmanager
def peers(
    action: str, url: str, names: tuple[str, ...] = NAMES, *, killed: bool = False
) -> Iterator[list[Any]]:
    """Processes that have connected and begin together.

    At the end each has finished its action, or is killed in the middle of it if `killed`.
    """
    busy = [_idle.pop() if _idle else start() for _ in names]
    try:
        for process, name in zip(busy, names, strict=True):
            tell(process, json.dumps([action, url, name]))
        for process in busy:
            assert said(process) == "ready"
        for process in busy:
            tell(process, "go")
        yield busy
        if not killed:
            assert [said(process) for process in busy] == ["ended"] * len(busy)
            _idle.extend(busy)
            busy = []
    finally:
        for process in busy:
            end(process)


def start() -> Any:
    return subprocess.Popen(
        [sys.executable, str(PEER)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def end(process: Any) -> None:
    process.kill()
    process.communicate()


def tell(process: Any, line: str) -> None:
    process.stdin.write(line + "\n")
    process.stdin.flush()


def said(process: Any) -> Any:
    return json.loads(process.stdout.readline())


def submit(engine: sa.Engine, count: int) -> list[str]:
    names = [f"r{number:03}" for number in range(count)]
    LeaseStore(engine).submit([NewRequest(name, "t", {"n": name}) for name in names])
    return names


@pytest.fixture
def model(engine: sa.Engine, blobs: BlobStore) -> str:
    return ModelStore(engine, blobs).add(b"an ONNX model", "net.onnx").digest


def test_no_request_is_claimed_twice(engine: sa.Engine, url: str) -> None:
    names = submit(engine, 120)
    with peers("measure", url) as processes:
        seen = [item for process in processes for item in said(process)]
    assert sorted(name for name, _ in seen) == names
    assert {attempt for _, attempt in seen} == {1}
    statuses = LeaseStore(engine).status(names).values()
    assert {status.state for status in statuses} == {RequestState.DONE}
    assert all(status.result == {"by": status.worker_id} for status in statuses)


def test_a_lease_that_ran_out_is_requeued_once(engine: sa.Engine, url: str) -> None:
    names = submit(engine, 60)
    WorkerStore(engine).register("lost", ["t"], {}, worker_id="lost")
    LeaseStore(engine).claim("lost", ["t"], limit=60, lease_seconds=1)
    with peers("expire", url) as processes:
        requeued = [name for process in processes for name in said(process)]
    assert sorted(requeued) == names


def test_no_job_is_claimed_twice(engine: sa.Engine, url: str, model: str) -> None:
    jobs = JobStore(engine)
    names = sorted(jobs.create(model, "host", "host-key").id for _ in range(40))
    with peers("tune", url) as processes:
        seen = [name for process in processes for name in said(process)]
    assert sorted(seen) == names
    assert {job.state for job in jobs.list()} == {JobState.SUCCEEDED}
    assert {job.fencing_token for job in jobs.list()} == {1}


def test_event_numbers_have_no_gaps_at_any_moment(engine: sa.Engine, url: str, model: str) -> None:
    job = JobStore(engine).create(model, "host", "host-key")
    events = EventStore(engine)
    total = 1 + 2 * 20 * len(NAMES)
    with peers("log", url) as processes:
        last = 0
        while last < total:  # a stream that resumes where it stopped misses nothing
            for event in events.since(job.id, last, limit=7):
                assert event.sequence == last + 1
                last = event.sequence
        numbers = [number for process in processes for number in said(process)]
    assert sorted(numbers) == list(range(3, total + 1, 2))


def test_a_killed_process_is_replaced_and_fenced_off(
    engine: sa.Engine, url: str, model: str
) -> None:
    submit(engine, 1)
    job = JobStore(engine).create(model, "host", "host-key")
    with peers("hold", url, ("killed",), killed=True) as (process,):
        old_lease, old_claim = said(process)
    later = lambda: time.time() + 3600  # noqa: E731
    leases, jobs = LeaseStore(engine, later), JobStore(engine, later)
    assert leases.expire().requeued == ("r000",)
    WorkerStore(engine).register("next", ["t"], {}, worker_id="next")
    much_later = LeaseStore(engine, lambda: time.time() + 4000)
    (lease,) = much_later.claim("next", ["t"], limit=1, lease_seconds=60)
    assert lease.attempt == 2 and lease.lease_id != old_lease
    assert leases.complete(old_lease, "killed", "late", {}) is Completion.LATE
    taken = jobs.claim("next", 60)
    assert taken is not None
    assert taken[0] == JobClaim(job.id, "next", old_claim + 1)
    with pytest.raises(StaleLeaseError):
        jobs.transition(JobClaim(job.id, "killed", old_claim), JobState.SUCCEEDED)


def test_a_process_killed_while_writing_leaves_nothing_and_no_lock(
    engine: sa.Engine, url: str
) -> None:
    with peers("die_writing", url, ("killed",), killed=True) as (process,):
        assert said(process) == "writing"
    store = WorkloadStore(engine)
    store.put_workloads({"half": "whole"})
    assert store.workload("half") == "whole"
