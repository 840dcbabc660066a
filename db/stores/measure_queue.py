"""The measurement queue for tuners: submit, query, acknowledge and cancel requests.

A request goes from queued to leased, and then to done, failed, expired, set_aside or cancelled. It
returns from leased to queued if a lease ends without a result. It is set_aside, and not offered
again, if several workers were lost while they measured it. The column `attempt` counts its leases,
except those that workers returned because they shut down.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite

from tilewright.db.clock import Clock, instant
from tilewright.db.engine import reading, writing
from tilewright.db.errors import StaleLeaseError
from tilewright.db.job_states import JobState
from tilewright.db.models import JobRow, LeaseRow, RequestRow
from tilewright.db.notices import announce, is_queued, queue_topic
from tilewright.db.stores.blob_references import BlobKind, refer_all
from tilewright.db.stores.requests import (
    JsonObject,
    LeaseOutcome,
    NewRequest,
    RequestState,
    RequestStatus,
)
from tilewright.db.stores.statements import chunks, table_of, upsert

if TYPE_CHECKING:
    from sqlalchemy.dialects import postgresql

requests = table_of(RequestRow)
leases = table_of(LeaseRow)
_jobs = table_of(JobRow)

_open_job = [state.value for state in JobState if not state.final]
_open = [RequestState.QUEUED.value, RequestState.LEASED.value]
_is_open = requests.c.state.in_(_open)

# as the index has it: for bound values, and for `... = 1`, which a column of truth becomes on
# SQLite, no planner knows that it applies
_UNSTORED = sa.text("state NOT IN ('queued', 'leased') AND NOT acknowledged")


class MeasureQueue:
    """The measurement queue, with the operations of tuners.

    Times come from the database's clock. Tests may pass another `clock`.
    """

    def __init__(self, engine: sa.Engine, clock: Clock | None = None) -> None:
        self._engine = engine
        self._now = instant(clock)
        self._insert_made: postgresql.Insert | sqlite.Insert | None = None

    def submit(self, new: Sequence[NewRequest], stored: Collection[str] = ()) -> Sequence[str]:
        """Queue measurement requests in one transaction.

        Return the ids of the newly queued requests.

        A request whose id already exists does not change, unless it was cancelled because its job
        was paused: then it is queued again.

        Args:
            new: the requests.
            stored: ids of earlier requests whose outcomes the tuner has stored; they are
                acknowledged in the same transaction.

        Raises:
            StaleLeaseError: if a job of the requests is paused or has ended. Then nothing is queued
                or acknowledged.
        """
        rows = [
            {
                "id": request.request_id,
                "job_id": request.job_id,
                "target_key": request.target_key,
                "only_worker": request.worker_id,
                "priority": request.priority,
                "payload": dict(request.payload),
                "blob_digests": list(request.blob_digests),
                "state": RequestState.QUEUED.value,
                "attempt": 0,
                "max_attempts": request.max_attempts,
                "not_before": 0.0,
                "acknowledged": False,
            }
            for request in new
        ]
        if not rows:
            self.acknowledge(stored)
            return []
        with writing(self._engine) as connection:
            _check_wanted(connection, {request.job_id for request in new if request.job_id})
            insert = self._insert(connection, tuple(rows[0]))
            known = set(connection.execute(insert, rows).scalars())
            announce(connection, {queue_topic(request.target_key) for request in new})
            named = {r.request_id: r.blob_digests for r in new if r.request_id in known}
            refer_all(connection, BlobKind.REQUEST, named)
            _acknowledge(connection, stored)
        return [name for name in dict.fromkeys(r.request_id for r in new) if name in known]

    def _insert(self, connection: sa.Connection, columns: tuple[str, ...]) -> sa.Executable:
        """Return the SQL statement that inserts new requests, and queues cancelled ones again."""
        if self._insert_made is None:  # building it takes as long as running it
            insert = upsert(connection, requests)
            again = {name: insert.excluded[name] for name in columns if name != "id"}
            gone = ("finished_at", "lease_id", "worker_id", "result", "error")
            self._insert_made = insert.on_conflict_do_update(
                index_elements=[requests.c.id],
                set_={**again, **dict.fromkeys(gone)},
                where=requests.c.state == RequestState.CANCELLED.value,
            )
        return self._insert_made.values(created_at=self._now()).returning(requests.c.id)

    def status(self, request_ids: Sequence[str]) -> Mapping[str, RequestStatus]:
        """Return the status of each of these requests, by id. Unknown ids are left out."""
        found: dict[str, RequestStatus] = {}
        with reading(self._engine) as connection:
            for some in chunks(request_ids):
                query = sa.select(*_status_columns).where(requests.c.id.in_(some))
                found.update({row.id: _status(row) for row in connection.execute(query)})
        return found

    def of_job(
        self, job_id: str, *, unfinished: bool = False, unacknowledged: bool = False
    ) -> Sequence[RequestStatus]:
        """Return the requests of a job, oldest first.

        Args:
            job_id: the job.
            unfinished: only requests that are queued or leased.
            unacknowledged: only requests whose outcome no tuner has stored; a restarted tuner
                continues with them.
        """
        query = sa.select(*_status_columns).where(requests.c.job_id == job_id)
        if unfinished:
            query = query.where(_is_open)
        if unacknowledged:
            query = query.where(requests.c.acknowledged.is_(False))
        with reading(self._engine) as connection:
            rows = connection.execute(query.order_by(requests.c.serial))
            return [_status(row) for row in rows.all()]

    def unstored(self, job_id: str) -> Sequence[str]:
        """Return the ids of a job's finished requests whose outcomes no tuner has stored.

        Tuners call it often, so it reads a partial index of exactly these requests.
        """
        query = sa.select(requests.c.id).where(requests.c.job_id == job_id, _UNSTORED)
        with reading(self._engine) as connection:
            return connection.execute(query.order_by(requests.c.serial)).scalars().all()

    def left_behind(self, limit: int = 100) -> Sequence[RequestStatus]:
        """Return finished requests of ended jobs whose results no tuner has stored, oldest first.

        At most `limit` requests are returned.
        """
        over = sa.select(_jobs.c.id).where(_jobs.c.state.not_in(_open_job))
        finished = [RequestState.DONE.value, RequestState.SET_ASIDE.value]
        query = sa.select(*_status_columns).where(
            requests.c.acknowledged.is_(False),
            requests.c.state.in_(finished),
            requests.c.job_id.in_(over),
        )
        with reading(self._engine) as connection:
            rows = connection.execute(query.order_by(requests.c.serial).limit(limit))
            return [_status(row) for row in rows.all()]

    def unfinished(self, jobs: str) -> Sequence[str]:
        """Return the ids of queued and leased requests of all jobs whose id starts with `jobs`.

        The query reads the partial indexes of queued requests and of live leases.
        """
        mine = requests.c.job_id.startswith(jobs, autoescape=True)
        in_hand = sa.select(leases.c.request_id).where(leases.c.ended_at.is_(None))
        query = sa.union_all(
            sa.select(requests.c.id).where(is_queued(), mine),
            sa.select(requests.c.id).where(requests.c.id.in_(in_hand), mine),
        )
        with reading(self._engine) as connection:
            return connection.execute(query).scalars().all()

    def payloads(self, request_ids: Sequence[str]) -> Mapping[str, JsonObject]:
        """Return the JSON payload of each request, by request id. Unknown ids are left out."""
        found: dict[str, JsonObject] = {}
        with reading(self._engine) as connection:
            for some in chunks(request_ids):
                query = sa.select(requests.c.id, requests.c.payload)
                query = query.where(requests.c.id.in_(some))
                found.update({row.id: row.payload for row in connection.execute(query)})
        return found

    def acknowledge(self, request_ids: Collection[str]) -> int:
        """Record that the tuner has stored the outcomes of these requests.

        Requests that are still queued or leased are ignored. Return the number of acknowledged
        requests.
        """
        if not request_ids:
            return 0
        with writing(self._engine) as connection:
            return _acknowledge(connection, request_ids)

    def cancel(self, *, job_id: str | None = None, request_ids: Sequence[str] | None = None) -> int:
        """Cancel the queued and leased requests of a job, or of a list of requests.

        A worker that has leased such a request stops its work at the next renewal of the lease.
        Return the number of cancelled requests.
        """
        wanted: list[sa.ColumnElement[bool]] = [
            requests.c.id.in_(some) for some in chunks(sorted(request_ids or ()))
        ]
        if job_id is not None:
            wanted.append(requests.c.job_id == job_id)
        with writing(self._engine) as connection:
            return sum(_cancel(connection, which, self._now()) for which in wanted)

    def hand_on(self, request_ids: Sequence[str], worker_id: str) -> Sequence[str]:
        """Reserve queued requests for the worker `worker_id`, so that no other worker gets them.

        An earlier reservation for another worker is replaced. Leased and finished requests do not
        change. Return the ids of the reserved requests.
        """
        waiting = (
            sa.select(requests.c.id, requests.c.target_key)
            .where(requests.c.id.in_(list(request_ids)), is_queued())
            .order_by(requests.c.serial)
            .with_for_update()
        )
        with writing(self._engine) as connection:
            found = connection.execute(waiting).all()
            names = [row.id for row in found]
            update = sa.update(requests).where(requests.c.id.in_(names))
            connection.execute(update.values(only_worker=worker_id))
            announce(connection, {queue_topic(row.target_key) for row in found})
        return names

    def prune(self, older_than_seconds: float) -> int:
        """Delete requests that finished more than `older_than_seconds` ago, with their leases.

        Outcomes that the tuner of an open job has not stored are kept at any age, so that no
        measurement is lost while the tuner does not run. Return the number of deleted requests.
        """
        limit = self._now() - older_than_seconds
        open_jobs = sa.select(_jobs.c.id).where(_jobs.c.state.in_(_open_job))
        unwanted = sa.or_(
            requests.c.acknowledged,
            requests.c.job_id.is_(None),
            requests.c.job_id.not_in(open_jobs),
        )
        old = sa.and_(sa.not_(_is_open), requests.c.finished_at < limit, unwanted)
        with reading(self._engine) as connection:  # usually no row matches: take no write lock
            first = sa.select(requests.c.serial).where(old).limit(1)
            if connection.execute(first).first() is None:
                return 0
        with writing(self._engine) as connection:
            gone = connection.execute(sa.delete(requests).where(old).returning(requests.c.id))
            names = gone.scalars().all()
            for some in chunks(names):
                connection.execute(sa.delete(leases).where(leases.c.request_id.in_(some)))
        return len(names)

    def waiting_targets(self, target_keys: Collection[str]) -> Set[str]:
        """Return the keys among `target_keys` whose targets have a queued request."""
        found: set[str] = set()
        with reading(self._engine) as connection:
            for some in chunks(sorted(target_keys)):
                query = sa.select(requests.c.target_key).distinct()
                query = query.where(is_queued(), requests.c.target_key.in_(some))
                found.update(connection.execute(query).scalars())
        return found

    def depth(self) -> Mapping[RequestState, int]:
        """Return the number of requests in each state, including 0 for states without requests."""
        query = sa.select(requests.c.state, sa.func.count()).group_by(requests.c.state)
        with reading(self._engine) as connection:
            found = {row[0]: row[1] for row in connection.execute(query)}
        return {state: found.get(state.value, 0) for state in RequestState}


_WANTED = (
    sa.select(_jobs.c.id, _jobs.c.state)
    .where(_jobs.c.id.in_(sa.bindparam("names", expanding=True)))
    .order_by(_jobs.c.id)
    .with_for_update(read=True)
)


def _check_wanted(connection: sa.Connection, job_ids: Collection[str]) -> None:
    """Raise StaleLeaseError if one of these jobs is paused or has ended.

    The jobs' rows stay locked until the transaction ends, so that no job is stopped meanwhile.
    """
    for row in connection.execute(_WANTED, {"names": sorted(job_ids)}):
        if row.state == JobState.PAUSED.value or row.state not in _open_job:
            raise StaleLeaseError(f"job '{row.id}' is {row.state}: nothing is measured for it")


def _acknowledge(connection: sa.Connection, request_ids: Collection[str]) -> int:
    count = 0
    for some in chunks(sorted(request_ids)):
        final = sa.and_(requests.c.id.in_(some), sa.not_(_is_open))
        update = sa.update(requests).where(final).values(acknowledged=True)
        count += connection.execute(update).rowcount
    return count


def cancel_requests(connection: sa.Connection, job_id: str, now: float) -> int:
    """Cancel a job's queued and leased requests, in the transaction of `connection`.

    `now` is the present time, in seconds since the epoch. Return the number of cancelled requests.
    """
    return _cancel(connection, requests.c.job_id == job_id, sa.literal(now, sa.Double()))


def lock_leases(connection: sa.Connection, which: sa.ColumnElement[bool]) -> Sequence[sa.Row[Any]]:
    """Lock the leases that meet the condition `which`. Return their rows without late results.

    To prevent deadlocks, leases are locked in the order of their ids, and the caller has locked
    their requests before. Late results are left out because they may be large.
    """
    columns = (column for column in leases.c if column.name != "late_result")
    query = sa.select(*columns).where(which).order_by(leases.c.id)
    return connection.execute(query.with_for_update()).all()


def _cancel(
    connection: sa.Connection, which: sa.ColumnElement[bool], now: sa.ColumnElement[float]
) -> int:
    query = sa.select(requests.c.id).where(which, _is_open).order_by(requests.c.serial)
    cancelled = connection.execute(query.with_for_update()).scalars().all()
    for some in chunks(cancelled):
        values = {"state": RequestState.CANCELLED.value, "finished_at": now}
        connection.execute(sa.update(requests).where(requests.c.id.in_(some)).values(values))
    for some in chunks(sorted(cancelled)):
        live = sa.and_(leases.c.request_id.in_(some), leases.c.ended_at.is_(None))
        lock_leases(connection, live)
        end = sa.update(leases).where(live)
        connection.execute(end.values(ended_at=now, outcome=LeaseOutcome.CANCELLED.value))
    return len(cancelled)


_status_columns: tuple[sa.ColumnElement[Any], ...] = (
    requests.c.id,
    requests.c.job_id,
    requests.c.state,
    requests.c.attempt,
    requests.c.worker_id,
    requests.c.result,
    requests.c.error,
    requests.c.created_at,
    requests.c.finished_at,
    requests.c.acknowledged,
)


def _status(row: sa.Row[Any]) -> RequestStatus:
    values = dict(row._mapping)
    request_id = values.pop("id")
    return RequestStatus(request_id, **{**values, "state": RequestState(values["state"])})
