"""Consequences of a lease that ended without a result, for its request and for its worker.

A worker is lost if it stops renewing its lease. A request is set aside, that is, not offered again,
if several workers were lost while they measured it. If workers of several tokens could take the
request, the lost workers must belong to several tokens. Otherwise one token, which can have any
number of workers, could end any request.

A worker that caused several failures is put into quarantine. It gets no requests for a pause, and
then a single one: the canary. An accepted canary result ends the quarantine; a failed canary
doubles the pause.

Attempts are counted per owner. If the workers of one owner have used up the attempts of a request,
it is reserved for other owners while any of their workers is alive. A late result is one that
arrived after the request was leased to another worker. The late result is accepted if the other
worker fails, so that the work is not repeated.

A worker cannot evade a quarantine by registering again: a new worker inherits the earlier failures
of its token. Until the new worker's first accepted result, later failures of other workers with the
token count against it too.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from tilewright.db.models import WorkerRow
from tilewright.db.stores.measure_queue import leases, requests
from tilewright.db.stores.requests import Blame, LeaseOutcome, RequestState
from tilewright.db.stores.statements import table_of

workers = table_of(WorkerRow)

MOST_TOGETHER = 100
"""Limit of the expired leases that one transaction ends."""

MOST_DEATHS = 3
"""Number of distinct workers that may be lost while they execute a request. After that, no worker
gets the request again."""

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 60.0
"""First and longest pause in seconds before a failed request is queued again. The pause doubles
with each attempt."""

MOST_TURNS = 3
"""A request fails if the workers of one owner have failed it `MOST_TURNS * max_attempts` times,
even if workers of other owners have not tried it.

