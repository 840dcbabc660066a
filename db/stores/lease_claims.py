"""Leases measurement requests to several workers at once, in two steps: `survey` and `take`.

In this module, a claim is a worker's call for leases, not a statement about speed. Data that
several claims need are read once. Each claim in turn, in the order of arrival, gets one request,
until every claim has reached its limit or no request is left. So a few requests are spread over
many workers.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from tilewright.db.errors import NotFoundError
from tilewright.db.notices import is_queued
from tilewright.db.stores.blame import eligible_workers, spent_owners, workers
from tilewright.db.stores.measure_queue import leases, requests
from tilewright.db.stores.requests import Lease, RequestState
from tilewright.db.stores.statements import chunks

Now = sa.ColumnElement[float]


@dataclass(frozen=True, slots=True)
class Claim:
    """A worker's call for leases on measurement requests.

    Attributes:
        worker_id: the id of the worker.
        target_keys: the targets for which the worker measures.
        limit: the largest number of requests to lease.
        token_id: the id of the worker's token.
        claim_id: a name for this claim, chosen by the worker. If the response is lost, the worker
            repeats the claim with the same name, and gets the same leases if they are still valid.
    """

    worker_id: str
    target_keys: tuple[str, ...]
    limit: int
    token_id: str | None = None
    claim_id: str | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """The answer to a worker's claim: the leases that the worker gets, which may be none."""

    leases: Sequence[Lease] = ()
    empty: bool = False
    """Whether no request is queued for the worker's targets. Other claims for these targets then
    need no database query."""
    gone: bool = False
    """Whether the worker has unregistered."""


@dataclass(slots=True)
class _Claimant:
    """A claim (a worker's call for leases), with the requests that are assigned to it so far.

    Attributes:
        claim: the claim.
        owner: the id of the worker's token.
        room: the number of further requests that the claim may get.
        avoided: ids of the requests that the claim must not get.
        given: the rows of the requests assigned to the claim.
    """

    claim: Claim
    owner: str | None
    room: int = 0
    avoided: Collection[str] = ()
    given: list[sa.Row[Any]] = field(default_factory=list)

    def may_take(self, row: sa.Row[Any], spent: Set[tuple[str, str | None]]) -> bool:
        return (
            row.target_key in self.claim.target_keys
            and row.only_worker in (None, self.claim.worker_id)
            and row.id not in self.avoided
            and (row.id, self.owner) not in spent
        )


@dataclass(frozen=True, slots=True)
class Survey:
    """Data about several claims (workers' calls for leases), read before any request is leased.

    Claims are identified by their index in the list of claims that `survey` was called with.

    Attributes:
        found: the answers to the claims that get no new leases.
        able: the claims that may get requests.
        owners: the owner (token id) of each worker, by worker id.
        in_quarantine: the ids of the workers in quarantine.
        targets: the keys of the targets with queued requests.
    """

    found: Mapping[int, Found | NotFoundError]
    able: Sequence[int]
    owners: Mapping[str, str | None]
    in_quarantine: Collection[str]
    targets: Set[str]


def survey(connection: sa.Connection, claims: Sequence[Claim], now: Now) -> Survey:
    """Return which claims may get new leases, and the answers to the other claims.

    A claim is a worker's call for leases on queued requests. A claim gets no new lease in any of
    these cases:

    - Its worker is unknown, unregistered, or drained: a user has stopped new leases for it.
    - Its worker is in quarantine, and must not be tested yet.
    - No request for its targets is queued.
    - The claim is a repetition: it gets its earlier leases again.
    """
    known = _facts(connection, {claim.worker_id for claim in claims}, now)
    again = _again(connection, claims)
    found: dict[int, Found | NotFoundError] = {}
    for number, claim in enumerate(claims):
        worker = known.get(claim.worker_id)
        if worker is None:
            found[number] = NotFoundError("worker", claim.worker_id)
        elif worker.gone:
            found[number] = Found(gone=True)
        elif (claim.worker_id, claim.claim_id) in again:
            found[number] = Found(again[claim.worker_id, claim.claim_id])
        elif worker.draining or (worker.quarantined_at is not None and not worker.canary):
            found[number] = Found()
    able = [number for number in range(len(claims)) if number not in found]
    targets = _targets_that_wait(connection, [claims[number] for number in able], now)
    found |= {n: Found(empty=True) for n in able if targets.isdisjoint(claims[n].target_keys)}
    able = [number for number in able if number not in found]
    ill = {row.id for row in known.values() if row.quarantined_at is not None}
    return Survey(found, able, {row.id: row.owner for row in known.values()}, ill, targets)


