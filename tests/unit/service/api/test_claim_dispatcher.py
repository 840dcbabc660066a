"""Waiting claims: grouped into one search, served in turn, and never left with a lease without a
worker."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, cast

import pytest
from starlette.requests import Request

from tilewright.db.errors import NotFoundError, StorageError
from tilewright.db.notices import queue_topic, worker_topic
from tilewright.db.stores.lease_claims import Claim, Found
from tilewright.db.stores.leases import Lease
from tilewright.service.api.notifier import Notifier
from tilewright.service.api.waiting import MOST, ClaimDispatcher

LONG = 600.0


def claim(name: str, limit: int = 1, claim_id: str | None = None, target: str = "t") -> Claim:
    return Claim(name, (target,), limit, "token", claim_id)


def names(leases: Sequence[Lease]) -> list[str]:
    return [lease.request_id for lease in leases]


class Client:
    """A client that sends a claim; it may disconnect."""

    def __init__(self) -> None:
        self._gone = asyncio.Event()

    def leave(self) -> None:
        self._gone.set()

    async def receive(self) -> Mapping[str, Any]:
        await self._gone.wait()
        return {"type": "http.disconnect"}


class Queue:
    """A queue as the database would keep it, and a record of the searches in it.

    A look waits for `gate`, in its thread.
    """

    def __init__(self) -> None:
        self.waiting: list[str] = []
        self.looks: list[list[str]] = []
        self.live: dict[str, str] = {}
        self.gone: set[str] = set()
        self.barred: set[str] = set()
        self.given_back: list[str] = []
        self.errors: list[Exception] = []
        self.gate = threading.Event()
        self.gate.set()

    def look(self, claims: Sequence[Claim]) -> Sequence[Found | NotFoundError]:
        self.looks.append([each.worker_id for each in claims])
        assert self.gate.wait(60.0)
        if self.errors:
            raise self.errors.pop()
        return [self._found(each) for each in claims]

    def _found(self, each: Claim) -> Found | NotFoundError:
        if each.worker_id == "nobody":
            return NotFoundError("worker", "nobody")
        if each.worker_id in self.gone:
            return Found(gone=True)
        if each.worker_id in self.barred:
            return Found()
        taken, self.waiting = self.waiting[: each.limit], self.waiting[each.limit :]
        self.live |= dict.fromkeys(taken, each.worker_id)
        made = [Lease(name, name, None, "t", {}, (), each.worker_id, 1, 0.0) for name in taken]
        return Found(made, empty=not taken)

    def give_back(self, worker_id: str, lease_ids: Sequence[str]) -> int:
        assert {self.live.pop(name) for name in lease_ids} == {worker_id}
        self.given_back += lease_ids
        return len(lease_ids)


class House:
    """A dispatcher for a queue, and the clients that wait in it."""

    def __init__(self) -> None:
        self.queue = Queue()
        self.notifier = Notifier(cast(Any, None), _no_states)
        self.room = ClaimDispatcher(self.notifier, self.queue.look, self.queue.give_back)

    def asks(
        self, each: Claim, seconds: float = LONG, client: Client | None = None
    ) -> asyncio.Task[Sequence[Lease]]:
        asker = cast(Request, client or Client())
        return asyncio.create_task(self.room.first_work(each, seconds, asker))

    def submit(self, *requests: str, target: str = "t") -> None:
        self.queue.waiting += requests
        self.notifier.wake([queue_topic(target)])

    async def quiet(self) -> None:
        """Wait until no search and no return of a lease is running, and the notified clients went
        on."""
        still = 0
        while still < 20:
            await asyncio.sleep(0)
            busy = self.room._serving is not None or self.room._giving_back
            still = 0 if busy else still + 1

    async def looking(self, looks: int) -> None:
        while len(self.queue.looks) < looks:
            await asyncio.sleep(0)


def _no_states(_: Collection[str], /) -> Mapping[str, int]:
    return {}


def in_house(test: Callable[[House], Awaitable[None]]) -> Callable[[], None]:
    """Run a test in an event loop, with a room that is empty again at its end."""

    async def run() -> None:
        house = House()
        async with asyncio.timeout(60.0):
            await test(house)
            await house.quiet()
        assert not house.room._queues and not house.room._named and not house.room._changed
        assert not house.notifier._ears

    def wrapped() -> None:
        asyncio.run(run())

    wrapped.__name__ = test.__name__
    wrapped.__doc__ = test.__doc__
    return wrapped


@in_house
async def test_claims_that_come_together_are_looked_for_together(house: House) -> None:
    house.queue.waiting = ["a", "b", "c"]
    asked = [house.asks(claim(f"w{n}")) for n in range(3)]
    assert [names(await each) for each in asked] == [["a"], ["b"], ["c"]]
    assert house.queue.looks == [["w0", "w1", "w2"]]


@in_house
async def test_claims_that_come_during_a_look_are_in_the_next(house: House) -> None:
    house.queue.gate.clear()
    house.queue.waiting = ["a", "b", "c"]
    asked = [house.asks(claim("w0"))]
    await house.looking(1)
    asked += [house.asks(claim(f"w{n}")) for n in (1, 2)]
    await asyncio.sleep(0)
    house.queue.gate.set()
    assert [names(await each) for each in asked] == [["a"], ["b"], ["c"]]
    assert house.queue.looks == [["w0"], ["w1", "w2"]]


@in_house
async def test_a_claim_that_finds_nothing_is_looked_for_once(house: House) -> None:
    assert names(await house.asks(claim("w"), 0.0)) == []
    assert names(await house.asks(claim("w"), 0.01)) == []
    assert house.queue.looks == [["w"], ["w"]]


@in_house
async def test_one_request_is_looked_for_by_few_of_many_that_wait(house: House) -> None:
    """The others learn that nothing is left, without a search of their own."""
    asked = [house.asks(claim(f"w{n}")) for n in range(3 * MOST)]
    await house.quiet()
    before = len(house.queue.looks)
    house.submit("a")
    await house.quiet()
    assert [len(look) for look in house.queue.looks[before:]] == [MOST]
    assert [names(each.result()) for each in asked if each.done()] == [["a"]]
    # and the next is looked for by the clients that searched longest ago
    house.submit("b")
    await house.quiet()
    assert set(house.queue.looks[-1]).isdisjoint(house.queue.looks[-2])
    house.room.close()
    await asyncio.gather(*asked)


@in_house
async def test_many_requests_wake_all_that_wait(house: House) -> None:
    asked = [house.asks(claim(f"w{n}")) for n in range(3 * MOST)]
    await house.quiet()
    house.submit(*(str(n) for n in range(3 * MOST)))
    found = await asyncio.gather(*asked)
    assert sorted(names(each)[0] for each in found) == sorted(str(n) for n in range(3 * MOST))


@in_house
async def test_a_request_that_comes_during_a_look_is_found(house: House) -> None:
    asked = house.asks(claim("w"))
    await house.quiet()
    house.queue.gate.clear()
    house.notifier.wake([queue_topic("t")])
    await house.looking(2)
    house.queue.gate.set()  # this look has begun; its answer may be that there is nothing
    house.submit("a")
    assert names(await asked) == ["a"]


@in_house
async def test_those_who_may_take_nothing_hold_up_nobody(house: House) -> None:
    house.queue.barred = {f"w{n}" for n in range(2 * MOST)}
    asked = [house.asks(claim(f"w{n}")) for n in range(2 * MOST + 1)]
    await house.quiet()
    house.submit("a")
    assert names(await asked[-1]) == ["a"]
    await house.quiet()
    looks = len(house.queue.looks)
    house.submit("b")  # no worker can take it: each is looked up once, and never again
    await house.quiet()
    assert sorted(name for look in house.queue.looks[looks:] for name in look) == sorted(
        house.queue.barred
    )
    house.room.close()
    await asyncio.gather(*asked)


@in_house
async def test_a_change_of_its_worker_has_a_claim_looked_for(house: House) -> None:
    asked = [house.asks(claim(f"w{n}")) for n in range(3)]
    await house.quiet()
    house.queue.gone = {"w1"}
    house.notifier.wake([worker_topic("w1")])
    assert names(await asked[1]) == []
    assert house.queue.looks == [["w0", "w1", "w2"], ["w1"]]
    house.room.close()
    await asyncio.gather(*asked)


@in_house
async def test_a_change_during_a_look_is_heard(house: House) -> None:
    house.queue.gate.clear()
    asked = house.asks(claim("w"))
    await house.looking(1)
    house.notifier.wake([worker_topic("w")])
    house.queue.gate.set()
    await house.looking(2)
    assert house.queue.looks == [["w"], ["w"]]
    house.room.close()
    assert names(await asked) == []


@in_house
async def test_what_was_taken_for_a_client_that_went_away_goes_back(house: House) -> None:
    house.queue.gate.clear()
    house.queue.waiting = ["a", "b"]
    client = Client()
    asked = house.asks(claim("w", limit=2), client=client)
    await house.looking(1)
    client.leave()
    assert names(await asked) == []
    house.queue.gate.set()
    await house.quiet()
    assert house.queue.given_back == ["a", "b"] and not house.queue.live


@in_house
async def test_what_was_taken_for_a_request_that_was_cancelled_goes_back(house: House) -> None:
    house.queue.gate.clear()
    house.queue.waiting = ["a"]
    asked = house.asks(claim("w"))
    await house.looking(1)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    house.queue.gate.set()
    await house.quiet()
    assert house.queue.given_back == ["a"]


@in_house
async def test_a_client_that_goes_away_while_it_waits_leaves_its_place(house: House) -> None:
    client = Client()
    asked = house.asks(claim("w"), client=client)
    await house.quiet()
    client.leave()
    assert names(await asked) == []
    assert not house.room._queues


@in_house
async def test_a_claim_that_is_sent_again_meanwhile_is_the_same(house: House) -> None:
    """Two requests of one name get the same leases, and leases that one of them misses are not
    given back."""
    house.queue.gate.clear()
    house.queue.waiting = ["a", "b"]
    client = Client()
    first = house.asks(claim("w", claim_id="1"), client=client)
    await house.looking(1)
    client.leave()
    assert names(await first) == []
    again = house.asks(claim("w", claim_id="1"))
    twice = house.asks(claim("w", claim_id="1"))
    another = house.asks(claim("w", claim_id="2"))
    await asyncio.sleep(0)
    house.queue.gate.set()
    assert names(await again) == names(await twice) == ["a"]
    assert names(await another) == ["b"]
    await house.quiet()
    assert house.queue.given_back == []


@in_house
async def test_an_error_is_told_to_those_who_waited_for_it(house: House) -> None:
    idle = house.asks(claim("idle", target="other"))
    await house.quiet()
    house.queue.errors = [StorageError("the disk is full")]
    asked = [house.asks(claim(f"w{n}")) for n in range(2)]
    for each in asked:
        with pytest.raises(StorageError, match="full"):
            await each
    with pytest.raises(NotFoundError):
        await house.asks(claim("nobody"))
    house.submit("a", target="other")
    assert names(await idle) == ["a"]


@in_house
async def test_a_room_that_closes_keeps_nobody_and_loses_nothing(house: House) -> None:
    idle = house.asks(claim("idle", target="other"))
    await house.quiet()
    house.queue.gate.clear()
    house.queue.waiting = ["a"]
    asked = house.asks(claim("w"))
    await house.looking(2)
    house.room.close()
    assert names(await idle) == []
    house.queue.gate.set()
    assert names(await asked) == ["a"]
    await house.room.end()
    assert names(await house.asks(claim("late"), LONG)) == []
