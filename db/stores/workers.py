"""Store of workers, the processes on target devices: descriptions, heartbeats and health."""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import sqlalchemy as sa

from tilewright.db.clock import Clock, instant
from tilewright.db.engine import reading, writing
from tilewright.db.errors import NotFoundError
from tilewright.db.models import WorkerRow
from tilewright.db.notices import announce, worker_topic
from tilewright.db.stores.blame import inherited, readmit
from tilewright.db.stores.ids import row_of_id
from tilewright.db.stores.pages import Page, PageOrder, Position
from tilewright.db.stores.statements import chunks, table_of, upsert
from tilewright.db.stores.worker_outcomes import forget_outcomes, outcomes_of

_workers = table_of(WorkerRow)
_oldest_first = PageOrder((_workers.c.created_at, _workers.c.id), descending=False)


class Health(StrEnum):
    HEALTHY = "healthy"
    LOST = "lost"  # no heartbeat for too long
    QUARANTINED = "quarantined"  # failed too often: gets one request at a time, after a pause
    DRAINING = "draining"  # takes no new leases
    GONE = "gone"  # unregistered


@dataclass(frozen=True, slots=True)
class Quarantine:
    """The quarantine of a worker that failed too often.

    Attributes:
        reason: the failures that caused the quarantine.
        since: the time at which it began, in seconds since the epoch.
        canary_at: the time from which the worker may get a single request, to test it.
    """

    reason: str
    since: float
    canary_at: float


@dataclass(frozen=True, slots=True)
class RegisteredWorker:
    id: str
    name: str
    target_keys: tuple[str, ...]  # keys of the targets that it can run
    device: Mapping[str, Any]  # model name, cores, caches, governor, ...
    protocol: int
    owner: str | None  # token id
    health: Health  # as of now, by the database's clock
    last_heartbeat: float
    leases_lost: int
    created_at: float
    speed: Mapping[str, Any] | None = None  # of the reference kernel, as last reported
    condition: Mapping[str, Any] | None = None  # temperature, load, clock, governor
    draining: bool = False  # whatever its health: takes no new leases
    quarantine: Quarantine | None = None  # whatever its health

    @property
    def throttled(self) -> bool:
        """Whether the worker reported that its device has been slow for a long time.

        A worker detects this by timing a fixed reference kernel before and after each batch.
        """
        return self.speed is not None and bool(self.speed.get("throttled"))


