"""With which worker of several a runner's requests wait, and how often it looks."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from tests.measured import honest
from tests.unit.service.remote_runs import TARGET, Clock, new_job, runner, send, work
from tilewright.db.engine import writing
from tilewright.db.models import WorkerRow
from tilewright.db.storage import Storage
from tilewright.db.stores.leases import LeaseStore, RequestState
from tilewright.service.jobs.device.remote_runner import (
    FEW,
    PAUSE_SECONDS,
    POLL_SECONDS,
    TURN_SECONDS,
    RemoteRunner,
)
from tilewright.tuner.cancel import CancelToken
from tilewright.tuner.protocol.batches import MeasureRequest


@pytest.fixture
def job(storage: Storage) -> str:
    return new_job(storage)


def test_with_many_under_way_what_comes_together_is_taken_together(
    storage: Storage, job: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight jobs of a tuner sent 400 queries a second, for one outcome each."""
    looks: list[float] = []
    unstored = LeaseStore.unstored

    def note(store: LeaseStore, *arguments: Any) -> Any:
        looks.append(clock.now)
        return unstored(store, *arguments)

    class Interrupt(CancelToken):
        def wait(self, timeout_seconds: float) -> bool:
            clock.now += timeout_seconds
            return False

    monkeypatch.setattr(LeaseStore, "unstored", note)
    remote = RemoteRunner(storage, job, TARGET, Interrupt(), clock=clock)
    send(remote, *map(str, range(FEW)))
    remote.poll(0.09)
    assert len(looks) == 6, "at once, and after each pause but the last"
    looks.clear()
    clock.now += 1.0
    send(remote, *map(str, range(FEW, 5 * FEW)))
    remote.poll(1.0)
    pause = 4 * FEW * PAUSE_SECONDS
    assert 1.0 / (pause + POLL_SECONDS) <= len(looks) <= 1.0 / pause + 1
    taken = work(storage)
    clock.now += pause
    assert [result.request_id for result in remote.poll(0.0)] == taken != []


@pytest.fixture
def clock() -> Clock:
    return Clock()


def registered(storage: Storage, *names: str) -> list[str]:
    return [storage.workers.register(name, [TARGET], {}).id for name in names]


def takes(storage: Storage, worker: str) -> list[str]:
    found = storage.leases.claim(worker, [TARGET], limit=10, lease_seconds=60)
    return [lease.request_id for lease in found]


def test_what_a_named_worker_does_not_take_goes_to_the_next(
    storage: Storage, job: str, clock: Clock
) -> None:
    """A live worker that takes nothing looks the same as a busy one."""
    slow, drained, quick = registered(storage, "slow", "drained", "quick")
    storage.workers.drain(drained)
    names = [slow, drained, quick]
    remote = RemoteRunner(storage, job, TARGET, CancelToken(), names, clock=clock)
    send(remote, *"ab")
    (lease,) = storage.leases.claim(slow, [TARGET], limit=1, lease_seconds=60)
    assert lease.request_id == "a"
    clock.now = TURN_SECONDS - 0.1
    remote.poll(0.0)
    assert takes(storage, quick) == [], "its turn is not over"
    clock.now = TURN_SECONDS
    remote.poll(0.0)
    assert takes(storage, slow) == [] and takes(storage, quick) == ["b"]
    result = honest(MeasureRequest.from_json(lease.payload), slow)
    storage.leases.complete(lease.lease_id, slow, "key", result.to_json())
    assert [found.worker for found in remote.poll(0.0)] == [slow], "what was taken stays taken"
    send(remote, "c")
    assert takes(storage, slow) == [] and takes(storage, quick) == ["c"]
    send(remote, "d")
    clock.now += TURN_SECONDS
    remote.poll(0.0)
    assert takes(storage, slow) == ["d"], "turns go round"


def test_a_turn_begins_when_there_is_something_to_take(
    storage: Storage, job: str, clock: Clock
) -> None:
    """Requests are built before the turn."""
    first, second = registered(storage, "first", "second")
    remote = RemoteRunner(storage, job, TARGET, CancelToken(), [first, second], clock=clock)
    clock.now = 2 * TURN_SECONDS
    send(remote, "a")
    remote.poll(0.0)
    assert takes(storage, second) == [] and takes(storage, first) == ["a"]


def test_one_that_has_no_other_beside_it_keeps_its_requests(
    storage: Storage, job: str, clock: Clock
) -> None:
    (only, other) = registered(storage, "only", "other")
    remote = RemoteRunner(storage, job, TARGET, CancelToken(), [only], clock=clock)
    send(remote, "a")
    clock.now = 10 * TURN_SECONDS
    remote.poll(0.0)
    assert takes(storage, other) == [] and takes(storage, only) == ["a"]


@pytest.mark.parametrize("canaries", [True, False])
def test_one_in_quarantine_is_waited_for_where_it_may_be_tried(
    storage: Storage, job: str, clock: Clock, canaries: bool
) -> None:
    (sick,) = registered(storage, "sick")
    options: dict[str, Any] = {"canaries": canaries, "absent_seconds": 5.0, "clock": clock}
    remote = RemoteRunner(storage, job, TARGET, CancelToken(), [sick], **options)
    with writing(storage.engine) as connection:
        values = {"quarantined_at": 1.0, "quarantine_reason": "it failed", "canary_at": 1e12}
        connection.execute(sa.update(WorkerRow).values(values))
    send(remote, "a")
    for clock.now in (1.0, 6.0):
        remote.poll(0.0)
    found = storage.leases.status(["a"])["a"].state
    assert found is (RequestState.QUEUED if canaries else RequestState.CANCELLED)


def test_those_that_come_after_everybody_else(storage: Storage, job: str) -> None:
    send(RemoteRunner(storage, job, TARGET, CancelToken(), priority=-1), "late")
    send(runner(storage, job), "first")
    assert takes(storage, *registered(storage, "w")) == ["first", "late"]
