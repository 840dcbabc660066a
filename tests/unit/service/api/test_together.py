"""Questions of one moment are answered by one call, and an error is only theirs who caused it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from tilewright.db.errors import StorageError
from tilewright.service.api.together import Together


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
        together = Together(calls, 3)
        assert await asyncio.gather(*map(together.ask, range(7))) == [2 * n for n in range(7)]
        assert calls.seen == [[0, 1, 2], [3, 4, 5], [6]]
        assert await together.ask(8) == 16

    asyncio.run(run())


def test_questions_gather_while_a_call_is_done() -> None:
    async def run() -> None:
        calls = Calls()
        calls.gate.clear()
        together = Together(calls, 10)
        asked = [asyncio.create_task(together.ask(0))]
        while not calls.seen:
            await asyncio.sleep(0)
        for n in range(1, 4):
            asked.append(asyncio.create_task(together.ask(n)))
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
        asked = [Together(calls, 10)] * 4
        told = await asyncio.gather(
            *(each.ask(n) for each, n in zip(asked, (1, -2, 13, 4), strict=True)),
            return_exceptions=True,
        )
        assert (told[0], told[3]) == (2, 8)
        assert isinstance(told[1], ValueError)
        assert isinstance(told[2], ZeroDivisionError)

    asyncio.run(run())


def test_a_database_that_does_not_answer_is_not_asked_again_for_each() -> None:
    async def run() -> None:
        calls = Calls()
        calls.broken = StorageError("away")
        together = Together(calls, 10)
        told = await asyncio.gather(*map(together.ask, range(5)), return_exceptions=True)
        assert all(isinstance(each, StorageError) for each in told)
        assert len(calls.seen) == 1
        calls.broken = None
        with pytest.raises(ValueError, match="-1"):
            await together.ask(-1)
        assert await together.ask(1) == 2

    asyncio.run(run())