def take(
    connection: sa.Connection,
    claims: Sequence[Claim],
    seen: Survey,
    now: float,
    lost_after_seconds: float,
    lease_seconds: float,
) -> Sequence[Found]:
    """Lease requests to the claims (workers' calls for leases) that `survey` admitted.

    Return the answer to each claim, in the same order.

    Args:
        connection: in a writing transaction.
        claims: the admitted claims, in the order of their arrival.
        seen: the data that `survey` has read about the claims.
        now: the present time, in seconds since the epoch.
        lost_after_seconds: time without a heartbeat after which a worker counts as lost.
        lease_seconds: the duration of the leases.
    """
    claimants = [_Claimant(claim, seen.owners[claim.worker_id], claim.limit) for claim in claims]
    _try_canaries(connection, claimants, seen.in_quarantine, now)
    _avoid(connection, claimants, now - lost_after_seconds)
    left = _deal(connection, claimants, seen.targets, now, now - lost_after_seconds)
    made = _insert(connection, claimants, now, lease_seconds)
    return [
        Found(found, empty=not found and left.isdisjoint(claim.target_keys))
        for claim, found in zip(claims, made, strict=True)
    ]


def _facts(
    connection: sa.Connection, names: Collection[str], now: Now
) -> Mapping[str, sa.Row[Any]]:
    query = sa.select(
        workers.c.id,
        workers.c.owner,
        workers.c.gone,
        workers.c.draining,
        workers.c.quarantined_at,
        (workers.c.canary_at <= now).label("canary"),
    )
    found = connection.execute(query.where(workers.c.id.in_(sorted(names))))
    return {row.id: row for row in found}


def _again(
    connection: sa.Connection, claims: Iterable[Claim]
) -> Mapping[tuple[str, str | None], Sequence[Lease]]:
    """Find the leases that earlier calls with the same claim ids created, and that are still live.

    A worker that did not receive the response to a claim sends the claim again with the same claim
    id. Return the leases by (worker id, claim id).
    """
    names = sorted({claim.claim_id for claim in claims if claim.claim_id is not None})
    found: dict[tuple[str, str | None], list[Lease]] = {}
    if names:
        columns = (leases.c.worker_id, leases.c.claim_id, leases.c.id.label("lease_id"))
        query: sa.Select[Any] = (
            sa.select(*_taken_columns, *columns, leases.c.deadline)
            .join(leases, leases.c.request_id == requests.c.id)
            .where(leases.c.claim_id.in_(names), leases.c.ended_at.is_(None))
            .order_by(requests.c.serial)
        )
        for row in connection.execute(query):
            lease = _lease(row, row.worker_id, row.lease_id, row.attempt, row.deadline)
            found.setdefault((row.worker_id, row.claim_id), []).append(lease)
    return found


def _targets_that_wait(connection: sa.Connection, claims: Sequence[Claim], now: Now) -> Set[str]:
    """Return the keys of the targets with a queued request for one of the claims.

    A claim is a worker's call for leases. The request must be one that the worker may get.
    """
    asked = sorted({target for claim in claims for target in claim.target_keys})
    names = sorted({claim.worker_id for claim in claims})
    looks = [
        sa.select(sa.literal(target, sa.Text).label("target_key")).where(
            sa.exists().where(*_takeable(target, names, now))
        )
        for target in asked
    ]
    found: set[str] = set()
    for some in chunks(looks):
        found.update(connection.execute(sa.union_all(*some)).scalars())
    return found


def _takeable(
    target: str, names: Sequence[str], now: Now | float
) -> Sequence[sa.ColumnElement[bool]]:
    return (
        is_queued(),
        requests.c.target_key == target,
        sa.or_(requests.c.only_worker.is_(None), requests.c.only_worker.in_(names)),
        requests.c.not_before <= now,
    )