@dataclass(frozen=True, slots=True)
class Presence:
    """The columns of a worker that the service reads at every request of the worker.

    The description of the device is left out: it is the largest column and is rarely needed.
    """

    id: str
    name: str
    owner: str | None  # token id
    target_keys: tuple[str, ...]
    protocol: int
    health: Health
    last_heartbeat: float


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A heartbeat of a worker.

    Attributes:
        worker_id: the id of the worker.
        device: the description of the device; None if unchanged.
        speed: the speed of the reference kernel; None if unchanged.
        condition: temperature, load, clock and governor; None if unchanged.
    """

    worker_id: str
    device: Mapping[str, Any] | None = None
    speed: Mapping[str, Any] | None = None
    condition: Mapping[str, Any] | None = None

    @property
    def facts(self) -> dict[str, Any]:
        """Return the values that the heartbeat reports, by column of the table of workers."""
        reported = {"device": self.device, "speed": self.speed, "condition": self.condition}
        return {name: dict(value) for name, value in reported.items() if value is not None}


class WorkerStore:
    """Stores workers. Times come from the database's clock; tests may pass another `clock`."""

    def __init__(
        self, engine: sa.Engine, clock: Clock | None = None, *, lost_after_seconds: float = 60.0
    ) -> None:
        self._engine = engine
        self._now = instant(clock)
        self._lost_after_seconds = lost_after_seconds

    def register(
        self,
        name: str,
        target_keys: Sequence[str],
        device: Mapping[str, Any],
        *,
        protocol: int = 1,
        owner: str | None = None,
        worker_id: str | None = None,
    ) -> RegisteredWorker:
        """Register a new worker, or a restarted one under its earlier id.

        A new worker starts in quarantine if another worker with the same token is in quarantine.

        Args:
            name: the worker's name.
            target_keys: the targets for which the worker can measure.
            device: the description of the device.
            protocol: the version of the worker protocol.
            owner: the id of the worker's token.
            worker_id: the earlier id; None for a new worker.

        Raises:
            NotFoundError: if another owner's worker has the id.
        """
        now = self._now()
        facts = {
            "name": name,
            "target_keys": list(target_keys),
            "device": dict(device),
            "protocol": protocol,
            "owner": owner,
            "gone": False,
            "last_heartbeat": now,
        }
        new = {
            "id": worker_id or uuid.uuid4().hex,
            "draining": False,
            "leases_lost": 0,
            "quarantines": 0,
            "created_at": now,
        }
        with writing(self._engine) as connection:
            new |= inherited(connection, owner)
            row = connection.execute(
                upsert(connection, _workers)
                .values({**facts, **new})
                .on_conflict_do_update(
                    index_elements=[_workers.c.id],
                    set_=facts,
                    where=_workers.c.owner.is_not_distinct_from(owner),
                )
                .returning(*self._columns())
            ).first()
        if row is None:
            raise NotFoundError("worker", str(worker_id))
        return self._worker(row)

    def heartbeat(self, worker_id: str, **facts: Mapping[str, Any] | None) -> Presence:
        """Record a heartbeat, and return the worker's state.

        `facts` are the fields of `Heartbeat` that have changed.

        Raises:
            NotFoundError: if no worker has this id.
        """
        (found,) = self.heartbeats([Heartbeat(worker_id, **facts)])
        if found is None:
            raise NotFoundError("worker", worker_id)
        return found

    def heartbeats(self, signs: Sequence[Heartbeat]) -> Sequence[Presence | None]:
        """Record heartbeats in one transaction.

        Return each worker's state; None for unknown workers.

        A heartbeat does not re-register a worker that has unregistered.
        """
        with writing(self._engine) as connection:
            # locked in the order in which all code changes several rows
            query = self._presence_query({sign.worker_id for sign in signs})
            rows = connection.execute(query.order_by(_workers.c.id).with_for_update()).all()
            heard = {row.id: self._presence(row, heard=True) for row in rows}
            for some in chunks(sorted(heard)):
                update = sa.update(_workers).where(_workers.c.id.in_(some))
                connection.execute(update.values(last_heartbeat=self._now()))
            updates: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
            for sign in signs:
                if sign.worker_id in heard and (facts := sign.facts):
                    updates[tuple(facts)].append({"worker": sign.worker_id, **facts})
            for values in updates.values():
                update = sa.update(_workers).where(_workers.c.id == sa.bindparam("worker"))
                connection.execute(update, values)
        return [heard.get(sign.worker_id) for sign in signs]

    def presences(self, worker_ids: Collection[str] | None = None) -> Mapping[str, Presence]:
        """Return the states of these workers by id, in the order of registration.

        Unknown ids are left out. If `worker_ids` is None, all workers are returned.
        """
        query = self._presence_query(worker_ids).order_by(_workers.c.created_at, _workers.c.id)
        with reading(self._engine) as connection:
            return {row.id: self._presence(row) for row in connection.execute(query)}

    def get(self, worker_id: str, owner: str | None = None) -> RegisteredWorker:
        """Return the worker with this id, or the only one whose id starts with `worker_id`.

        If `owner`, the id of a token, is given, only workers that were registered with this token
        or without a token are found.

        Raises:
            NotFoundError: if no such worker has this id, or several ids start with it.
        """
        with reading(self._engine) as connection:
            query = sa.select(*self._columns())
            if owner is not None:
                query = query.where(sa.or_(_workers.c.owner == owner, _workers.c.owner.is_(None)))
            return self._worker(row_of_id(connection, query, _workers.c.id, worker_id, "worker"))

    def list(
        self, *, alive: bool = False, limit: int | None = None, after: Position | None = None
    ) -> Page[RegisteredWorker]:
        """Return a page of workers in the order of registration.

        Args:
            alive: whether to list only healthy workers. Pages may then be shorter than `limit`.
            limit: the largest number of workers; None for no limit.
            after: the position `Page.next` of the previous page.

        Raises:
            PositionError: if no worker can have the position `after`.
        """

        def wanted(row: sa.Row[Any]) -> RegisteredWorker | None:
            worker = self._worker(row)
            return worker if not alive or worker.health is Health.HEALTHY else None

        with reading(self._engine) as connection:
            query = sa.select(*self._columns())
            return _oldest_first.page(connection, query, wanted, limit, after)

    def outcomes(self, worker_ids: Collection[str]) -> Mapping[str, Mapping[str, int]]:
        """Return the number of trials by worker id and status.

        Workers without trials are left out.
        """
        with reading(self._engine) as connection:
            return outcomes_of(connection, worker_ids)

    def healths(self, target_key: str, worker_ids: Collection[str] = ()) -> Counter[Health]:
        """Count the workers of a target by health.

        If `worker_ids` is not empty, only these workers are counted. Tuners call this often, so it
        does not read the descriptions of devices, the largest part of a row.
        """
        query = sa.select(
            _workers.c.target_keys,
            _workers.c.gone,
            _workers.c.draining,
            _workers.c.quarantined_at,
            self._silent_seconds(),
        )
        if worker_ids:
            query = query.where(_workers.c.id.in_(sorted(worker_ids)))
        with reading(self._engine) as connection:
            rows = connection.execute(query)
            return Counter(
                self._health(row, row.silent_seconds)
                for row in rows
                if target_key in row.target_keys
            )

    def drain(self, worker_id: str, draining: bool = True) -> RegisteredWorker:
        """Drain a worker, so that it gets no new leases; `draining` False reverts this.

        Return the worker.

        Raises:
            NotFoundError: if no worker has this id.
        """
        return self._update(worker_id, {"draining": draining}, worker_topic(worker_id))

    def readmit(self, worker_id: str) -> RegisteredWorker:
        """End a worker's quarantine when an admin requests it. Return the worker.

        Raises:
            NotFoundError: if no worker has this id.
        """
        with writing(self._engine) as connection:
            readmit(connection, worker_id, None, self._now())
            announce(connection, [worker_topic(worker_id)])
        return self.get(worker_id)

    def leave(self, worker_id: str) -> None:
        """Record that a worker unregistered.

        Raises:
            NotFoundError: if no worker has this id.
        """
        self._update(worker_id, {"gone": True}, worker_topic(worker_id))

    def forget(self, silent_seconds: float) -> int:
        """Delete workers without a heartbeat for `silent_seconds`. Return their number.

        A worker that starts again later has to register again.
        """
        limit = self._now() - silent_seconds
        silent = _workers.c.last_heartbeat < limit
        with reading(self._engine) as connection:  # usually no row matches: take no write lock
            if connection.execute(sa.select(_workers.c.id).where(silent).limit(1)).first() is None:
                return 0
        with writing(self._engine) as connection:
            count = connection.execute(sa.delete(_workers).where(silent)).rowcount
            forget_outcomes(connection)
            return count

    def _update(self, worker_id: str, values: Mapping[str, Any], *topics: str) -> RegisteredWorker:
        update = sa.update(_workers).where(_workers.c.id == worker_id)
        with writing(self._engine) as connection:
            changed = update.values(dict(values)).returning(*self._columns())
            row = connection.execute(changed).first()
            announce(connection, topics)
        if row is None:
            raise NotFoundError("worker", worker_id)
        return self._worker(row)

    def _presence_query(self, worker_ids: Collection[str] | None) -> sa.Select[Any]:
        names = ("id", "name", "owner", "target_keys", "protocol", "last_heartbeat")
        marks = ("gone", "draining", "quarantined_at")
        columns = (_workers.c[name] for name in (*names, *marks))
        query = sa.select(*columns, self._silent_seconds())
        if worker_ids is None:
            return query
        return query.where(_workers.c.id.in_(sorted(worker_ids)))

    def _presence(self, row: sa.Row[Any], *, heard: bool = False) -> Presence:
        """Convert a row to a Presence.

        If `heard` is true, the worker's heartbeat has just arrived, so it counts as alive whatever
        the row says.
        """
        return Presence(
            row.id,
            row.name,
            row.owner,
            tuple(row.target_keys),
            row.protocol,
            self._health(row, 0.0 if heard else row.silent_seconds),
            row.last_heartbeat,
        )

    def _columns(self) -> Sequence[sa.ColumnElement[Any]]:
        """Return all columns of the table, and a computed column `silent_seconds`.

        `silent_seconds` is the time since the worker's last heartbeat.
        """
        return (*_workers.c, self._silent_seconds())

    def _silent_seconds(self) -> sa.ColumnElement[float]:
        return (self._now() - _workers.c.last_heartbeat).label("silent_seconds")

    def _health(self, row: sa.Row[Any], silent_seconds: float) -> Health:
        if row.gone:
            return Health.GONE
        if silent_seconds > self._lost_after_seconds:
            return Health.LOST
        if row.quarantined_at is not None:
            return Health.QUARANTINED
        return Health.DRAINING if row.draining else Health.HEALTHY

    def _worker(self, row: sa.Row[Any]) -> RegisteredWorker:
        return RegisteredWorker(
            id=row.id,
            name=row.name,
            target_keys=tuple(row.target_keys),
            device=row.device,
            protocol=row.protocol,
            owner=row.owner,
            health=self._health(row, row.silent_seconds),
            last_heartbeat=row.last_heartbeat,
            leases_lost=row.leases_lost,
            created_at=row.created_at,
            speed=row.speed,
            condition=row.condition,
            draining=row.draining,
            quarantine=None
            if row.quarantined_at is None
            else Quarantine(row.quarantine_reason, row.quarantined_at, row.canary_at),
        )
