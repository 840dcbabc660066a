"""The queue of measurements: a tuner submits, workers lease, a lost worker's lease runs out.

States: queued -> leased -> done | failed | expired | cancelled, and back from leased to queued
when the lease ran out or was given back. `attempt` counts the leases that were not given back;
`fencing_token` grows with every lease, so that a worker that was written off cannot overwrite
what its successor measured.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from db.clock import Clock, system_clock
from db.engine import reading, writing
from db.errors import NotFoundError, StaleLeaseError
from db.job_states import JobState
from db.models import JobRow, RequestRow, WorkerRow
from db.notices import announce, is_queued, queue_topic
from db.stores.blob_references import BlobKind, refer
from db.stores.requests import (
    Completion,
    Expiry,
    JsonObject,
    Lease,
    NewRequest,
    RequestState,
    RequestStatus,
)
from db.stores.statements import chunks, table_of, upsert

__all__ = [
    "Completion",
    "Expiry",
    "Lease",
    "LeaseStore",
    "NewRequest",
    "RequestState",
    "RequestStatus",
]

_requests = table_of(RequestRow)
_workers = table_of(WorkerRow)
_jobs = table_of(JobRow)
_open_job = [state.value for state in JobState if not state.final]
_open = [RequestState.QUEUED.value, RequestState.LEASED.value]
_is_open = _requests.c.state.in_(_open)


class LeaseStore:
    def __init__(self, engine: sa.Engine, clock: Clock = system_clock) -> None:
        self._engine = engine
        self._clock = clock

    # the tuner's side

    def submit(self, requests: Sequence[NewRequest]) -> Sequence[str]:
        """Queue requests in one transaction; the ids that are new. Known ones stay as they are."""
        now = self._clock()
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
                "fencing_token": 0,
                "acknowledged": False,
                "created_at": now,
            }
            for request in requests
        ]
        with writing(self._engine) as connection:
            if not rows:
                return []
            insert = upsert(connection, _requests).on_conflict_do_nothing()
            new = set(connection.execute(insert.returning(_requests.c.id), rows).scalars())
            announce(connection, {queue_topic(request.target_key) for request in requests})
            for request in requests:
                if request.request_id in new:
                    name = request.request_id
                    refer(connection, BlobKind.REQUEST, name, request.blob_digests)
        return [name for name in dict.fromkeys(r.request_id for r in requests) if name in new]

    def status(self, request_ids: Sequence[str]) -> Mapping[str, RequestStatus]:
        """Where these requests stand: what a tuner polls. Unknown ids are left out."""
        found: dict[str, RequestStatus] = {}
        with reading(self._engine) as connection:
            for some in chunks(request_ids):
                query = sa.select(*_status_columns).where(_requests.c.id.in_(some))
                found.update({row.id: _status(row) for row in connection.execute(query)})
        return found

    def of_job(
        self, job_id: str, *, unfinished: bool = False, unacknowledged: bool = False
    ) -> Sequence[RequestStatus]:
        """The requests of a job, oldest first: all, or those that are not final, or those whose
        outcome its tuner has not stored yet. A restarted tuner resumes the last kind."""
        query = sa.select(*_status_columns).where(_requests.c.job_id == job_id)
        if unfinished:
            query = query.where(_is_open)
        if unacknowledged:
            query = query.where(_requests.c.acknowledged.is_(False))
        with reading(self._engine) as connection:
            rows = connection.execute(query.order_by(_requests.c.serial))
            return [_status(row) for row in rows.all()]

    def payloads(self, request_ids: Sequence[str]) -> Mapping[str, JsonObject]:
        """What was submitted, of those that are known."""
        found: dict[str, JsonObject] = {}
        with reading(self._engine) as connection:
            for some in chunks(request_ids):
                query = sa.select(_requests.c.id, _requests.c.payload)
                query = query.where(_requests.c.id.in_(some))
                found.update({row.id: row.payload for row in connection.execute(query)})
        return found

    def acknowledge(self, request_ids: Sequence[str]) -> int:
        """The tuner has stored what came of these; how many of them were final."""
        return self._update_all(request_ids, sa.not_(_is_open), {"acknowledged": True})

    def cancel(self, *, job_id: str | None = None, request_ids: Sequence[str] | None = None) -> int:
        """Cancel what is not final, of a job or of a list; how many.

        A worker notices at its next renewal.
        """
        values = {"state": RequestState.CANCELLED.value, "finished_at": self._clock()}
        count = 0
        if job_id is not None:
            update = sa.update(_requests).where(_requests.c.job_id == job_id, _is_open)
            with writing(self._engine) as connection:
                count += connection.execute(update.values(values)).rowcount
        if request_ids is not None:
            count += self._update_all(request_ids, _is_open, values)
        return count

    def prune(self, older_than_seconds: float) -> int:
        """Delete final requests that finished that long ago and that nobody waits for; how many.

        An outcome that the tuner of an open job has not stored is kept, however old: no finished
        measurement is lost because its tuner was away.
        """
        limit = self._clock() - older_than_seconds
        open_jobs = sa.select(_jobs.c.id).where(_jobs.c.state.in_(_open_job))
        unwanted = sa.or_(
            _requests.c.acknowledged,
            _requests.c.job_id.is_(None),
            _requests.c.job_id.not_in(open_jobs),
        )
        old = sa.and_(sa.not_(_is_open), _requests.c.finished_at < limit, unwanted)
        with reading(self._engine) as connection:  # mostly there is nothing: take no write lock
            first = sa.select(_requests.c.serial).where(old).limit(1)
            if connection.execute(first).first() is None:
                return 0
        with writing(self._engine) as connection:
            return connection.execute(sa.delete(_requests).where(old)).rowcount

    # the worker's side

    def claim(
        self, worker_id: str, target_keys: Sequence[str], *, limit: int, lease_seconds: float
    ) -> Sequence[Lease]:
        """Take up to `limit` queued requests for these targets; empty when there is none.

        No request is ever in two claims: rows are locked and skipped on PostgreSQL, SQLite has
        one writer.
        """
        # A subquery that locks rows inside IN (...) may run once a row and take more than `limit`;
        # PostgreSQL runs one in WITH exactly once.
        picked = (
            sa.select(_requests.c.serial)
            .where(
                is_queued(),
                _requests.c.target_key.in_(list(target_keys)),
                sa.or_(_requests.c.only_worker.is_(None), _requests.c.only_worker == worker_id),
            )
            .order_by(_requests.c.priority.desc(), _requests.c.serial)
            .limit(limit)
            .with_for_update(skip_locked=True)
            .cte("picked")
        )
        update = (
            sa.update(_requests)
            .where(_requests.c.serial.in_(sa.select(picked.c.serial)))
            .values(
                state=RequestState.LEASED.value,
                attempt=_requests.c.attempt + 1,
                fencing_token=_requests.c.fencing_token + 1,
                worker_id=worker_id,
                deadline=self._clock() + lease_seconds,
            )
            .returning(_requests)
        )
        with writing(self._engine) as connection:
            rows = connection.execute(update).all()
        rows = sorted(rows, key=lambda row: (-row.priority, row.serial))
        return [_lease(row) for row in rows]

    def renew(
        self, worker_id: str, leases: Mapping[str, int], lease_seconds: float
    ) -> Mapping[str, float]:
        """request id -> new deadline, given request id -> fencing token.

        A request that is missing from the answer is no longer the worker's: it stops.
        """
        deadline = self._clock() + lease_seconds
        held = self._update_held(worker_id, leases, {"deadline": deadline})
        return dict.fromkeys(held, deadline)

    def complete(
        self, request_id: str, fencing_token: int, result_key: str, result: JsonObject
    ) -> Completion:
        """Save a result. `result_key` names it: sending it again is DUPLICATE, no error.

        A late result is still welcome while nobody else has taken the request since.
        Raises StaleLeaseError (someone has, or the request is final), NotFoundError.
        """
        with writing(self._engine) as connection:
            row = _locked(connection, request_id)
            if row.state == RequestState.DONE.value and row.result_key == result_key:
                return Completion.DUPLICATE
            _check_token(row, fencing_token)
            _finish(
                connection,
                row,
                state=RequestState.DONE.value,
                result_key=result_key,
                result=dict(result),
                finished_at=self._clock(),
            )
        return Completion.ACCEPTED

    def fail(
        self, request_id: str, fencing_token: int, error: str, *, retry: bool = False
    ) -> RequestState:
        """The worker cannot work on it (protocol, damaged blob). With retry, another may try,
        as long as there are attempts left.

        Raises StaleLeaseError, NotFoundError.
        """
        with writing(self._engine) as connection:
            row = _locked(connection, request_id)
            _check_token(row, fencing_token)
            again = retry and row.attempt < row.max_attempts
            state = RequestState.QUEUED if again else RequestState.FAILED
            finished_at = None if again else self._clock()
            _finish(connection, row, state=state.value, error=error, finished_at=finished_at)
            if again:
                announce(connection, [queue_topic(row.target_key)])
        return state

    def release(self, worker_id: str, leases: Mapping[str, int]) -> int:
        """Give leases back unmeasured (the worker shuts down); not an attempt. How many."""
        values = {
            "state": RequestState.QUEUED.value,
            "attempt": _requests.c.attempt - 1,
            "deadline": None,
        }
        return len(self._update_held(worker_id, leases, values))

    # anybody's

    def expire(self) -> Expiry:
        """Requeue leases whose deadline is over, or end those without an attempt left as expired.

        Any process may call it, at any time, several at once.
        """
        now = self._clock()
        over = (
            sa.select(_requests.c.serial, _requests.c.id, _requests.c.worker_id)
            .add_columns(_requests.c.target_key)
            .add_columns((_requests.c.attempt < _requests.c.max_attempts).label("again"))
            .where(_requests.c.state == RequestState.LEASED.value, _requests.c.deadline <= now)
            .order_by(_requests.c.serial)
            .with_for_update(skip_locked=True)
        )
        with reading(self._engine) as connection:  # mostly there is nothing: take no write lock
            if connection.execute(over.with_only_columns(_requests.c.id).limit(1)).first() is None:
                return Expiry()
        with writing(self._engine) as connection:
            rows = connection.execute(over).all()
            for row in rows:
                values: dict[str, Any] = {"state": RequestState.QUEUED.value, "deadline": None}
                if not row.again:
                    values |= {
                        "state": RequestState.EXPIRED.value,
                        "finished_at": now,
                        "error": f"worker '{row.worker_id}' and all before it were lost",
                    }
                connection.execute(
                    sa.update(_requests).where(_requests.c.serial == row.serial).values(values)
                )
            announce(connection, {queue_topic(row.target_key) for row in rows if row.again})
            lost = Counter(row.worker_id for row in rows)
            for worker_id, count in sorted(lost.items()):
                connection.execute(
                    sa.update(_workers)
                    .where(_workers.c.id == worker_id)
                    .values(leases_lost=_workers.c.leases_lost + count)
                )
        return Expiry(
            requeued=tuple(row.id for row in rows if row.again),
            lost=tuple(row.id for row in rows if not row.again),
        )

    def grace(self, seconds: float) -> int:
        """Let every lease last at least that much longer; how many gained.

        For a server that was down: its workers could neither renew nor report meanwhile, and what
        they have finished must not be measured again.
        """
        deadline = self._clock() + seconds
        update = (
            sa.update(_requests)
            .where(_requests.c.state == RequestState.LEASED.value, _requests.c.deadline < deadline)
            .values(deadline=deadline)
        )
        with writing(self._engine) as connection:
            return connection.execute(update).rowcount

    def depth(self, target_keys: Sequence[str] | None = None) -> Mapping[RequestState, int]:
        """How many requests are in which state, every state named: for metrics, long polls."""
        query = sa.select(_requests.c.state, sa.func.count()).group_by(_requests.c.state)
        if target_keys is not None:
            query = query.where(_requests.c.target_key.in_(list(target_keys)))
        with reading(self._engine) as connection:
            found = {row[0]: row[1] for row in connection.execute(query)}
        return {state: found.get(state.value, 0) for state in RequestState}

    def names_blob(self, token_id: str, digest: str) -> bool:
        """Whether a request that a worker of this token has leased just now names the blob."""
        query = (
            sa.select(_requests.c.blob_digests)
            .join(_workers, _workers.c.id == _requests.c.worker_id)
            .where(_requests.c.state == RequestState.LEASED.value, _workers.c.owner == token_id)
        )
        with reading(self._engine) as connection:
            return any(digest in named for named in connection.execute(query).scalars())

    def in_hand(self) -> Mapping[str, int]:
        """How many requests each worker has leased: what a drained one still finishes."""
        query = (
            sa.select(_requests.c.worker_id, sa.func.count())
            .where(_requests.c.state == RequestState.LEASED.value)
            .group_by(_requests.c.worker_id)
        )
        with reading(self._engine) as connection:
            return {row[0]: row[1] for row in connection.execute(query)}

    def _update_all(
        self,
        request_ids: Sequence[str],
        condition: sa.ColumnElement[bool],
        values: Mapping[str, Any],
    ) -> int:
        count = 0
        with writing(self._engine) as connection:
            for some in chunks(sorted(request_ids)):
                update = sa.update(_requests).where(_requests.c.id.in_(some), condition)
                count += connection.execute(update.values(dict(values))).rowcount
        return count

    def _update_held(
        self, worker_id: str, leases: Mapping[str, int], values: Mapping[str, Any]
    ) -> Sequence[str]:
        """Update those of the leases that still hold; their ids."""
        held: list[str] = []
        with writing(self._engine) as connection:
            for some in chunks(sorted(leases.items())):
                update = (
                    sa.update(_requests)
                    .where(
                        sa.or_(
                            *(
                                sa.and_(_requests.c.id == name, _requests.c.fencing_token == token)
                                for name, token in some
                            )
                        ),
                        _requests.c.worker_id == worker_id,
                        _requests.c.state == RequestState.LEASED.value,
                    )
                    .values(dict(values))
                    .returning(_requests.c.id, _requests.c.target_key)
                )
                rows = connection.execute(update).all()
                held.extend(row.id for row in rows)
                if values.get("state") == RequestState.QUEUED.value:
                    announce(connection, {queue_topic(row.target_key) for row in rows})
        return held


def _locked(connection: sa.Connection, request_id: str) -> sa.Row[Any]:
    query = sa.select(_requests).where(_requests.c.id == request_id).with_for_update()
    row = connection.execute(query).first()
    if row is None:
        raise NotFoundError("measure request", request_id)
    return row


def _check_token(row: sa.Row[Any], fencing_token: int) -> None:
    """Raise StaleLeaseError unless this token's holder is the last who took the open request."""
    if RequestState(row.state).final:
        raise StaleLeaseError(f"measure request '{row.id}' is {row.state} already")
    if row.fencing_token != fencing_token:
        raise StaleLeaseError(
            f"measure request '{row.id}' was leased again: its fencing token is"
            f" {row.fencing_token}, not {fencing_token}"
        )


def _finish(connection: sa.Connection, row: sa.Row[Any], **values: Any) -> None:
    update = sa.update(_requests).where(_requests.c.serial == row.serial)
    connection.execute(update.values(deadline=None, **values))


def _lease(row: sa.Row[Any]) -> Lease:
    return Lease(
        request_id=row.id,
        job_id=row.job_id,
        target_key=row.target_key,
        payload=row.payload,
        blob_digests=tuple(row.blob_digests),
        worker_id=row.worker_id,
        attempt=row.attempt,
        fencing_token=row.fencing_token,
        deadline=row.deadline,
    )


_status_columns: tuple[sa.ColumnElement[Any], ...] = (
    _requests.c.id,
    _requests.c.job_id,
    _requests.c.state,
    _requests.c.attempt,
    _requests.c.worker_id,
    _requests.c.result,
    _requests.c.error,
    _requests.c.created_at,
    _requests.c.finished_at,
    _requests.c.acknowledged,
)


def _status(row: sa.Row[Any]) -> RequestStatus:
    values = dict(row._mapping)
    request_id = values.pop("id")
    return RequestStatus(request_id, **{**values, "state": RequestState(values["state"])})
