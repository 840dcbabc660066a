"""Askers take turns."""

from __future__ import annotations

import asyncio

import pytest

from tilewright.service.api.turns import TooManyError, Turns


async def _work(turns: Turns, asker: str, order: list[str]) -> None:
    async with turns.turn(asker):
        order.append(asker)
        await asyncio.sleep(0)


def test_askers_come_one_after_the_other_and_not_by_how_much_they_ask() -> None:
    order: list[str] = []

    async def run() -> None:
        turns = Turns(1, 100, 50)
        asked = ["a", "a", "a", "a", "b", "c", "b"]
        await asyncio.gather(*(_work(turns, each, order) for each in asked))

    asyncio.run(run())
    assert order == list("aabcaba")


def test_the_last_place_is_for_another() -> None:
    async def run() -> None:
        turns = Turns(2, 100, 50)
        order: list[str] = []
        async with turns.turn("a"):
            second = asyncio.ensure_future(_work(turns, "a", order))
            await asyncio.sleep(0)
            assert not second.done()
            await asyncio.wait_for(_work(turns, "b", order), 10)
            assert order == ["b"], "though a asked before"
        await second
        assert order == ["b", "a"]

    asyncio.run(run())


def test_who_goes_away_keeps_no_place() -> None:
    async def run() -> None:
        turns = Turns(1, 100, 50)
        order: list[str] = []
        async with turns.turn("a"):
            gone = [asyncio.ensure_future(_work(turns, each, order)) for each in "bcb"]
            await asyncio.sleep(0)
            for each in gone[:2]:
                each.cancel()
            await asyncio.sleep(0)
        # one that was let in and is cancelled in the same moment
        late = asyncio.ensure_future(_work(turns, "d", order))
        gone[2].cancel()
        await asyncio.wait_for(late, 10)
        assert order == ["d"]
        assert not turns._waiting and not turns._having and turns._free == 1

    asyncio.run(run())


def test_only_so_many_may_wait() -> None:
    async def run() -> None:
        turns = Turns(1, 3, 2)
        order: list[str] = []
        async with turns.turn("a"):
            waiting = [asyncio.ensure_future(_work(turns, each, order)) for each in "aab"]
            await asyncio.sleep(0)
            with pytest.raises(TooManyError, match="2 wait"):
                await _work(turns, "a", order)
            with pytest.raises(TooManyError, match="3 wait"):
                await _work(turns, "c", order)
        await asyncio.gather(*waiting)
        assert sorted(order) == ["a", "a", "b"]

    asyncio.run(run())
