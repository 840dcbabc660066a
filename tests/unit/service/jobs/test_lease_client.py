"""Requests of both kinds in the queue of leases: the workers that get them, and their answers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.measured import SPEEDS, honest
from tests.unit.service.remote_runs import TARGET, make, new_job
from tilewright.db.storage import Storage
from tilewright.db.stores.leases import NewRequest, RequestState
from tilewright.service.jobs.device.lease_client import LeaseClient, answer_of
from tilewright.service.jobs.process.interrupts import Interrupted, JobCancelled
from tilewright.tuner.cancel import CancelToken
from tilewright.tuner.protocol.blobs import digest_bytes
from tilewright.tuner.protocol.messages import Request, WorkResult
from tilewright.tuner.protocol.run_results import RunResult, RunStatus
from tilewright.tuner.protocol.runs import RunRequest, SpeedsWork
from tilewright.tuner.protocol.version import PROTOCOL

LIBRARY = b"code"
WORK = SpeedsWork(digest_bytes(LIBRARY), 64, (1 << 15,), 1 << 30)
RUN = RunRequest("run", "", 1, (), (), WORK, {WORK.library: len(LIBRARY)}, 0, 60.0)
BATCH, BLOBS = make("batch")
ALL_BLOBS = {**BLOBS, WORK.library: LIBRARY}


@pytest.fixture
def job(storage: Storage) -> str:
    return new_job(storage)


@pytest.fixture
def client(storage: Storage, job: str) -> LeaseClient:
    return LeaseClient(storage, job, CancelToken(), CancelToken())


def registered(storage: Storage, *names: str) -> list[str]:
    return [storage.workers.register(name, [TARGET], {}).id for name in names]


def result_of(request: Request, worker: str) -> WorkResult:
    if isinstance(request, RunRequest):
        return RunResult(request.request_id, RunStatus.OK, speeds=SPEEDS, worker=worker)
    return honest(request, worker)


def finish(storage: Storage, request: Request, result: WorkResult) -> None:
    (worker,) = registered(storage, "w")
    (lease,) = storage.leases.claim(worker, [TARGET], limit=1, lease_seconds=60)
    assert lease.request_id == request.request_id
    storage.leases.complete(lease.lease_id, worker, "key", result.to_json())


@pytest.mark.parametrize("request_", [BATCH, RUN], ids=["batch", "run"])
def test_a_request_is_queued_once_and_answered_in_the_name_of_its_worker(
    storage: Storage, client: LeaseClient, request_: Request
) -> None:
    name = request_.request_id
    assert client.submit([request_], ALL_BLOBS, TARGET, None) == set()
    assert client.submit([request_], {}, TARGET, None) == {name}, "its blobs are there, too"
    assert set(request_.digests) <= set(storage.blobs.digests())
    assert client.unacknowledged() == [request_]
    with pytest.raises(ValueError, match="is not finished"):
        answer_of(request_, storage.leases.status([name])[name])
    finish(storage, request_, result_of(request_, "somebody"))
    status = storage.leases.status([name])[name]
    assert status.worker_id is not None
    answer = answer_of(request_, status)
    assert answer.result == result_of(request_, status.worker_id)
    assert (answer.state, answer.worker) == (RequestState.DONE, status.worker_id)


@pytest.mark.parametrize("request_", [BATCH, RUN], ids=["batch", "run"])
def test_a_result_of_the_other_kind_is_no_answer(
    storage: Storage, client: LeaseClient, request_: Request
) -> None:
    other = replace(RUN if request_ is BATCH else BATCH, request_id=request_.request_id)
    client.submit([request_], ALL_BLOBS, TARGET, None)
    finish(storage, request_, result_of(other, "w"))
    answer = answer_of(request_, storage.leases.status([request_.request_id])[request_.request_id])
    assert answer.result is None and "another kind of request" in answer.error


def test_what_an_older_release_requested_is_withdrawn(
    storage: Storage, job: str, client: LeaseClient
) -> None:
    client.submit([BATCH, RUN], ALL_BLOBS, TARGET, None)
    for kind in ("measure", "run"):
        payload = {"kind": kind, "protocol": PROTOCOL - 1}
        storage.leases.submit([NewRequest(f"old {kind}", TARGET, payload, job_id=job)])
    assert client.unacknowledged() == [BATCH, RUN]
    old = storage.leases.status(["old measure", "old run"]).values()
    assert [(each.state, each.acknowledged) for each in old] == [(RequestState.CANCELLED, True)] * 2


def test_only_requests_that_were_not_taken_are_passed_on(storage: Storage, job: str) -> None:
    first, second = registered(storage, "first", "second")
    tokens = CancelToken(), CancelToken()
    client = LeaseClient(storage, job, *tokens, [first, second])
    client.submit([BATCH, RUN], ALL_BLOBS, TARGET, first)
    storage.leases.claim(first, [TARGET], limit=1, lease_seconds=60)
    passed = client.pass_on(["batch", "run"], first, TARGET)
    assert passed is not None and passed.id == second
    assert [worker.id for worker in client.workers(TARGET)] == [second, first]
    (lease,) = storage.leases.claim(second, [TARGET], limit=9, lease_seconds=60)
    assert client.pass_on(["batch", "run"], second, TARGET) is None, "all were taken"
    assert [worker.id for worker in client.workers(TARGET)] == [second, first]
    storage.workers.drain(first)
    storage.leases.release(second, [lease.lease_id])
    assert client.pass_on(["batch", "run"], second, TARGET) is None, "nobody else is alive"


def test_a_job_that_must_end_says_why(storage: Storage, job: str) -> None:
    interrupt, cancel = CancelToken(), CancelToken()
    client = LeaseClient(storage, job, interrupt, cancel)
    client.check_interrupt()
    client.check_cancelled()
    interrupt.cancel("shutdown")
    cancel.cancel("enough")
    with pytest.raises(Interrupted, match="shutdown"):
        client.check_interrupt()
    with pytest.raises(JobCancelled, match="enough"):
        client.check_cancelled()
