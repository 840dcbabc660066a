"""The measurement queue for workers: claim requests, renew leases, report results, release leases.

A lease is a row with a random 128-bit id. Each operation checks the lease together with its worker,
so that no other worker can end or extend the lease. A request has at most one live lease. Rows are
locked in a fixed order (requests, leases, workers), so that two processes cannot deadlock.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, assert_never

import sqlalchemy as sa

from tilewright.db.clock import Clock
from tilewright.db.engine import reading, writing
from tilewright.db.errors import DatabaseError, NotFoundError, StaleLeaseError
from tilewright.db.notices import announce, is_queued, queue_topic
from tilewright.db.stores.blame import (
    eligible_workers,
    end_some,
    end_without_result,
    judge,
    workers,
)
from tilewright.db.stores.blob_references import BlobKind, refer
from tilewright.db.stores.lease_claims import Claim, Found, survey, take
from tilewright.db.stores.measure_queue import MeasureQueue, leases, lock_leases, requests
from tilewright.db.stores.reports import Report, held, over, save
from tilewright.db.stores.requests import (
    Blame,
    Cause,
    Completion,
    Expiry,
    Held,
    JsonObject,
    Lease,
    LeaseOutcome,
    LeaseStatus,
    NewRequest,
    RequestState,
    RequestStatus,
)
from tilewright.db.stores.statements import chunks

__all__ = [
    "Blame",
    "Cause",
    "Claim",
    "Completion",
    "Expiry",
    "Found",
    "Held",
    "Lease",
    "LeaseOutcome",
    "LeaseStatus",
    "LeaseStore",
    "NewRequest",
    "Report",
    "RequestState",
    "RequestStatus",
]

MOST_FAILURES = 5
"""Number of failures within an hour for which a worker is put into quarantine. Only failures that
the worker caused are counted."""


class LeaseStore(MeasureQueue):
    """The measurement queue, with the operations of workers and of tuners.

    Args:
        engine: the database.
        clock: for tests; by default, times come from the database's clock.
        lost_after_seconds: time without a heartbeat after which a worker counts as lost.
        most_failures: number of failures caused by a worker within an hour that put the worker into
            quarantine.
    """

    def __init__(
        self,
        engine: sa.Engine,
        clock: Clock | None = None,
        *,
        lost_after_seconds: float = 60.0,
        most_failures: int = MOST_FAILURES,
    ) -> None:
        super().__init__(engine, clock)
        self._lost_after_seconds = lost_after_seconds
        self._most_failures = most_failures

    def claim(
        self,
        worker_id: str,
        target_keys: Sequence[str],
        *,
        limit: int,
        lease_seconds: float,
        token_id: str | None = None,
        claim_id: str | None = None,
    ) -> Sequence[Lease]:
        """Lease up to `limit` queued requests for these targets to a worker.

        The result is empty if no request is queued. See `claim_all`.

        Raises:
            NotFoundError: if no worker has this id.
        """
        claim = Claim(worker_id, tuple(target_keys), limit, token_id, claim_id)
        (found,) = self.claim_all([claim], lease_seconds)
        if isinstance(found, NotFoundError):
            raise found
        return list(found.leases)

    def claim_all(
        self, claims: Sequence[Claim], lease_seconds: float
    ) -> Sequence[Found | NotFoundError]:
        """Answer several claims: lease requests to their workers, in one transaction.

        Return the answer to each claim, in order. For an unknown worker, it is a NotFoundError. An
        unregistered or drained worker gets no lease, and a worker in quarantine at most one. A
        request that a worker failed is offered to other live workers first, for
        `lost_after_seconds`. A claim that is repeated with the same `claim_id` gets the leases of
        the first one, if they are still valid.

        Two claims never get the same request: on PostgreSQL, rows that another transaction has
        locked are skipped, and SQLite has one writer at a time.
        """
        with reading(self._engine) as connection:  # usually no row matches: take no write lock
            seen = survey(connection, claims, self._now())
        taken: Sequence[Found] = ()
        if seen.able:
            with writing(self._engine) as connection:
                now = self._time(connection)
                taken = take(
                    connection,
                    [claims[number] for number in seen.able],
                    seen,
                    now,
                    self._lost_after_seconds,
                    lease_seconds,
                )
        found = {**seen.found, **dict(zip(seen.able, taken, strict=True))}
        return [found[number] for number in range(len(claims))]

    def renew(
        self, worker_id: str, lease_ids: Sequence[str], lease_seconds: float
    ) -> Mapping[str, float]:
        """Extend leases of a worker to `lease_seconds` from now.

        Return their deadlines by lease id.

        A lease that is missing from the result no longer belongs to the worker.
        """
        return self.renew_all([(worker_id, lease_ids)], lease_seconds)[0]

    def renew_all(
        self, named: Sequence[tuple[str, Sequence[str]]], lease_seconds: float
    ) -> Sequence[Mapping[str, float]]:
        """Extend leases of several workers to `lease_seconds` from now.

        `named` has (worker id, lease ids) pairs. Return, for each pair, the new deadlines by lease
        id. A lease that is missing from the result no longer belongs to the worker, which must stop
        the work.
        """
        whose: dict[str, str] = {}
        asked = {(lease_id, worker_id) for worker_id, ids in named for lease_id in ids}
        if not asked:
            return [{} for _ in named]
        with writing(self._engine) as connection:
            for some in chunks(sorted({lease_id for lease_id, _ in asked})):
                live = sa.and_(leases.c.id.in_(some), leases.c.ended_at.is_(None))
                rows = lock_leases(connection, live)
                whose |= {row.id: row.worker_id for row in rows if (row.id, row.worker_id) in asked}
            deadline = self._time(connection) + lease_seconds
            for some in chunks(sorted(whose)):
                update = sa.update(leases).where(leases.c.id.in_(some))
                connection.execute(update.values(deadline=deadline))
        return [
            {lease_id: deadline for lease_id in ids if whose.get(lease_id) == worker_id}
            for worker_id, ids in named
        ]

    def asked(self, lease_id: str) -> JsonObject:
        """Return the payload (JSON) of a lease's request, without checking the worker.

        Raises:
            NotFoundError: if no lease has this id.
        """
        query = sa.select(requests.c.payload).join(leases, leases.c.request_id == requests.c.id)
        with reading(self._engine) as connection:
            row = connection.execute(query.where(leases.c.id == lease_id)).first()
        if row is None:
            raise NotFoundError("lease", lease_id)
        payload: JsonObject = row.payload
        return payload

    def held(self, lease_id: str, worker_id: str) -> Held:
        """Return the request of a worker's lease, against which the worker's result is checked.

        Raises:
            NotFoundError: if the worker holds no lease with this id.
        """
        (found,) = self.held_all([(lease_id, worker_id)])
        if found is None:
            raise NotFoundError("lease", lease_id)
        return found

    def held_all(self, named: Sequence[tuple[str, str]]) -> Sequence[Held | None]:
        """Return the request for each (lease id, worker id) pair, as `held` does.

        The entry is None if the worker has no such lease.
        """
        with reading(self._engine) as connection:
            return held(connection, named)

    def complete(
        self, lease_id: str, worker_id: str, result_key: str, result: JsonObject
    ) -> Completion:
        """Save the result of a lease; see `complete_all`.

        Args:
            lease_id: the id of the lease.
            worker_id: the worker that reports.
            result_key: identifies the result, so that a repeated report is recognised.
            result: the result as JSON.

        Raises:
            NotFoundError: if the worker has no such lease.
            StaleLeaseError: if the worker ended the lease, or its result was rejected.
        """
        (completed,) = self.complete_all([Report(lease_id, worker_id, result_key, result)])
        if isinstance(completed, DatabaseError):
            raise completed
        return completed

    def complete_all(
        self, reports: Sequence[Report]
    ) -> Sequence[Completion | NotFoundError | StaleLeaseError]:
        """Save several results of workers in one transaction.

        A result that arrives after its lease ended is accepted if the request is queued again. If
        another worker has taken the request, or the request was cancelled, the outcome is LATE. A
        late result is stored with the lease. It is accepted only if the other worker fails.

        Returns:
            for each report, in order: the outcome, or the error for a report that cannot be saved.
        """
        with writing(self._engine) as connection:
            return save(connection, reports, self._time(connection), self._most_failures)

    def fail(self, lease_id: str, worker_id: str, cause: Cause, error: str) -> RequestState:
        """End a lease because the worker gave up its request. Return the new state of the request.

        The request is queued again if it has attempts left.

        Raises:
            NotFoundError: if the worker has no such lease.
            StaleLeaseError: if the lease has ended.
        """
        match cause:
            case Cause.KILLED:
                outcome, blame = LeaseOutcome.LOST, Blame.WORKER
            case Cause.WORKER:
                outcome, blame = LeaseOutcome.FAILED, Blame.WORKER
            case Cause.SERVICE:
                outcome, blame = LeaseOutcome.FAILED, Blame.SERVICE
            case _:
                assert_never(cause)
        return self._give_up(lease_id, worker_id, outcome, blame, error)

    def refuse(self, lease_id: str, worker_id: str, error: str) -> RequestState:
        """End a lease because the worker's result is invalid. Return the new state of the request.

        The worker is blamed. The request is queued again if it has attempts left.

        Raises:
            NotFoundError: if the worker has no such lease.
            StaleLeaseError: if the lease has ended.
        """
        return self._give_up(lease_id, worker_id, LeaseOutcome.REFUSED, Blame.WORKER, error)

    def release(self, worker_id: str, lease_ids: Sequence[str]) -> int:
        """End leases of a worker that shuts down. Return the number of ended leases.

        Their requests are queued again, and the leases do not count as attempts.
        """
        live = sa.select(leases.c.request_id).where(
            leases.c.id.in_(sorted(set(lease_ids))),
            leases.c.worker_id == worker_id,
            leases.c.ended_at.is_(None),
        )
        with writing(self._engine) as connection:
            lock = sa.select(requests.c.serial, requests.c.lease_id, requests.c.target_key)
            lock = lock.where(requests.c.id.in_(live)).order_by(requests.c.serial)
            rows = connection.execute(lock.with_for_update()).all()
            end = sa.update(leases).where(
                leases.c.id.in_([row.lease_id for row in rows]), leases.c.ended_at.is_(None)
            )
            lock_leases(connection, leases.c.id.in_([row.lease_id for row in rows]))
            ended = {"ended_at": self._now(), "outcome": LeaseOutcome.RELEASED.value}
            returned = end.values(ended).returning(leases.c.id)
            free = set(connection.execute(returned).scalars())
            back = sa.update(requests).where(
                requests.c.serial.in_([row.serial for row in rows if row.lease_id in free])
            )
            connection.execute(
                back.values(state=RequestState.QUEUED.value, attempt=requests.c.attempt - 1)
            )
            announce(connection, {queue_topic(r.target_key) for r in rows if r.lease_id in free})
        return len(free)

    def expire(self) -> Expiry:
        """End all leases whose deadline has passed. Return the ids of their requests.

        A request is queued again, or it ends if it has no attempts left. Several processes may call
        this concurrently. Each transaction ends only a limited number of leases, so that others do
        not wait long for its locks.
        """
        over = sa.and_(leases.c.ended_at.is_(None), leases.c.deadline <= self._now())
        with reading(self._engine) as connection:  # usually no row matches: take no write lock
            if connection.execute(sa.select(leases.c.id).where(over).limit(1)).first() is None:
                return Expiry()
        found: dict[RequestState, list[str]] = {state: [] for state in RequestState}
        now = None  # one time for all: leases that a worker held when it died count as one death
        while True:
            with writing(self._engine) as connection:
                now = self._time(connection) if now is None else now
                heard_since = now - self._lost_after_seconds
                ended = end_some(connection, over, now, heard_since, self._most_failures)
            for name, state in ended:
                found[state].append(name)
            if not ended:
                break
        return Expiry(
            requeued=tuple(found[RequestState.QUEUED]),
            lost=tuple(found[RequestState.EXPIRED]),
            set_aside=tuple(found[RequestState.SET_ASIDE]),
        )

    def wake(self) -> int:
        """Notify waiting workers of requests whose pause between two attempts has ended.

        Return the number of these requests. Several processes may call it concurrently.
        """
        over = sa.and_(
            is_queued(), requests.c.not_before > 0.0, requests.c.not_before <= self._now()
        )
        with reading(self._engine) as connection:  # usually no row matches: take no write lock
            if connection.execute(sa.select(requests.c.id).where(over).limit(1)).first() is None:
                return 0
        with writing(self._engine) as connection:
            update = sa.update(requests).where(over).values(not_before=0.0)
            rows = connection.execute(update.returning(requests.c.target_key)).all()
            announce(connection, {queue_topic(row.target_key) for row in rows})
        return len(rows)

    def extend(self, seconds: float) -> int:
        """Add `seconds` to the deadlines of all live leases. Return the number of leases.

        The service calls this function after an outage, during which no worker could renew its
        leases.
        """
        update = sa.update(leases).where(leases.c.ended_at.is_(None))
        with writing(self._engine) as connection:
            return connection.execute(update.values(deadline=leases.c.deadline + seconds)).rowcount

    def in_hand(self) -> dict[str, int]:
        """Return the number of live leases of each worker that has any, by worker id.

        Drained workers are included.
        """
        query = (
            sa.select(leases.c.worker_id, sa.func.count())
            .where(leases.c.ended_at.is_(None))
            .group_by(leases.c.worker_id)
        )
        with reading(self._engine) as connection:
            return {row[0]: row[1] for row in connection.execute(query)}

    def names_blob(self, token_id: str, digest: str) -> bool:
        """Whether a worker may download the blob `digest`.

        A worker may download the blobs that a request needs while it holds a lease on the request.
        `token_id` is the token that the worker uses.
        """
        query = (
            sa.select(requests.c.blob_digests)
            .join(leases, leases.c.id == requests.c.lease_id)
            .join(workers, workers.c.id == leases.c.worker_id)
            .where(leases.c.ended_at.is_(None), workers.c.owner == token_id)
        )
        with reading(self._engine) as connection:
            return any(digest in named for named in connection.execute(query).scalars())

    def name_more(self, lease_id: str, worker_id: str, digests: Collection[str]) -> None:
        """Add blobs to the request of a live lease, so that the worker may download them.

        Raises:
            NotFoundError: if the worker has no such lease.
            StaleLeaseError: if the lease has ended.
        """
        with writing(self._engine) as connection:
            request, lease = _locked(connection, lease_id, worker_id)
            if lease.ended_at is not None:
                raise over(lease.id, lease.request_id, lease.outcome)
            named = list(dict.fromkeys((*request.blob_digests, *digests)))
            update = sa.update(requests).where(requests.c.serial == request.serial)
            connection.execute(update.values(blob_digests=named))
            refer(connection, BlobKind.REQUEST, request.id, sorted(digests))

    def history(self, request_id: str) -> Sequence[LeaseStatus]:
        """Return all leases of a request, oldest first."""
        query = sa.select(leases).where(leases.c.request_id == request_id)
        with reading(self._engine) as connection:
            rows = connection.execute(query.order_by(leases.c.taken_at, leases.c.attempt)).all()
        return [_lease_status(row) for row in rows]

    def _give_up(
        self, lease_id: str, worker_id: str, outcome: LeaseOutcome, blame: Blame, error: str
    ) -> RequestState:
        with writing(self._engine) as connection:
            request, lease = _locked(connection, lease_id, worker_id)
            if lease.ended_at is not None:
                raise over(lease.id, lease.request_id, lease.outcome)
            now = self._time(connection)
            alive = eligible_workers(connection, now - self._lost_after_seconds)
            state = end_without_result(
                connection, request, lease_id, outcome, blame, error, now, alive
            )
            if blame is Blame.WORKER:
                judge(connection, worker_id, now, self._most_failures)
        return state

    def _time(self, connection: sa.Connection) -> float:
        """Return the present time, in seconds since the epoch.

        Each transaction calls this function once, so that all rows of the transaction have the same
        time.
        """
        now = connection.execute(sa.select(self._now())).scalar_one()
        return float(now)


def _locked(
    connection: sa.Connection, lease_id: str, worker_id: str
) -> tuple[sa.Row[Any], sa.Row[Any]]:
    """Lock the request of a worker's lease. Return the rows of the request and of the lease.

    Raises:
        NotFoundError: if the worker has no such lease.
    """
    mine = sa.and_(leases.c.id == lease_id, leases.c.worker_id == worker_id)
    name = sa.select(leases.c.request_id).where(mine).scalar_subquery()
    query = sa.select(requests).where(requests.c.id == name).with_for_update()
    request = connection.execute(query).first()
    lease = connection.execute(sa.select(leases).where(mine)).first()
    if request is None or lease is None:
        raise NotFoundError("lease", lease_id)
    return request, lease


def _lease_status(row: sa.Row[Any]) -> LeaseStatus:
    values = dict(row._mapping)
    del values["result_key"], values["claim_id"]
    lease_id, outcome, blame = (values.pop(name) for name in ("id", "outcome", "blame"))
    return LeaseStatus(
        lease_id,
        outcome=None if outcome is None else LeaseOutcome(outcome),
        blame=None if blame is None else Blame(blame),
        **values,
    )