def _try_canaries(
    connection: sa.Connection, claimants: Iterable[_Claimant], ill: Collection[str], now: float
) -> None:
    """Let each worker in quarantine (`ill`) get one request as a test, if its pause has ended.

    A worker that holds a lease gets no other. The rows of the workers are locked, so that two
    concurrent claims of one worker, also from different processes, get only one request.
    """
    tried = {each.claim.worker_id: each for each in claimants if each.claim.worker_id in ill}
    if not tried:
        return
    for each in claimants:
        if each.claim.worker_id in ill:
            each.room = 0
    query = sa.select(workers.c.id, workers.c.quarantined_at, workers.c.canary_at)
    query = query.where(workers.c.id.in_(sorted(tried))).order_by(workers.c.id)
    for row in connection.execute(query.with_for_update()).all():
        live = sa.select(leases.c.id).where(
            leases.c.worker_id == row.id, leases.c.ended_at.is_(None)
        )
        free = row.quarantined_at is None or row.canary_at <= now
        if free and connection.execute(live.limit(1)).first() is None:
            tried[row.id].room = 1


def _avoid(connection: sa.Connection, claimants: Iterable[_Claimant], heard_since: float) -> None:
    """Set, for each claimant (a worker that calls for leases), the requests that it should not get.

    A claimant should not get a request that it failed after the time `heard_since`. This holds only
    if another live worker measures for the request's target and has not failed the request.
    Failures before `heard_since` are ignored, because the other worker may never call for requests.
    """
    able = {each.claim.worker_id for each in claimants if each.room}
    others = leases.alias()
    query = (
        sa.select(
            leases.c.worker_id.label("claimant"),
            requests.c.id,
            requests.c.target_key,
            others.c.worker_id,
        )
        .join(leases, leases.c.request_id == requests.c.id)
        .join(others, others.c.request_id == requests.c.id)
        .where(
            leases.c.worker_id.in_(sorted(able)),
            leases.c.blame.is_not(None),
            leases.c.ended_at > heard_since,
            others.c.blame.is_not(None),
            is_queued(),
            requests.c.only_worker.is_(None),
        )
    )
    failed: dict[tuple[str, str], set[str]] = {}
    theirs: dict[str, set[tuple[str, str]]] = {}
    for row in connection.execute(query):
        failed.setdefault((row.id, row.target_key), set()).add(row.worker_id)
        theirs.setdefault(row.claimant, set()).add((row.id, row.target_key))
    if not failed:
        return
    fit = eligible_workers(connection, heard_since)
    others_can = {
        key
        for key, names in failed.items()
        if any(worker.id not in names and key[1] in worker.targets for worker in fit)
    }
    for each in claimants:
        found = theirs.get(each.claim.worker_id, set()) & others_can
        each.avoided = {request_id for request_id, _ in found}


def _deal(
    connection: sa.Connection,
    claimants: Sequence[_Claimant],
    targets: Set[str],
    now: float,
    heard_since: float,
) -> Set[str]:
    """Assign queued requests for `targets` to claims (workers' calls for leases).

    If an owner's workers failed a request too often, the owner does not get the request again. This
    holds while a live worker of another owner measures for the request's target (`spent_owners`).
    Workers with a heartbeat since `heard_since` count as alive.

    Returns:
        the targets for which unassigned requests may still be queued.
    """
    left: set[str] = set()
    seen: list[int] = []
    unread = sorted(targets)
    while unread:
        rows: list[sa.Row[Any]] = []
        for target in list(unread):
            wanting = [c for c in claimants if c.room and target in c.claim.target_keys]
            if not wanting:
                unread.remove(target)
                left.add(target)
                continue
            nobodys = set.intersection(*(set(each.avoided) for each in wanting))
            found = _first(connection, target, wanting, nobodys, seen, now)
            rows += found
            if len(found) < sum(each.room for each in wanting):
                unread.remove(target)
            if nobodys:
                left.add(target)
        seen += [row.serial for row in rows]
        rows.sort(key=lambda row: (-row.priority, row.serial))
        _deal_out(rows, claimants, spent_owners(connection, rows, heard_since))
        # every claim that could take a remaining request has its full number by now
        left.update(row.target_key for row in rows)
    return left


