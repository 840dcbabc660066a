"""Streams and long polls are woken; while nothing happens they send no queries and hold no
connections."""

from __future__ import annotations

import asyncio
import threading
import urllib.request
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient

from tests.waiting import until_async
from tilewright.compiler.targets.target import known_targets
from tilewright.db.storage import Storage
from tilewright.service.api.notifier import Notifier
from tilewright.service.api.routes.events import LAST_EVENT
from tilewright.tuner.protocol.version import PROTOCOL

TARGET = known_targets()["x86-64-v3"].key


class Silent:
    """A source whose notices are all lost."""

    def __init__(self) -> None:
        self.ended = threading.Event()

    def wait(self, seconds: float) -> Sequence[str] | None:
        self.ended.wait(seconds)
        return ()

    def close(self) -> None:
        self.ended.set()


def states(values: Mapping[str, int]) -> Any:
    def ask(topics: Collection[str]) -> Mapping[str, int]:
        return {topic: values[topic] for topic in topics if topic in values}

    return ask


@contextmanager
def statements(storage: Storage, table: str) -> Iterator[list[str]]:
    """The queries on a table meanwhile."""
    seen: list[str] = []

    def note(_c: Any, _cu: Any, statement: str, *_: Any) -> None:
        if f"FROM {table}" in statement.replace("\n", ""):
            seen.append(statement)

    sa.event.listen(storage.engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        sa.event.remove(storage.engine, "before_cursor_execute", note)


def test_an_idle_stream_asks_nothing(server: Any, storage: Storage) -> None:
    secret = server.settings.token_file.read_text().strip()
    job = storage.jobs.create(storage.models.add(b"model", "m").digest, "host", "host-key")
    request = urllib.request.Request(
        f"{server.url}/v1/jobs/{job.id}/events", headers={"Authorization": f"Bearer {secret}"}
    )
    worker = storage.workers.register("w", [TARGET], {}, protocol=PROTOCOL)
    claim = urllib.request.Request(
        f"{server.url}/v1/leases/claim",
        data=b'{"worker_id": "%s", "wait_seconds": 30}' % worker.id.encode(),
        headers={"Authorization": f"Bearer {secret}", "Content-Type": "application/json"},
    )
    with (
        statements(storage, "job_events") as asked,
        urllib.request.urlopen(request, timeout=30) as stream,
    ):
        while b"queued" not in stream.readline():
            pass
        # long polls that find nothing take longer than any poll of a stream did
        urllib.request.urlopen(claim, timeout=30).read()
        selected = len(asked)  # one that found the first event, and one for each notice until now
        for _ in range(2):
            urllib.request.urlopen(claim, timeout=30).read()
        assert len(asked) == selected
        storage.jobs.cancel(job.id)
        assert b"cancelled" in stream.read()


@pytest.mark.parametrize(
    "number", ["9" * 19, "9" * 20, "9" * 5000, "99999999999999999999", "-1", "1.5", "²"]
)
def test_an_event_number_that_nobody_sent_breaks_no_stream(
    client: TestClient, storage: Storage, number: str
) -> None:
    job = storage.jobs.create(storage.models.add(b"model", "m").digest, "host", "host-key")
    storage.jobs.cancel(job.id)
    path = f"/v1/jobs/{job.id}/events"
    answer = client.get(path, headers={"Last-Event-ID": number.encode("latin-1")})
    assert answer.status_code == 200
    # a number larger than all leaves nothing to send; an invalid one counts as not sent
    assert ("cancelled" in answer.text) == (not (number.isascii() and len(number) == 19))
    assert client.get(path, params={"after": LAST_EVENT + 1}).status_code == 422


def test_a_lost_notice_is_made_up_for() -> None:
    values = {"job:a": 1, "job:b": 1}

    async def run() -> None:
        notifier = Notifier(Silent(), states(values), fallback_seconds=3600)
        await notifier.start()
        with notifier.listening("job:a") as first, notifier.listening("job:b") as second:
            before = await notifier.ask({})
            # new to it: it cannot know whether an earlier announcement was lost
            assert await first.woken(0) == {"job:a"}
            assert await second.woken(0) == {"job:b"}
            values["job:b"] = 2
            await notifier.ask(before)
            assert await second.woken(0) == {"job:b"}
            assert await first.woken(0) == frozenset()
        await notifier.stop()

    asyncio.run(run())


def test_the_one_task_that_makes_up_runs_by_itself() -> None:
    async def run() -> None:
        notifier = Notifier(Silent(), states({"queue:t": 7}), fallback_seconds=0.001)
        await notifier.start()
        with notifier.listening("queue:t") as ears:
            assert await ears.woken(30) == {"queue:t"}
        await notifier.stop()

    asyncio.run(run())


def test_a_notice_between_a_look_and_the_wait_is_heard() -> None:
    async def run() -> None:
        notifier = Notifier(Silent(), states({}))
        with notifier.listening("job:a") as ears:
            notifier.wake(["job:a", "job:b"])
            assert await ears.woken(30) == {"job:a"}
            assert await ears.woken(0) == frozenset()
            notifier.wake_all()
            assert await ears.woken(30) == {"job:a"}

    asyncio.run(run())


class Failing(Silent):
    """A source that fails in unexpected ways, and then hears of a job."""

    def __init__(self, errors: Iterable[BaseException]) -> None:
        super().__init__()
        self.errors = list(errors)
        self.done = threading.Event()

    def wait(self, seconds: float) -> Sequence[str] | None:
        if self.errors:
            raise self.errors.pop(0)
        self.done.set()
        return super().wait(seconds)


def test_whatever_goes_wrong_the_notifier_goes_on() -> None:
    """It cannot know which announcements it missed, so it wakes every waiter."""
    failures: list[None] = []
    source = Failing([ValueError("a bug"), KeyError("another"), OSError("no file")])

    async def run() -> None:
        notifier = Notifier(
            source, states({}), 3600, failed=lambda: failures.append(None), retry_seconds=0.001
        )
        with notifier.listening("job:a") as ears:
            await notifier.start()
            await asyncio.to_thread(source.done.wait, 60)
            source.ended.set()
            assert await ears.woken(60) == {"job:a"}
            assert len(failures) == 3 and notifier.seconds_without_notices < 60
        await notifier.stop()

    asyncio.run(run())


def test_what_makes_up_for_lost_notices_goes_on_too() -> None:
    asked: list[None] = []
    failures: list[None] = []

    def failing(topics: Collection[str]) -> Mapping[str, int]:
        asked.append(None)
        if len(asked) < 3:
            raise ValueError("a bug")
        return dict.fromkeys(topics, 1)

    async def run() -> None:
        notifier = Notifier(Silent(), failing, 0.001, failed=lambda: failures.append(None))
        with notifier.listening("job:a") as ears:
            await notifier.start()
            assert await ears.woken(60) == {"job:a"}
        assert len(failures) == 2
        await notifier.stop()

    asyncio.run(run())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_notifier_says_for_how_long_it_has_been_deaf() -> None:
    now = [100.0]
    again = threading.Event()

    class Deaf(Silent):
        def wait(self, seconds: float) -> Sequence[str] | None:
            if not again.is_set():
                raise ValueError("a bug")
            return super().wait(0.01)

    async def run() -> None:
        notifier = Notifier(Deaf(), states({}), 3600, retry_seconds=0.001, clock=lambda: now[0])
        await notifier.start()
        now[0] = 140.0
        assert notifier.seconds_without_notices == 40.0
        again.set()
        await until_async(lambda: not notifier.seconds_without_notices)
        await notifier.stop()

        dead = Notifier(Failing([SystemExit()]), states({}), 3600)
        await dead.start()
        await until_async(lambda: dead.seconds_without_notices >= 1e9)
        await dead.stop()

    asyncio.run(run())
