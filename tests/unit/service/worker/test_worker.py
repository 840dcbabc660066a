"""The worker against the real application over a socket; only the sandbox is a stand-in."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.measured import honest
from tests.unit.service.workers import TARGET, FakeHarness, Running, queue, state
from tests.waiting import until
from tilewright.db.errors import StorageError, StorageKind
from tilewright.db.storage import Storage
from tilewright.db.stores.leases import NewRequest, RequestState
from tilewright.db.stores.workers import Health
from tilewright.service.api.heartbeat_pacing import HeartbeatPacing
from tilewright.service.signing import SigningKey
from tilewright.service.worker import process
from tilewright.service.worker.http import Api, Distrusted, Refused, Unreachable
from tilewright.service.worker.options import WorkerOptions
from tilewright.service.worker.state import Spooled, StateFolder
from tilewright.tuner.measure.harness.driver import HarnessLimits
from tilewright.tuner.protocol.batches import MeasureRequest, MeasureResult

pytestmark = pytest.mark.usefixtures("short_pauses")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of the worker's calls of the service that were answered, in order."""
    found: list[str] = []
    call = Api.call

    def called(api: Api, method: str, path: str, *arguments: Any, **options: Any) -> Any:
        answer = call(api, method, path, *arguments, **options)
        found.append(path)
        return answer

    monkeypatch.setattr(Api, "call", called)
    return found


def until_called(calls: list[str], path: str) -> None:
    """Wait until the worker has called a path of the service two more times.

    The second of these calls began after the first was answered, hence after this wait began.
    """
    before = calls.count(path)
    until(lambda: calls.count(path) >= before + 2)


def until_heartbeats(storage: Storage, count: int) -> None:
    """Wait for more heartbeats of the only worker."""
    for _ in range(count):
        (worker,) = storage.workers.list()
        until(
            lambda before=worker: storage.workers.list()[0].last_heartbeat > before.last_heartbeat
        )


def test_a_worker_measures_and_reports(
    storage: Storage, start: Callable[[], Running], harness: type[FakeHarness]
) -> None:
    queue(storage, "a", "b", "c")
    start()
    until(lambda: state(storage, "c") is RequestState.DONE)
    assert harness.measured == ["a", "b", "c"]
    result = storage.leases.status(["a"])["a"].result
    assert result is not None
    assert MeasureResult.from_json(result).measurements[0][1].ok


def test_an_idle_worker_says_how_fast_its_device_is(
    storage: Storage, start: Callable[[], Running]
) -> None:
    start()
    until(lambda: any(worker.speed for worker in storage.workers.list()))
    (worker,) = storage.workers.list()
    assert worker.speed is not None and not worker.throttled
    assert worker.speed["arithmetic_seconds"] == 0.25 and worker.speed["memory_ratio"] == 1.0
    assert worker.speed["disturbed"] is False


def test_a_stopped_worker_gives_its_leases_back_and_leaves(
    storage: Storage, start: Callable[[], Running], harness: type[FakeHarness]
) -> None:
    harness.gate.clear()
    queue(storage, "a", "b", "c")
    running = start()
    until(lambda: state(storage, "b") is RequestState.LEASED)
    running.end()
    assert {state(storage, n) for n in "abc"} == {RequestState.QUEUED}
    assert storage.leases.status(["a"])["a"].attempt == 0
    assert [w.health for w in storage.workers.list()] == [Health.GONE]
    assert harness.measured == []


