"""Concurrent questions share calls, and an error is raised only by the callers that caused it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from tilewright.db.errors import StorageError
from tilewright.service.api.concurrency import Batcher, SingleFlight, in_thread


class Calls:
    """Doubles numbers; negative ones are errors. A call waits for `gate`."""

    def __init__(self) -> None:
        self.seen: list[list[int]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.broken: Exception | None = None

    def __call__(self, numbers: Sequence[int]) -> Sequence[int | Exception]:
        self.seen.append(list(numbers))
        assert self.gate.wait(60.0)
        if self.broken is not None:
            raise self.broken
        if 13 in numbers:
            raise ZeroDivisionError
        return [ValueError(str(n)) if n < 0 else 2 * n for n in numbers]


def test_questions_of_one_moment_are_one_call() -> None:
    async def run() -> None:
        calls = Calls()
        batcher = Batcher(in_thread(calls), 3)
        assert await asyncio.gather(*map(batcher.ask, range(7))) == [2 * n for n in range(7)]
        assert calls.seen == [[0, 1, 2], [3, 4, 5], [6]]
        assert await batcher.ask(8) == 16

    asyncio.run(run())


def test_questions_gather_while_a_call_is_done() -> None:
    async def run() -> None:
        calls = Calls()
        calls.gate.clear()
        batcher = Batcher(in_thread(calls), 10)
        asked = [asyncio.create_task(batcher.ask(0))]
        while not calls.seen:
            await asyncio.sleep(0)
        for n in range(1, 4):
            asked.append(asyncio.create_task(batcher.ask(n)))
            await asyncio.sleep(0)
        asked[1].cancel()
        calls.gate.set()
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert [answers[0], *answers[2:]] == [0, 4, 6]
        assert isinstance(answers[1], asyncio.CancelledError)
        assert calls.seen == [[0], [1, 2, 3]]

    asyncio.run(run())


def test_an_error_is_only_theirs_who_caused_it() -> None:
    async def run() -> None:
        calls = Calls()
        asked = [Batcher(in_thread(calls), 10)] * 4
        told = await asyncio.gather(
            *(each.ask(n) for each, n in zip(asked, (1, -2, 13, 4), strict=True)),
            return_exceptions=True,
        )
        assert (told[0], told[3]) == (2, 8)
        assert isinstance(told[1], ValueError)
        assert isinstance(told[2], ZeroDivisionError)

    asyncio.run(run())


def test_a_batch_without_a_limit_holds_all_questions() -> None:
    async def run() -> None:
        seen: list[int] = []

        async def answer(numbers: Sequence[int]) -> Sequence[int]:
            seen.append(len(numbers))
            return numbers

        batcher: Batcher[int, int] = Batcher(answer)
        assert await asyncio.gather(*map(batcher.ask, range(200))) == list(range(200))
        assert seen == [200]

    asyncio.run(run())


def test_a_database_that_does_not_answer_is_not_asked_again_for_each() -> None:
    async def run() -> None:
        calls = Calls()
        calls.broken = StorageError("away")
        batcher = Batcher(in_thread(calls), 10)
        told = await asyncio.gather(*map(batcher.ask, range(5)), return_exceptions=True)
        assert all(isinstance(each, StorageError) for each in told)
        assert len(calls.seen) == 1
        calls.broken = None
        with pytest.raises(ValueError, match="-1"):
            await batcher.ask(-1)
        assert await batcher.ask(1) == 2

    asyncio.run(run())


class Flights:
    """Calls that wait for `gate` and return their number."""

    def __init__(self) -> None:
        self.begun = 0
        self.gate = asyncio.Event()
        self.error: Exception | None = None

    async def __call__(self) -> int:
        self.begun += 1
        number = self.begun
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return number


def test_callers_of_a_key_share_a_call_that_survives_the_first_of_them() -> None:
    async def run() -> None:
        make, flights = Flights(), SingleFlight[str, int]()
        callers = [asyncio.create_task(flights.run("a", make)) for _ in range(5)]
        other = asyncio.create_task(flights.run("b", make))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        callers.pop(0).cancel()
        assert "a" in flights and "c" not in flights
        make.gate.set()
        assert await asyncio.gather(*callers) == [1] * 4
        assert await other == 2
        assert "a" not in flights
        assert await flights.run("a", make) == 3, "results are not kept"

    asyncio.run(run())


def test_a_failed_call_is_raised_by_all_its_callers_and_by_no_later_one() -> None:
    async def run() -> None:
        make, flights = Flights(), SingleFlight[str, int]()
        make.error = ValueError("no")
        make.gate.set()

        async def again() -> int:
            with pytest.raises(ValueError, match="no"):
                await flights.run("a", make)
            make.error = None
            return await flights.run("a", make)

        told = await asyncio.gather(again(), flights.run("a", make), return_exceptions=True)
        assert told[0] == 2 and isinstance(told[1], ValueError)

    asyncio.run(run())


def test_a_forgotten_call_is_not_joined_and_does_not_end_the_next_one() -> None:
    async def run() -> None:
        first, second, flights = Flights(), Flights(), SingleFlight[str, int]()
        old = asyncio.create_task(flights.run("a", first))
        await asyncio.sleep(0)
        flights.forget()
        new = asyncio.create_task(flights.run("a", second))
        await asyncio.sleep(0)
        first.gate.set()
        assert await old == 1
        assert "a" in flights
        second.gate.set()
        assert (await new, second.begun) == (1, 1)

    asyncio.run(run())
