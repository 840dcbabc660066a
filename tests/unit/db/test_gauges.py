"""Figures of the whole database."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from tilewright.db.stores.gauges import Figures, GaugeStore
from tilewright.db.stores.leases import Cause, LeaseStore, NewRequest
from tilewright.db.stores.workers import WorkerStore


@pytest.fixture
def leases(engine: sa.Engine, clock: Any) -> LeaseStore:
    WorkerStore(engine, clock, lost_after_seconds=1e9).register("w", ["t"], {}, worker_id="w")
    return LeaseStore(engine, clock, lost_after_seconds=1e9)


def test_an_empty_database_has_nothing_old(engine: sa.Engine, clock: Any) -> None:
    assert GaugeStore(engine, clock).read() == Figures(0.0, 0.0, 0, {})


def test_leases_are_counted_for_an_hour_by_how_they_ended_and_whose_fault_it_was(
    engine: sa.Engine, leases: LeaseStore, clock: Any
) -> None:
    leases.submit([NewRequest(name, "t", {}) for name in "abcdef"])
    clock.advance(5)
    held = leases.claim("w", ["t"], limit=5, lease_seconds=1e6)
    clock.advance(7)
    names = [lease.lease_id for lease in held]
    leases.complete(names[0], "w", "key", {})
    leases.fail(names[1], "w", Cause.SERVICE, "damaged")
    leases.fail(names[2], "w", Cause.WORKER, "no room")
    leases.release("w", [names[3]])
    figures = GaugeStore(engine, clock).read()
    assert (figures.oldest_lease, figures.oldest_queued, figures.trials) == (7.0, 12.0, 0)
    assert figures.ended == {
        ("completed", ""): 1,
        ("failed", "service"): 1,
        ("failed", "worker"): 1,
        ("released", ""): 1,
    }
    clock.advance(3600)
    later = GaugeStore(engine, clock).read()
    assert (later.oldest_lease, later.ended) == (3607.0, {})
