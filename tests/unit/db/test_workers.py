from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from tests.unit.db.test_records import CRASH, GOOD, trial
from tilewright.db.errors import NotFoundError
from tilewright.db.stores.records import SqlRecordStore
from tilewright.db.stores.workers import Health, WorkerStore


@pytest.fixture
def workers(engine: sa.Engine, clock: Any) -> WorkerStore:
    return WorkerStore(engine, clock, lost_after_seconds=60)


def test_register_and_heartbeat(workers: WorkerStore, clock: Any) -> None:
    worker = workers.register("board", ["t1", "t2"], {"cores": 4}, protocol=1, owner="token")
    assert (worker.target_keys, worker.device, worker.owner) == (
        ("t1", "t2"),
        {"cores": 4},
        "token",
    )
    assert worker.health is Health.HEALTHY
    assert workers.get(worker.id) == worker
    clock.advance(61)
    assert workers.get(worker.id).health is Health.LOST
    assert workers.presences()[worker.id].health is Health.LOST
    assert workers.list(alive=True) == []
    assert len(workers.list()) == 1
    back = workers.heartbeat(worker.id, device={"cores": 4, "governor": "performance"})
    assert back.health is Health.HEALTHY
    workers.heartbeat(worker.id)
    assert workers.get(worker.id).device["governor"] == "performance"


def test_a_restarted_worker_keeps_its_row(workers: WorkerStore, clock: Any) -> None:
    worker = workers.register("board", ["t1"], {}, owner="a")
    workers.leave(worker.id)
    assert workers.get(worker.id).health is Health.GONE
    clock.advance(10)
    again = workers.register("board", ["t2"], {}, owner="a", worker_id=worker.id)
    assert (again.id, again.created_at) == (worker.id, worker.created_at)
    assert (again.target_keys, again.health) == (("t2",), Health.HEALTHY)
    assert len(workers.list()) == 1
    nobodys = workers.register("bench", ["t1"], {})
    assert workers.register("bench", ["t1"], {}, worker_id=nobodys.id).id == nobodys.id


def test_a_worker_id_belongs_to_its_owner(workers: WorkerStore) -> None:
    worker = workers.register("board", ["t1"], {}, owner="a")
    for owner in ("b", None):
        with pytest.raises(NotFoundError):
            workers.register("thief", ["t1"], {}, owner=owner, worker_id=worker.id)
    assert workers.get(worker.id) == worker


def test_draining(workers: WorkerStore) -> None:
    worker = workers.register("board", ["t1"], {})
    assert workers.drain(worker.id).health is Health.DRAINING
    assert workers.list(alive=True) == []
    assert workers.drain(worker.id, False).health is Health.HEALTHY


def test_a_drained_worker_stays_drained(workers: WorkerStore, clock: Any) -> None:
    worker = workers.register("board", ["t1"], {})
    workers.drain(worker.id)
    workers.leave(worker.id)
    again = workers.register("board", ["t1"], {}, worker_id=worker.id)
    assert again.draining and again.health is Health.DRAINING
    clock.advance(1000)
    assert workers.get(worker.id).draining and workers.get(worker.id).health is Health.LOST


def test_workers_not_seen_for_long_are_forgotten(workers: WorkerStore, clock: Any) -> None:
    old = workers.register("old", ["t1"], {})
    clock.advance(100)
    new = workers.register("new", ["t1"], {})
    assert workers.forget(101) == 0
    assert workers.forget(99) == 1
    assert [worker.id for worker in workers.list()] == [new.id]
    # it comes back: its id means nothing any more, but it may have it
    assert workers.register("old", ["t1"], {}, worker_id=old.id).health is Health.HEALTHY


def test_unknown(workers: WorkerStore) -> None:
    for call in (workers.get, workers.heartbeat, workers.drain, workers.leave):
        with pytest.raises(NotFoundError, match="worker 'nope'"):
            call("nope")


def test_workers_of_a_target_are_counted_by_health(workers: WorkerStore, clock: Any) -> None:
    lost = workers.register("lost", ["t1"], {})
    clock.advance(61)
    board = workers.register("board", ["t1", "t2"], {})
    workers.drain(workers.register("drained", ["t1"], {}).id)
    workers.leave(workers.register("gone", ["t1"], {}).id)
    workers.register("other", ["t2"], {})
    healths = dict.fromkeys((Health.HEALTHY, Health.LOST, Health.DRAINING, Health.GONE), 1)
    assert workers.healths("t1") == healths
    assert workers.healths("t2") == {Health.HEALTHY: 2}
    assert workers.healths("t1", [board.id]) == {Health.HEALTHY: 1}
    assert workers.healths("t1", [lost.id]) == {Health.LOST: 1}
    assert workers.healths("t3") == {}


def test_trials_are_counted_once_for_the_worker_that_measured_them(
    workers: WorkerStore, records: SqlRecordStore, clock: Any
) -> None:
    board, other = (workers.register(name, ["t1"], {}).id for name in ("board", "other"))
    good, bad = replace(GOOD, worker=board), replace(CRASH, worker=board)
    first = [trial(1, good), trial(2, bad), trial(3, replace(GOOD, worker=other))]
    records.add_trials([*first, trial(1, good)])
    # again, and of unknown workers: a machine of another service, the service's own
    records.add_trials([*first, trial(4, good), trial(5, replace(bad, worker=f"key/{board}"))])
    records.add_trials([trial(6, replace(bad, worker=""))])
    assert workers.outcomes([board, other, "none"]) == {
        board: {"ok": 2, "crash": 1},
        other: {"ok": 1},
    }
    clock.advance(61)
    workers.heartbeat(other)
    assert workers.forget(60) == 1
    assert workers.outcomes([board, other]) == {other: {"ok": 1}}
