"""Answers that are kept in memory are bounded by bytes; who asks at once is answered once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum

import pytest

from tilewright.service.api.remembered import Remembered, held_bytes


class Counted:
    """Makes answers of given sizes, and counts how often."""

    def __init__(self) -> None:
        self.made: list[str] = []

    def __call__(self, key: str, size: int) -> Callable[[], Awaitable[tuple[str, int]]]:
        async def make() -> tuple[str, int]:
            self.made.append(key)
            await asyncio.sleep(0)
            return f"of {key}", size

        return make


def test_the_oldest_answers_leave_when_all_together_are_too_large() -> None:
    kept: Remembered[str] = Remembered(100)
    make = Counted()

    async def run() -> None:
        for key in ("a", "b", "c"):
            assert await kept.get(key, make(key, 30)) == f"of {key}"
        await kept.get("a", make("a", 30))  # asked for again: b is the oldest now
        await kept.get("d", make("d", 60))
        assert [key in kept for key in "abcd"] == [True, False, False, True]
        assert kept.held_bytes == 90
        assert await kept.get("huge", make("huge", 101)) == "of huge"

    asyncio.run(run())
    assert make.made == ["a", "b", "c", "d", "huge"]
    assert kept.held_bytes == 0 and "huge" not in kept


def test_what_is_being_made_is_not_forgotten_by_what_is_done_first() -> None:
    kept: Remembered[str] = Remembered(10)
    make = Counted()
    gate = asyncio.Event()

    async def slow() -> tuple[str, int]:
        make.made.append("slow")
        await gate.wait()
        return "late", 10

    async def run() -> None:
        first = asyncio.ensure_future(kept.get("slow", slow))
        await asyncio.sleep(0)
        for key in ("a", "b"):
            await kept.get(key, make(key, 10))
        second = asyncio.ensure_future(kept.get("slow", slow))
        await asyncio.sleep(0)
        first.cancel()  # whoever asked first goes away
        gate.set()
        assert await second == "late"

    asyncio.run(run())
    assert make.made == ["slow", "a", "b"]
    assert "slow" in kept and kept.held_bytes == 10


def test_a_failure_is_raised_by_all_who_wait_and_not_remembered() -> None:
    kept: Remembered[str] = Remembered(10)

    async def fail() -> tuple[str, int]:
        await asyncio.sleep(0)
        raise ValueError("no")

    async def run() -> None:
        found = await asyncio.gather(
            kept.get("a", fail), kept.get("a", fail), return_exceptions=True
        )
        assert [type(each) for each in found] == [ValueError, ValueError]
        assert "a" not in kept
        assert await kept.get("a", Counted()("a", 1)) == "of a"

    asyncio.run(run())


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True, slots=True)
class Held:
    text: str
    others: tuple[object, ...]


def test_the_memory_of_a_value_is_that_of_all_it_refers_to_once() -> None:
    text = "x" * 100_000
    assert 100_000 <= held_bytes(Held(text, ())) < 100_500
    assert held_bytes(Held(text, (text, [text]))) < 100_800, "shared, and counted once"
    assert held_bytes({"a": [text, text + "y"]}) > 200_000
    assert held_bytes(Held("a", (Colour.RED, Held))) < 500, "classes are there anyway"
    deep: object = text
    for _ in range(5000):
        deep = [deep]
    assert held_bytes(deep) == pytest.approx(100_000 + 5000 * 64, rel=0.05)