So many failures occur only if the other owners' workers are alive, but do not take the request.
"""

WINDOW_SECONDS = 3600.0
"""Seconds for which a failure counts towards the quarantine of its worker."""

FIRST_CANARY_SECONDS, LONGEST_CANARY_SECONDS = 30.0, 3600.0
"""First and longest delay in seconds until a worker in quarantine gets a canary, a single request
that tests it. The delay doubles after each failed canary."""

FORGIVEN_SECONDS = 86_400.0
"""Seconds after the end of a quarantine after which the worker's next quarantine starts with the
shortest delay again."""


def end_some(
    connection: sa.Connection,
    over: sa.ColumnElement[bool],
    now: float,
    heard_since: float,
    most_failures: int,
) -> Sequence[tuple[str, RequestState]]:
    """End the leases of workers that no longer renew them, and blame these workers.

    A call ends at most `MOST_TOGETHER` leases, and skips rows that another transaction has locked.
    Return the (id, new state) of each request whose lease was ended.

    Args:
        connection: in a writing transaction.
        over: the SQL condition that selects the leases to end.
        now: the present time, in seconds since the epoch.
        heard_since: workers with a heartbeat since this time count as alive.
        most_failures: number of recent failures that put a worker into quarantine.
    """
    query = (
        sa.select(requests)
        .join(leases, leases.c.id == requests.c.lease_id)
        .where(over)
        .order_by(requests.c.serial)
        .limit(MOST_TOGETHER)
        .with_for_update(skip_locked=True)
    )
    rows = connection.execute(query).all()
    alive = eligible_workers(connection, heard_since) if rows else ()
    ended = []
    for row in rows:
        end = LeaseOutcome.LOST, Blame.WORKER, f"worker '{row.worker_id}' was not heard of"
        state = end_without_result(connection, row, row.lease_id, *end, now, alive)
        ended.append((row.id, state))
    for worker_id, count in sorted(Counter(row.worker_id for row in rows).items()):
        update = sa.update(workers).where(workers.c.id == worker_id)
        connection.execute(update.values(leases_lost=workers.c.leases_lost + count))
        judge(connection, worker_id, now, most_failures)
    return ended


def end_without_result(
    connection: sa.Connection,
    request: sa.Row[Any],
    lease_id: str,
    outcome: LeaseOutcome,
    blame: Blame | None,
    error: str,
    now: float,
    alive: Sequence[EligibleWorker],
) -> RequestState:
    """End a lease without a result, and decide what happens to its request.

    The request is completed by a late result of an earlier worker, queued again after a pause, or
    ended without a result. Return its new state.

    Args:
        connection: in a writing transaction.
        request: the locked row of the leased request.
        lease_id: the id of the lease.
        outcome: how the lease ended, such as lost or failed.
        blame: the cause of the failure: worker, candidate or service; None without a failure.
        error: the error message that is stored with the lease and the request.
        now: the present time, in seconds since the epoch.
        alive: the live workers that may get requests (`eligible_workers`).
    """
    ended = {
        "ended_at": now,
        "outcome": outcome.value,
        "blame": None if blame is None else blame.value,
        "error": error,
    }
    connection.execute(sa.update(leases).where(leases.c.id == lease_id).values(ended))
    if _answer_late(connection, request, now):
        return RequestState.DONE
    fit = [row for row in alive if request.target_key in row.targets]
    owners = set() if request.only_worker is not None else {row.owner for row in fit}
    most = request.max_attempts
    spent = request.attempt >= most
    if spent and owners:
        failures = failures_by_owner(connection, [request.id])[request.id]
        spent = all(failures[owner].count >= most for owner in owners) or any(
            each.count >= MOST_TURNS * most for each in failures.values()
        )
    died = sa.select(leases.c.worker_id, leases.c.token_id).where(
        leases.c.request_id == request.id, leases.c.outcome == LeaseOutcome.LOST.value
    )
    deaths = connection.execute(died).all() if outcome is LeaseOutcome.LOST else []
    dead = [row.worker_id for row in deaths]
    tokens = {row.token_id for row in deaths}
    # otherwise one token could end any request, because it can have any number of workers
    seen = len(tokens) >= min(MOST_DEATHS, len(owners | tokens))
    enough = len(dead) >= MOST_DEATHS and (seen or request.only_worker is not None)
    names = ", ".join(f"'{name}'" for name in sorted({*dead}))
    values: dict[str, Any] = {"finished_at": now}
    if enough and len({*dead}) >= MOST_DEATHS:
        state = RequestState.SET_ASIDE
        values["error"] = f"{len({*dead})} workers died of it ({names})"
        theirs = sa.update(leases).where(
            leases.c.request_id == request.id, leases.c.outcome == LeaseOutcome.LOST.value
        )
        connection.execute(theirs.values(blame=Blame.CANDIDATE.value))
    elif enough or (dead and spent):
        state = RequestState.EXPIRED
        times = "time" if len(dead) == 1 else "times"
        values["error"] = f"the workers were lost {len(dead)} {times} ({names}): {error}"
    elif spent:
        state = RequestState.FAILED
        values["error"] = error
    else:
        state = RequestState.QUEUED
        # attempts are not limited, but floats are
        doubled = FIRST_PAUSE_SECONDS * 2.0 ** min(request.attempt - 1, 60)
        pause = min(LONGEST_PAUSE_SECONDS, doubled)
        values = {"error": error, "not_before": now + pause}
    update = sa.update(requests).where(requests.c.serial == request.serial)
    connection.execute(update.values(state=state.value, **values))
    # `LeaseStore.wake` wakes the waiting claims when the pause ends
    return state


def _answer_late(connection: sa.Connection, request: sa.Row[Any], now: float) -> bool:
    """Complete a request with a late result, if a trusted one is stored.

    A late result is one that arrived after the request was leased to another worker. It is trusted
    unless its worker is in quarantine. Return whether a result was used.
    """
    query = (
        sa.select(leases.c.id, leases.c.worker_id, leases.c.late_result)
        .join(workers, workers.c.id == leases.c.worker_id, isouter=True)
        .where(
            leases.c.request_id == request.id,
            leases.c.outcome == LeaseOutcome.LATE.value,
            leases.c.late_result.is_not(None),
            sa.or_(
                workers.c.id.is_(None),
                sa.and_(workers.c.gone.is_(False), workers.c.quarantined_at.is_(None)),
            ),
        )
        .order_by(leases.c.taken_at, leases.c.id)
        .limit(1)
    )
    if request.only_worker is not None:
        query = query.where(leases.c.worker_id == request.only_worker)
    found = connection.execute(query).first()
    if found is None:
        return False
    update = sa.update(leases).where(leases.c.id == found.id)
    connection.execute(update.values(outcome=LeaseOutcome.COMPLETED.value, late_result=None))
    values = {
        "state": RequestState.DONE.value,
        "result": found.late_result,
        "error": None,
        "worker_id": found.worker_id,
        "lease_id": found.id,
        "finished_at": now,
    }
    connection.execute(
        sa.update(requests).where(requests.c.serial == request.serial).values(values)
    )
    return True


@dataclass(frozen=True, slots=True)
class EligibleWorker:
    """A worker that may get requests.

    Attributes:
        id: the worker's id.
        owner: the id of the worker's token; None without tokens.
        targets: the keys of the targets for which the worker measures.
    """

    id: str
    owner: str | None
    targets: frozenset[str]


def eligible_workers(connection: sa.Connection, heard_since: float) -> Sequence[EligibleWorker]:
    """Return workers with a heartbeat since `heard_since` that may get requests.

    Drained, unregistered and quarantined workers are left out.
    """
    query = sa.select(workers.c.id, workers.c.owner, workers.c.target_keys).where(
        workers.c.gone.is_(False),
        workers.c.draining.is_(False),
        workers.c.quarantined_at.is_(None),
        workers.c.last_heartbeat >= heard_since,
    )
    return [
        EligibleWorker(row.id, row.owner, frozenset(row.target_keys))
        for row in connection.execute(query)
    ]


@dataclass(frozen=True, slots=True)
class Failures:
    """The failures of one owner's workers on a request.

    Attributes:
        count: the number of failures.
        last_at: the time of the last one, in seconds since the epoch.
    """

    count: int = 0
    last_at: float = 0.0


def failures_by_owner(
    connection: sa.Connection, request_ids: Collection[str]
) -> Mapping[str, Mapping[str | None, Failures]]:
    """Return, for each request id, the failures of each owner. An owner is the id of a token.

    Owners without failures are left out.
    """
    ends = (LeaseOutcome.FAILED, LeaseOutcome.REFUSED, LeaseOutcome.LOST)
    query = (
        sa.select(
            leases.c.request_id,
            leases.c.token_id,
            leases.c.ended_at,
            workers.c.id.label("known"),
            workers.c.owner,
        )
        .join(workers, workers.c.id == leases.c.worker_id, isouter=True)
        .where(leases.c.request_id.in_(sorted(request_ids)))
        .where(leases.c.outcome.in_([end.value for end in ends]))
    )
    found: dict[str, dict[str | None, Failures]] = {
        name: defaultdict(Failures) for name in request_ids
    }
    for row in connection.execute(query):
        of = found[row.request_id]
        owner = row.token_id if row.known is None else row.owner
        of[owner] = Failures(of[owner].count + 1, max(of[owner].last_at, row.ended_at))
    return found


def spent_owners(
    connection: sa.Connection, rows: Sequence[sa.Row[Any]], heard_since: float
) -> Set[tuple[str, str | None]]:
    """Find the owners whose workers must not claim certain requests, because they failed too often.

    An owner is excluded from a request after `max_attempts` failures of its workers. The exclusion
    ends if no eligible worker of another owner measures for the request's target, or if the owner's
    last failure was before `heard_since`.

    Args:
        connection: in a transaction.
        rows: the rows of the requests.
        heard_since: workers with a heartbeat since this time count as alive.

    Return (request id, owner) pairs.
    """
    tried = [row for row in rows if row.attempt >= row.max_attempts and row.only_worker is None]
    if not tried:
        return frozenset()
    failures = failures_by_owner(connection, [row.id for row in tried])
    fit = eligible_workers(connection, heard_since)
    found: set[tuple[str, str | None]] = set()
    for row in tried:
        of = failures[row.id]
        spent = {owner for owner, each in of.items() if each.count >= row.max_attempts}
        if any(row.target_key in each.targets and each.owner not in spent for each in fit):
            found |= {(row.id, owner) for owner in spent if of[owner].last_at > heard_since}
    return found


def judge(connection: sa.Connection, worker_id: str, now: float, most_failures: int) -> None:
    """Quarantine a worker that has caused `most_failures` failures within the last hour.

    A worker in quarantine is tested by one request, after a pause. If it fails this request, its
    quarantine starts again, with a doubled pause.
    """
    query = sa.select(workers).where(workers.c.id == worker_id).with_for_update()
    worker = connection.execute(query).first()
    if worker is None:
        return
    since = now - WINDOW_SECONDS
    if worker.quarantined_at is not None:
        since = worker.quarantined_at
    elif worker.readmitted_at is not None:
        since = max(since, worker.readmitted_at)
    query = (
        sa.select(leases.c.request_id, leases.c.outcome, leases.c.error, leases.c.ended_at)
        .where(
            _answerable_for(connection, worker),
            leases.c.blame == Blame.WORKER.value,
            leases.c.ended_at > since,
        )
        .order_by(leases.c.ended_at.desc())
        .limit(100)
    )
    if worker.quarantined_at is not None:
        # leases claimed before the quarantine do not count again
        query = query.where(leases.c.taken_at > worker.quarantined_at)
    failed = connection.execute(query).all()
    if _count(failed) < (1 if worker.quarantined_at is not None else most_failures):
        return
    forgiven = worker.readmitted_at is not None and now - worker.readmitted_at > FORGIVEN_SECONDS
    before = 0 if forgiven and worker.quarantined_at is None else worker.quarantines
    pause = min(LONGEST_CANARY_SECONDS, FIRST_CANARY_SECONDS * 2.0 ** min(before, 10))
    newest = failed[0].error or failed[0].outcome
    said = (
        f"{_count(failed)} failures of its own, the last: {newest}"
        if worker.quarantined_at is None
        else f"what it was tried with failed: {newest}"
    )
    values = {
        "quarantined_at": now,
        "quarantine_reason": said[:500],
        "canary_at": now + pause,
        "quarantines": before + 1,
    }
    connection.execute(sa.update(workers).where(workers.c.id == worker_id).values(values))


def _answerable_for(connection: sa.Connection, worker: sa.Row[Any]) -> sa.ColumnElement[bool]:
    """Return the SQL condition that selects the leases whose failures count against a worker.

    These are the worker's own leases and the leases of other workers with the same token. After a
    result of the worker was accepted, another worker's lease counts only if it ended before this
    worker registered.

    Leases of other workers do not count if this worker is in quarantine or has no token. A lease of
    another worker does not count either if that worker was later readmitted from quarantine.
    """
    own: sa.ColumnElement[bool] = leases.c.worker_id == worker.id
    if worker.owner is None or worker.quarantined_at is not None:
        return own
    others = workers.alias()
    forgiven = sa.exists().where(
        others.c.id == leases.c.worker_id, others.c.readmitted_at >= leases.c.ended_at
    )
    theirs = sa.and_(leases.c.token_id == worker.owner, sa.not_(forgiven))
    good = sa.and_(own, leases.c.outcome == LeaseOutcome.COMPLETED.value)
    if connection.execute(sa.select(leases.c.id).where(good).limit(1)).first() is not None:
        theirs = sa.and_(theirs, leases.c.ended_at < worker.created_at)
    return sa.or_(own, theirs)


def inherited(connection: sa.Connection, owner: str | None) -> dict[str, Any]:
    """Return the quarantine columns that a new worker inherits from its token.

    If workers of the token `owner` are in quarantine, the new worker starts in quarantine too. The
    columns are copied from the worker whose pause without requests ends last. The result is empty
    if no worker of the token is in quarantine.
    """
    columns = ("quarantined_at", "quarantine_reason", "canary_at", "quarantines")
    query = (
        sa.select(*(workers.c[name] for name in columns))
        .where(workers.c.owner == owner, workers.c.quarantined_at.is_not(None))
        .order_by(workers.c.canary_at.desc())
        .limit(1)
    )
    row = None if owner is None else connection.execute(query).first()
    return {} if row is None else dict(row._mapping)


def _count(failed: Any) -> int:
    """Count the failures in the rows of failed leases.

    Leases that were lost in the same minute count as one failure, because a worker that disappears
    loses all its leases.
    """
    own = {row.request_id for row in failed if row.outcome != LeaseOutcome.LOST.value}
    lost = [row for row in failed if row.outcome == LeaseOutcome.LOST.value]
    deaths = min(
        len({row.request_id for row in lost}), len({int(row.ended_at // 60) for row in lost})
    )
    return len(own) + deaths


def readmit(connection: sa.Connection, worker_id: str, taken_at: float | None, now: Any) -> None:
    """End a worker's quarantine.

    Args:
        connection: in a writing transaction.
        worker_id: the worker.
        taken_at: the time at which the worker claimed the request that it has now completed. A
            quarantine that began after this time does not end. None if an admin ends the
            quarantine.
        now: the present time, in seconds since the epoch.
    """
    update = sa.update(workers).where(
        workers.c.id == worker_id, workers.c.quarantined_at.is_not(None)
    )
    if taken_at is not None:
        update = update.where(workers.c.quarantined_at < taken_at)
    connection.execute(
        update.values(
            quarantined_at=None, quarantine_reason=None, canary_at=None, readmitted_at=now
        )
    )


def blame_others(connection: sa.Connection, request_id: str, worker_id: str) -> set[str]:
    """Blame other workers for failing a request that `worker_id` has completed.

    Their failures were attributed to the service until now. The success of `worker_id` shows that
    neither the service nor the candidate caused them. Return the ids of the blamed workers, which
    the caller passes to `judge`.
    """
    update = (
        sa.update(leases)
        .where(
            leases.c.request_id == request_id,
            leases.c.worker_id != worker_id,
            leases.c.blame == Blame.SERVICE.value,
        )
        .values(blame=Blame.WORKER.value)
        .returning(leases.c.worker_id)
    )
    return set(connection.execute(update).scalars())