def _first(
    connection: sa.Connection,
    target: str,
    wanting: Sequence[_Claimant],
    nobodys: Set[str],
    seen: Sequence[int],
    now: float,
) -> Sequence[sa.Row[Any]]:
    """Lock the next queued requests for a target, at most as many as all claims may still get.

    The request with the highest priority comes first, then the oldest. Return the rows of the
    requests.

    Args:
        connection: in a writing transaction.
        target: the key of the target.
        wanting: the workers' calls for leases (claims) that can get requests for the target.
        nobodys: ids of requests that no claim in `wanting` may get; they are left out.
        seen: serial numbers of requests that were already read; they are left out.
        now: the present time, in seconds since the epoch.
    """
    query: sa.Select[Any] = (
        sa.select(*_taken_columns, requests.c.only_worker, requests.c.priority)
        .where(
            *_takeable(target, sorted({each.claim.worker_id for each in wanting}), now),
            requests.c.id.not_in(sorted(nobodys)),
            requests.c.serial.not_in(seen),
        )
        .order_by(requests.c.priority.desc(), requests.c.serial)
        .limit(sum(each.room for each in wanting))
    )
    return connection.execute(query.with_for_update(skip_locked=True)).all()


def _deal_out(
    rows: list[sa.Row[Any]], claimants: Sequence[_Claimant], spent: Set[tuple[str, str | None]]
) -> None:
    """Assign requests round-robin: each claimant in turn gets the first request that it may have.

    A claimant is a worker that called for leases. The rounds end when no claimant can get another
    request. Assigned rows are removed from `rows`. For each (request id, owner) pair in `spent`,
    workers of the owner do not get the request.
    """
    turn = [each for each in claimants if each.room]
    while rows and turn:
        next_turn = []
        for each in turn:
            place = next((n for n, row in enumerate(rows) if each.may_take(row, spent)), None)
            if place is None:
                continue
            each.given.append(rows.pop(place))
            each.room -= 1
            if each.room:
                next_turn.append(each)
        turn = next_turn


def _insert(
    connection: sa.Connection,
    claimants: Sequence[_Claimant],
    now: float,
    lease_seconds: float,
) -> Sequence[Sequence[Lease]]:
    """Insert a lease for each assigned request, and mark the request as leased.

    Return the leases of each claim.
    """
    deadline = now + lease_seconds
    made: list[list[Lease]] = []
    rows: list[dict[str, Any]] = []
    for each in claimants:
        claim = each.claim
        made.append([])
        for row in each.given:
            name = secrets.token_hex(16)
            made[-1].append(_lease(row, claim.worker_id, name, row.attempt + 1, deadline))
            rows.append(
                {
                    "id": name,
                    "request_id": row.id,
                    "worker_id": claim.worker_id,
                    "token_id": claim.token_id,
                    "claim_id": claim.claim_id,
                    "attempt": row.attempt + 1,
                    "taken_at": now,
                    "deadline": deadline,
                }
            )
    if rows:
        connection.execute(sa.insert(leases), rows)
    for some in chunks([row["id"] for row in rows]):
        update = sa.update(requests).where(
            leases.c.id.in_(some), requests.c.id == leases.c.request_id
        )
        connection.execute(
            update.values(
                state=RequestState.LEASED.value,
                attempt=requests.c.attempt + 1,
                worker_id=leases.c.worker_id,
                lease_id=leases.c.id,
            )
        )
    return made


_taken_columns: tuple[sa.ColumnElement[Any], ...] = (
    requests.c.serial,
    requests.c.id,
    requests.c.job_id,
    requests.c.target_key,
    requests.c.payload,
    requests.c.blob_digests,
    requests.c.attempt,
    requests.c.max_attempts,
)


def _lease(row: sa.Row[Any], worker_id: str, lease_id: str, attempt: int, deadline: float) -> Lease:
    return Lease(
        lease_id=lease_id,
        request_id=row.id,
        job_id=row.job_id,
        target_key=row.target_key,
        payload=row.payload,
        blob_digests=tuple(row.blob_digests),
        worker_id=worker_id,
        attempt=attempt,
        deadline=deadline,
    )