def test_a_worker_that_stops_with_its_service_warns_of_nothing(
    start: Callable[[], Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`tilewright server run` stops all of its processes at once."""
    call, claims, stopping = Api.call, threading.Event(), threading.Event()

    def called(api: Api, method: str, path: str, *arguments: Any, **options: Any) -> Any:
        if path == "/v1/leases/claim":
            claims.set()
            stopping.wait(15)
        if stopping.is_set():
            raise Unreachable("it stopped")
        return call(api, method, path, *arguments, **options)

    monkeypatch.setattr(Api, "call", called)
    running = start()
    assert claims.wait(15)
    running.worker.stop()
    stopping.set()
    running.end()
    assert running.warnings == []
    assert running.log[-2] == "not unregistered: it stopped"


def test_a_drained_worker_finishes_what_it_has(
    storage: Storage,
    start: Callable[[], Running],
    harness: type[FakeHarness],
    calls: list[str],
) -> None:
    """It holds two leases when it is drained; later requests stay in the queue."""
    harness.gate.clear()
    queue(storage, "a", "b")
    running = start()
    until(lambda: state(storage, "b") is RequestState.LEASED)
    (worker,) = storage.workers.list()
    storage.workers.drain(worker.id)
    queue(storage, "c")
    until(lambda: "drained: nothing new comes" in running.log)
    harness.gate.set()
    until(lambda: state(storage, "b") is RequestState.DONE)
    until_called(calls, "/v1/leases/claim")
    until_heartbeats(storage, 2)
    assert state(storage, "c") is RequestState.QUEUED and harness.measured == ["a", "b"]
    storage.workers.drain(worker.id, draining=False)
    until(lambda: state(storage, "c") is RequestState.DONE)
    until(lambda: "used again" in running.log)


def test_a_worker_says_as_often_as_the_service_wants_that_it_lives(
    start: Callable[[], Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    running = start()
    registration = running.worker._registration
    until(lambda: registration.heartbeat_seconds == 0.2)
    monkeypatch.setattr(HeartbeatPacing, "seconds", 7.5)
    until(lambda: registration.heartbeat_seconds == 7.5)
    with pytest.raises(Unreachable, match="heartbeat_seconds"):
        registration.come_again({"heartbeat_seconds": "often"})
    assert registration.heartbeat_seconds == 7.5


def test_results_wait_in_the_spool_while_the_service_is_away(
    server: Any,
    storage: Storage,
    start: Callable[[], Running],
    harness: type[FakeHarness],
    options: WorkerOptions,
) -> None:
    harness.gate.clear()
    queue(storage, "a")
    start()
    until(harness.started.is_set)  # the worker has all that it needs
    assert state(storage, "a") is RequestState.LEASED
    server.stop()
    harness.gate.set()
    until(lambda: any(options.spool.rglob("spool/a.json")))
    assert state(storage, "a") is RequestState.LEASED
    server.start()
    until(lambda: state(storage, "a") is RequestState.DONE)
    until(lambda: not any(options.spool.rglob("spool/a.json")))
    assert harness.measured == ["a"]


def test_a_lease_that_ran_out_during_an_outage_is_not_measured_twice(
    server: Any,
    storage: Storage,
    start: Callable[[], Running],
    harness: type[FakeHarness],
    options: WorkerOptions,
) -> None:
    harness.gate.clear()
    queue(storage, "a")
    start()
    until(harness.started.is_set)  # the worker has all that it needs
    assert state(storage, "a") is RequestState.LEASED
    server.stop()
    harness.gate.set()
    until(lambda: any(options.spool.rglob("spool/a.json")))
    # the lease runs out before the service is back, and the request is queued again
    later = type(storage.leases)(storage.engine, lambda: time.time() + 1000)
    assert later.expire().requeued == ("a",)
    server.start()
    until(lambda: state(storage, "a") is RequestState.DONE)
    assert harness.measured == ["a"]


def test_a_killed_worker_reports_its_spool_before_it_claims(
    server: Any,
    storage: Storage,
    start: Callable[[], Running],
    harness: type[FakeHarness],
    options: WorkerOptions,
) -> None:
    """The remains after a `kill -9`: an id, a held lease, a spooled result."""
    (token,) = storage.tokens.list()
    registered = storage.workers.register("w", [TARGET], {}, owner=token.id)
    queue(storage, "done", "begun", "new")
    leases = storage.leases.claim(registered.id, [TARGET], limit=2, lease_seconds=60)
    files = StateFolder(options.spool, options.server)
    files.worker_id = registered.id
    result = honest(MeasureRequest.from_json(leases[0].payload), registered.id, 1.0)
    files.spool(Spooled("done", leases[0].lease_id, "key", result.to_json()))
    files.hold("begun", leases[1].lease_id)
    files.close()
    running = start()
    until(lambda: state(storage, "new") is RequestState.DONE)
    until(lambda: state(storage, "begun") is RequestState.DONE)
    assert sorted(harness.measured) == ["begun", "new"]
    assert storage.leases.status(["done"])["done"].result == result.to_json()
    # the lease in hand did not have to run out
    assert storage.leases.status(["begun"])["begun"].attempt == 2
    assert [w.id for w in storage.workers.list()] == [registered.id]
    running.end()


def test_nothing_is_claimed_while_results_wait_to_be_reported(
    storage: Storage,
    start: Callable[[], Running],
    harness: type[FakeHarness],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise the worker would be offered requests that it has measured already, once its lease
    expires."""
    refusing, refused = True, 0
    complete = type(storage.leases).complete_all

    def when_it_may(*arguments: Any) -> Any:
        nonlocal refused
        if refusing:
            refused += 1
            raise StorageError("away", StorageKind.UNREACHABLE)
        return complete(*arguments)

    monkeypatch.setattr(type(storage.leases), "complete_all", when_it_may)
    names = "abcdefgh"
    queue(storage, *names)
    start()
    until(lambda: len(harness.measured) >= 1)
    (worker,) = storage.workers.list()
    until(lambda: storage.leases.in_hand().get(worker.id, 0) <= len(harness.measured))
    before = refused
    until(lambda: refused >= before + 4)  # as long as several claims take
    claimed = [name for name in names if storage.leases.history(name)]
    assert len(claimed) <= 4
    refusing = False
    until(lambda: state(storage, "h") is RequestState.DONE)
    assert sorted(harness.measured) == list(names)


def test_a_cancelled_request_is_dropped(
    storage: Storage, start: Callable[[], Running], harness: type[FakeHarness]
) -> None:
    harness.gate.clear()
    queue(storage, "a")
    start()
    until(lambda: state(storage, "a") is RequestState.LEASED)
    storage.leases.cancel(request_ids=["a"])
    queue(storage, "b")
    # It has the answer to a heartbeat when it sends the next; the first may have been on its way.
    until_heartbeats(storage, 3)
    harness.gate.set()
    until(lambda: state(storage, "b") is RequestState.DONE)
    assert harness.measured == ["b"]


def test_a_request_of_another_protocol_fails_with_its_reason(
    storage: Storage, start: Callable[[], Running]
) -> None:
    storage.leases.submit([NewRequest("old", TARGET, {"protocol": 99})])
    start()
    until(lambda: state(storage, "old") is RequestState.FAILED)
    assert "protocol version 99" in (storage.leases.status(["old"])["old"].error or "")


def test_a_request_that_needs_too_much_memory_fails_alone(
    storage: Storage,
    start: Callable[[], Running],
    harness: type[FakeHarness],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The worker generates the inputs of a request, and works on the next one after a failure."""
    work = harness.work

    def lacking(self: FakeHarness, requests: Any, *more: Any) -> Any:
        if requests[0].request_id == "large":
            raise MemoryError
        return work(self, requests, *more)

    monkeypatch.setattr(harness, "work", lacking)
    queue(storage, "large")
    running = start()
    until(lambda: "request large: MemoryError" in running.log)
    queue(storage, "b")
    until(lambda: state(storage, "b") is RequestState.DONE)


def test_a_wrong_token_ends_the_worker(options: WorkerOptions) -> None:
    running = Running(replace(options, token="wrong")).ended()
    assert isinstance(running.error, Refused)
    assert running.error.status == 401


def test_a_service_with_another_key_is_not_the_one_that_is_known(
    start: Callable[[], Running],
    storage: Storage,
    options: WorkerOptions,
    harness: type[FakeHarness],
    tmp_path: Path,
) -> None:
    """As with the hosts that ssh knows: the first contact counts, or the key that the user
    states."""
    queue(storage, "a")
    start()
    until(lambda: state(storage, "a") is RequestState.DONE)
    (kept,) = options.spool.glob("*/service-key")
    ours = kept.read_text()
    kept.write_text(other := SigningKey(Ed25519PrivateKey.generate()).public)
    queue(storage, "b")
    running = Running(options).ended()
    assert isinstance(running.error, Distrusted)
    assert f"is {ours}, and was {other}" in str(running.error)
    assert isinstance(Running(replace(options, service_key=other)).ended().error, Distrusted)
    assert kept.read_text() == other, "who is not believed changes nothing"
    told = Running(replace(options, service_key=ours))
    until(lambda: kept.read_text() == ours)
    told.end()
    assert told.error is None


@pytest.mark.parametrize("forged", ["signature", "payload", "request_id"])
def test_a_lease_that_the_service_did_not_sign_is_not_run(
    storage: Storage,
    options: WorkerOptions,
    harness: type[FakeHarness],
    monkeypatch: pytest.MonkeyPatch,
    forged: str,
) -> None:
    """An attacker in between changes the program to run; the digests of the blobs are right."""
    call = Api.call

    def between(self: Api, method: str, path: str, *more: Any, **options: Any) -> Any:
        answer = call(self, method, path, *more, **options)
        for lease in answer.get("leases", []) if path == "/v1/leases/claim" else []:
            if forged == "payload":
                lease["payload"]["limit_seconds"] = 1e9
            elif forged == "request_id":
                lease["request_id"] = "another"
            else:
                lease["signature"] = SigningKey(Ed25519PrivateKey.generate()).sign(b"message")
        return answer

    monkeypatch.setattr(Api, "call", between)
    queue(storage, "a")
    running = Running(options).ended()
    assert isinstance(running.error, Distrusted) and "is not signed" in str(running.error)
    assert harness.measured == [] and not list(options.spool.glob("*/0/blobs/*"))


def test_options_of_the_sandbox_reach_the_harness(
    options: WorkerOptions, harness: type[FakeHarness]
) -> None:
    users = (70_000, 70_001)
    running = Running(replace(options, sandbox_users=users, sandbox_bytes=5 << 20, cores=(0, 1)))
    until(lambda: bool(running.log))
    running.end()
    assert harness.limits.arguments == [
        *("--serve", "{folder}", "--cache-mib", "1024", "--sandbox-users", "70000-70001"),
        *("--sandbox-mib", "5", "--cores", "0-1"),
    ]
    assert HarnessLimits(1 << 20, sandbox_users=None, all_cores=True).arguments == [
        *("--serve", "{folder}", "--cache-mib", "1", "--sandbox-users", "none", "--cores", "all"),
    ]


def test_the_harness_of_this_machine_gets_no_variable(
    options: WorkerOptions, harness: type[FakeHarness], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A candidate can read the memory of its process."""
    given: list[Any] = []
    monkeypatch.setattr(process, "DeviceCommand", lambda *each: given.append(each))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    Running(options).end()
    (command,) = given
    assert command[3] == {}


def test_json_that_is_not_an_object_is_no_answer(server: Any, owner: str) -> None:
    with pytest.raises(Unreachable, match="JSON object"):
        Api(server.url, owner).call("GET", "/v1/jobs")
    assert json.dumps(Api(server.url, owner).call("GET", "/v1/health"))
