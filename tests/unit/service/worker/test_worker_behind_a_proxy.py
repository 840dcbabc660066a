"""A worker's reaction to proxies, portals and redirects between it and the service."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.service.proxies import PAGE, Answer, Proxy
from tests.unit.service.workers import TARGET, FakeHarness, Running, queue, state
from tests.waiting import until
from tilewright.db.storage import Storage
from tilewright.db.stores.leases import NewRequest, RequestState
from tilewright.service.worker.claiming import MOST_DAMAGED
from tilewright.service.worker.http import Api, Refused, Unreachable
from tilewright.service.worker.options import WorkerOptions
from tilewright.service.worker.state import ASIDE_RESULTS, Spooled, StateFolder

pytestmark = pytest.mark.usefixtures("short_pauses")


@pytest.fixture
def proxy(server: Any) -> Iterator[Proxy]:
    made = Proxy(server.url)
    yield made
    made.close()


@pytest.fixture
def elsewhere() -> Iterator[Proxy]:
    """Another host, which notes every token that it is sent."""
    made = Proxy("http://127.0.0.1:9")
    made.instead = lambda path: (200, {"Content-Type": "application/json"}, b"{}")
    yield made
    made.close()


@pytest.fixture
def options(proxy: Proxy, owner: str, tmp_path: Path) -> WorkerOptions:
    return WorkerOptions(proxy.url, owner, "w", tmp_path / "state", ("x86-64-v3",))


def own_problem(status: int, slug: str, **extra: Any) -> Answer:
    """A problem document as the service writes it."""
    body = {"type": f"urn:tilewright:problem:{slug}", "title": slug, "status": status}
    data = json.dumps({**body, "detail": f"it is {slug}", **extra}).encode()
    return status, {"Content-Type": "application/problem+json"}, data


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_the_token_follows_no_redirect(
    proxy: Proxy, elsewhere: Proxy, status: int, tmp_path: Path
) -> None:
    proxy.instead = lambda path: (status, {"Location": elsewhere.url + path}, b"")
    api = Api(proxy.url, "secret")
    for method in ("GET", "POST"):
        with pytest.raises(Unreachable, match=r"redirect.*not followed"):
            api.call(method, "/v1/workers", {"name": "w"} if method == "POST" else None)
    with pytest.raises(Unreachable, match=r"redirect.*not followed"):
        api.download("/v1/blobs/x", "0" * 64, tmp_path / ("0" * 64))
    assert proxy.tokens == ["Bearer secret"] * 3 and elsewhere.tokens == []


@pytest.mark.parametrize(
    "answer",
    [
        PAGE,
        (403, {"Content-Type": "text/html"}, b"the firewall says no"),
        (401, {"Content-Type": "application/problem+json"}, b'{"type": "about:blank"}'),
        (409, {"Content-Type": "application/json"}, b'{"type": "urn:tilewright:problem:x"}'),
        (502, {}, b""),
        (200, {"Content-Type": "text/html"}, b"<h1>please log in</h1>"),
        (200, {"Content-Type": "application/json"}, b"[]"),
        own_problem(503, "storage-unavailable"),
        own_problem(429, "too-many-requests"),
        own_problem(404, "not-found"),  # no route: another release behind the same address
    ],
    ids=lambda answer: f"{answer[0]}-{len(answer[2])}",
)
def test_only_the_service_itself_refuses(proxy: Proxy, answer: Answer) -> None:
    proxy.instead = lambda path: answer
    with pytest.raises(Unreachable):
        Api(proxy.url, "t").call("GET", "/v1/workers")


def test_the_service_itself_refuses_with_a_problem_of_its_own(proxy: Proxy) -> None:
    proxy.instead = lambda path: own_problem(404, "not-found", what="worker")
    with pytest.raises(Refused, match="it is not-found") as refusal:
        Api(proxy.url, "t").call("GET", "/v1/workers")
    assert refusal.value.worker_unknown and not refusal.value.ends_worker
    proxy.instead = lambda path: own_problem(401, "unauthorized")
    with pytest.raises(Refused) as refusal:
        Api(proxy.url, "t").call("GET", "/v1/workers")
    assert refusal.value.ends_worker


@pytest.mark.parametrize("path", ["/v1/leases/claim", "/heartbeat", "/result", "/v1/blobs/"])
def test_a_proxys_404_ends_nothing_and_loses_nothing(
    proxy: Proxy,
    storage: Storage,
    start: Callable[[], Running],
    harness: type[FakeHarness],
    path: str,
) -> None:
    """While a service is replaced, its proxy answers 404 to everything for some seconds."""
    proxy.instead = lambda asked: PAGE if path in asked else None
    queue(storage, "a")
    running = start()
    until(lambda: len(proxy.answered) >= 3)
    proxy.instead = lambda asked: None
    until(lambda: state(storage, "a") is RequestState.DONE)
    assert harness.measured == ["a"] and running.error is None


def test_a_result_stays_in_the_spool_until_the_service_has_it(
    proxy: Proxy, storage: Storage, start: Callable[[], Running], options: WorkerOptions
) -> None:
    proxy.instead = lambda path: PAGE if path.endswith("/result") else None
    queue(storage, "a")
    start()
    until(lambda: len(proxy.answered) >= 3)
    assert [path.name for path in options.spool.rglob("spool/*")] == ["a.json"]
    proxy.instead = lambda path: None
    until(lambda: state(storage, "a") is RequestState.DONE)
    until(lambda: not [*options.spool.rglob("spool/*")])


@pytest.mark.parametrize(
    "refusal", [(409, "stale-lease"), (413, "too-large"), (422, "invalid-request")]
)
def test_a_result_that_the_service_never_takes_is_kept_aside(
    proxy: Proxy,
    storage: Storage,
    start: Callable[[], Running],
    options: WorkerOptions,
    refusal: tuple[int, str],
) -> None:
    def refused(path: str) -> Answer | None:
        paths = [f"/v1/leases/{lease.lease_id}/result" for lease in storage.leases.history("a")]
        return own_problem(*refusal) if path in paths else None

    proxy.instead = refused
    queue(storage, "a", "b")
    running = start()
    until(lambda: state(storage, "b") is RequestState.DONE)
    assert [path.name for path in options.spool.rglob("aside/*")] == ["a.json"]
    until(lambda: not [*options.spool.rglob("spool/*")])
    assert any("result of a is not wanted" in line for line in running.log)


def test_what_is_kept_aside_is_bounded(tmp_path: Path) -> None:
    files = StateFolder(tmp_path, "s")
    for number in range(ASIDE_RESULTS + 5):
        entry = Spooled(f"r{number}", "1" * 32, "key", {})
        files.spool(entry)
        files.set_aside(entry.request_id)
    assert len([*tmp_path.rglob("aside/*.json")]) == ASIDE_RESULTS
    assert files.spooled() == []


def test_a_spool_that_another_release_wrote_ends_nothing(
    storage: Storage, start: Callable[[], Running], options: WorkerOptions
) -> None:
    files = StateFolder(options.spool, options.server)
    for name, text in (("cut", '{"request_id": "cu'), ("old", '{"lease": 1}'), ("list", "[]")):
        (files.path / "spool" / f"{name}.json").write_text(text)
    files.close()
    queue(storage, "a")
    start()
    until(lambda: state(storage, "a") is RequestState.DONE)
    assert {p.stem for p in options.spool.rglob("aside/*.json")} == {"cut", "old", "list"}


def test_a_worker_that_the_service_forgot_registers_before_it_reports(
    storage: Storage,
    start: Callable[[], Running],
    harness: type[FakeHarness],
) -> None:
    """It has no free slot because it cannot report its results: the reporting thread must register
    it again."""
    harness.gate.clear()
    queue(storage, "a")
    start()
    until(harness.started.is_set)
    storage.workers.forget(-1000.0)
    harness.gate.set()
    until(lambda: state(storage, "a") is RequestState.DONE)


@pytest.mark.parametrize("answer", [{}, {"leases": 7}, {"leases": ["x"]}, {"leases": [{}]}])
def test_an_answer_that_makes_no_sense_ends_nothing(
    proxy: Proxy, storage: Storage, start: Callable[[], Running], answer: dict[str, Any]
) -> None:
    said = (200, {"Content-Type": "application/json"}, json.dumps(answer).encode())
    proxy.instead = lambda path: said if path.endswith("/claim") else None
    start()
    until(lambda: len(proxy.answered) >= 2)
    proxy.instead = lambda path: None
    storage.leases.submit([NewRequest("old", TARGET, {"protocol": 99})])
    until(lambda: state(storage, "old") is RequestState.FAILED)


def test_that_it_waits_for_the_service_is_said_once(
    proxy: Proxy, start: Callable[[], Running]
) -> None:
    nonsense = (200, {"Content-Type": "application/json"}, b"{}")
    proxy.instead = lambda path: nonsense if path == "/v1/workers" else None
    running = start()
    until(lambda: len(proxy.answered) >= 3)
    proxy.instead = lambda path: None
    until(lambda: any(line.startswith("registered as ") for line in running.log))
    assert [line.startswith("waiting for the service: ") for line in running.log[:2]] == [
        True,
        False,
    ]


def test_a_registration_whose_answer_was_lost_makes_one_worker(
    storage: Storage, proxy: Proxy, start: Callable[[], Running]
) -> None:
    lost: list[str] = []

    def loses(path: str, answer: bytes) -> bool:
        if path == "/v1/workers" and not lost:
            lost.append(path)
            return True
        return False

    proxy.loses = loses
    start()
    queue(storage, "a")
    until(lambda: state(storage, "a") is RequestState.DONE)
    assert lost and len(storage.workers.list()) == 1


def test_leases_whose_answer_was_lost_come_with_the_next_claim(
    storage: Storage, proxy: Proxy, start: Callable[[], Running], harness: type[FakeHarness]
) -> None:
    """They do not expire first: the settings give them longer than the test waits."""
    lost: list[bytes] = []

    def loses(path: str, answer: bytes) -> bool:
        first = path.endswith("/claim") and b"payload" in answer and not lost
        if first:
            lost.append(answer)
        return first

    proxy.loses = loses
    queue(storage, "a", "b")
    start()
    until(lambda: {state(storage, name) for name in "ab"} == {RequestState.DONE})
    (answer,) = lost
    named = {lease["request_id"]: lease["lease_id"] for lease in json.loads(answer)["leases"]}
    assert named
    for name, lease_id in named.items():
        (lease,) = storage.leases.history(name)
        assert lease.lease_id == lease_id


def test_a_blob_that_always_arrives_damaged_is_given_up(
    proxy: Proxy, storage: Storage, start: Callable[[], Running], harness: type[FakeHarness]
) -> None:
    """It is fetched some times; then the lease ends with the reason, and no worker is blamed for a
    crash."""
    proxy.instead = lambda path: (200, {}, b"other bytes") if "/v1/blobs/" in path else None
    queue(storage, "a")
    start()
    until(lambda: [lease.outcome for lease in storage.leases.history("a")][:1] == ["failed"])
    first = storage.leases.history("a")[0]
    assert first.error.endswith(f"arrived damaged {MOST_DAMAGED} times")
    assert first.blame == "service"
    proxy.instead = lambda path: None
    until(lambda: state(storage, "a") is RequestState.DONE)
    assert harness.measured == ["a"]
