"""Which requests a worker may take now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from db.errors import NotFoundError
from db.notices import is_queued
from db.stores.blame import workers
from db.stores.measure_queue import leases, requests


@dataclass(frozen=True, slots=True)
class Claimant:
    """A worker that asks for work. `now` is an expression; silence for `lost_after_seconds` means
    that a worker is lost."""

    worker_id: str
    now: sa.ColumnElement[float]
    lost_after_seconds: float


def some_for(
    connection: sa.Connection,
    claimant: Claimant,
    target_keys: Sequence[str],
    limit: int,
    *,
    lock: bool = False,
) -> Sequence[sa.Row[Any]]:
    """Up to `limit` queued requests that a worker may take, as rows; without `lock` one suffices.

    Raises NotFoundError for a worker that is not known.
    """
    limit = min(limit, _allowance(connection, claimant, limit, lock))
    if limit <= 0:
        return ()
    query = (
        sa.select(requests if lock else requests.c.serial)
        .where(
            is_queued(),
            requests.c.target_key.in_(list(target_keys)),
            sa.or_(requests.c.only_worker.is_(None), requests.c.only_worker == claimant.worker_id),
            requests.c.not_before <= claimant.now,
        )
        .order_by(requests.c.priority.desc(), requests.c.serial)
        .limit(limit if lock else 1)
    )
    avoided = _avoided(connection, claimant)
    if avoided:
        query = query.where(requests.c.id.not_in(avoided))
    if lock:
        query = query.with_for_update(skip_locked=True)
    return connection.execute(query).all()


def _allowance(connection: sa.Connection, claimant: Claimant, limit: int, lock: bool) -> int:
    """How many requests a worker may take: one at a time in quarantine, when its pause is over."""
    query = sa.select(
        workers.c.gone,
        workers.c.draining,
        workers.c.quarantined_at,
        (workers.c.canary_at <= claimant.now).label("canary"),
    ).where(workers.c.id == claimant.worker_id)
    # two claims of one worker at once get one canary
    worker = connection.execute(query.with_for_update() if lock else query).first()
    if worker is None:
        raise NotFoundError("worker", claimant.worker_id)
    if worker.gone or worker.draining:
        return 0
    if worker.quarantined_at is None:
        return limit
    if not worker.canary:
        return 0
    live = sa.select(leases.c.id).where(
        leases.c.worker_id == claimant.worker_id, leases.c.ended_at.is_(None)
    )
    return 0 if connection.execute(live.limit(1)).first() else 1


def _avoided(connection: sa.Connection, claimant: Claimant) -> Sequence[str]:
    """Requests that this worker failed just now and that another one, alive, has not failed yet.

    Others come first for as long as a silent worker counts as alive: one that lives and takes
    nothing must not keep a request from those who would.
    """
    others = leases.alias()
    query = (
        sa.select(requests.c.id, requests.c.target_key, others.c.worker_id)
        .join(leases, leases.c.request_id == requests.c.id)
        .join(others, others.c.request_id == requests.c.id)
        .where(
            leases.c.worker_id == claimant.worker_id,
            leases.c.blame.is_not(None),
            leases.c.ended_at > claimant.now - claimant.lost_after_seconds,
            others.c.blame.is_not(None),
            is_queued(),
            requests.c.only_worker.is_(None),
        )
    )
    failed: dict[tuple[str, str], set[str]] = {}
    for row in connection.execute(query):
        failed.setdefault((row.id, row.target_key), set()).add(row.worker_id)
    if not failed:
        return ()
    alive = sa.select(workers.c.id, workers.c.target_keys).where(
        workers.c.gone.is_(False),
        workers.c.draining.is_(False),
        workers.c.quarantined_at.is_(None),
        workers.c.last_heartbeat >= claimant.now - claimant.lost_after_seconds,
    )
    able = [(row.id, set(row.target_keys)) for row in connection.execute(alive)]
    return [
        request_id
        for (request_id, target), names in failed.items()
        if any(name not in names and target in targets for name, targets in able)
    ]
