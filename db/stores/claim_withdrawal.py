"""Withdrawal of claims: by id, or all claims of faulty workers.

All functions must be called in a transaction of `claim_rows.changing`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from tilewright.db.models import ClaimUseRow, TrialRow
from tilewright.db.review_state import Attestation, ClaimKind, ReviewState, before
from tilewright.db.stores.claim_rows import (
    SUBJECT,
    StoredRecord,
    claims,
    invalidate_schedule_lookups,
    is_confirmed,
    is_race,
    is_schedule,
    same_subject,
    stored_record,
)
from tilewright.db.stores.ids import row_of_id
from tilewright.db.stores.statements import chunks, table_of

_trials = table_of(TrialRow)
_uses = table_of(ClaimUseRow)


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """The effects of withdrawing claims, which are statements about speed.

    Attributes:
        records: the withdrawn claims about schedules.
        restored: ids of the claims that are served again in place of withdrawn ones.
        races: number of withdrawn verdicts of races.
        trials: number of withdrawn trials.
        jobs: ids of the jobs whose compiled model used a withdrawn record, or for which the workers
            measured.
        named: the complete ids of the records that were given by id or prefix.
    """

    records: tuple[StoredRecord, ...]
    restored: tuple[str, ...]
    races: int
    trials: int
    jobs: tuple[str, ...]
    named: tuple[str, ...]


def withdraw(
    connection: sa.Connection,
    reason: str,
    record_ids: Collection[str],
    workers: Collection[str],
) -> Withdrawn:
    """Withdraw claims (statements about speed), and return the resulting changes.

    `ClaimLedger.withdraw` describes the parameters and the changes. `connection` must be in a
    transaction that `claim_rows.changing` opened.
    """
    rows, named = _chosen(connection, record_ids, workers)
    trials, jobs = _withdraw_trials(connection, [row.trial_id for row in rows], workers)
    jobs |= _jobs_built_on(connection, [row.id for row in rows if _is_schedule(row)])
    jobs.discard("")
    found = {row.id: row for row in rows} | {row.id: row for row in _races_of(connection, jobs)}
    touched = [row for row in found.values() if row.state in before(ReviewState.WITHDRAWN)]
    for some in chunks([row.id for row in touched]):
        update = sa.update(claims).where(claims.c.id.in_(some))
        connection.execute(update.values(state=ReviewState.WITHDRAWN.value, reason=reason))
    lost = _lose_reviews(connection, workers)
    restored = restore(connection, [*touched, *lost])
    invalidate_schedule_lookups(connection, [row._mapping for row in (*touched, *lost)])
    return Withdrawn(
        tuple(stored_record(row) for row in touched if _is_schedule(row)),
        restored,
        sum(not _is_schedule(row) for row in touched),
        trials,
        tuple(sorted(jobs)),
        tuple(sorted(named)),
    )


def restore(connection: sa.Connection, rows: Sequence[sa.Row[Any]]) -> tuple[str, ...]:
    """Restore earlier claims in place of claims (statements about speed) that lost their validity.

    Claims lose it if they are withdrawn or disputed. Lookups return only the newest confirmed claim
    of a subject, such as a workload. If a subject has no confirmed claim any more, its newest
    superseded claim becomes confirmed again. Superseded claims that were measured only once are
    skipped.

    Args:
        connection: in a transaction that `claim_rows.changing` opened.
        rows: the rows of the claims before they were withdrawn or disputed.

    Returns:
        the ids of the claims that are confirmed again.
    """
    restored = []
    lost = [row for row in rows if row.state == ReviewState.CONFIRMED.value]
    for about in dict.fromkeys(tuple(row._mapping[name] for name in SUBJECT) for row in lost):
        same = same_subject(dict(zip(SUBJECT, about, strict=True)))
        if connection.execute(sa.select(claims.c.id).where(same, is_confirmed)).first() is not None:
            continue
        query = sa.select(claims.c.id).where(
            same,
            claims.c.state == ReviewState.SUPERSEDED.value,
            claims.c.attestation != Attestation.ONCE.value,
        )
        row = connection.execute(query.order_by(claims.c.serial.desc()).limit(1)).first()
        if row is not None:
            update = sa.update(claims).where(claims.c.id == row.id)
            connection.execute(update.values(state=ReviewState.CONFIRMED.value))
            restored.append(row.id)
    return tuple(restored)


def _is_schedule(row: sa.Row[Any]) -> bool:
    return bool(row.kind == ClaimKind.SCHEDULE.value)


def _chosen(
    connection: sa.Connection, record_ids: Collection[str], workers: Collection[str]
) -> tuple[list[sa.Row[Any]], set[str]]:
    """Lock claims (statements about speed) to withdraw: by id, and all that these workers reported.

    Return their rows, and the complete ids of the records that were given by id or prefix. Raises
    NotFoundError for an unknown record.
    """
    found: dict[str, sa.Row[Any]] = {}
    for column, values in ((claims.c.id, record_ids), (claims.c.reporter, workers)):
        for some in chunks(sorted(values)):
            query = sa.select(claims).where(column.in_(some)).order_by(claims.c.serial)
            for row in connection.execute(query.with_for_update()):
                found[row.id] = row
    query = sa.select(claims).where(is_schedule).with_for_update()
    named = set(record_ids) & found.keys()
    for name in set(record_ids) - named:
        row = row_of_id(connection, query, claims.c.id, name, "record")
        found[row.id] = row
        named.add(row.id)
    return list(found.values()), named


def _races_of(connection: sa.Connection, jobs: Collection[str]) -> list[sa.Row[Any]]:
    """Lock and return the rows of the races that these jobs requested.

    A race times a model with tuned and with default schedules.
    """
    found: list[sa.Row[Any]] = []
    for some in chunks(sorted(jobs)):
        query = sa.select(claims).where(is_race, claims.c.job_id.in_(some))
        found.extend(connection.execute(query.order_by(claims.c.serial).with_for_update()))
    return found


def _jobs_built_on(connection: sa.Connection, claim_ids: Sequence[str]) -> set[str]:
    jobs = set[str]()
    for some in chunks(claim_ids):
        query = sa.select(_uses.c.job_id).where(_uses.c.claim_id.in_(some))
        jobs.update(connection.execute(query).scalars())
    return jobs


def _lose_reviews(connection: sa.Connection, workers: Collection[str]) -> list[sa.Row[Any]]:
    """Discard the reviews by these workers: their second measurements of claims about speed.

    A claim confirmed by such a review becomes provisional again. A superseded claim stays
    superseded, but `restore` will skip it. Return the rows of the reviewed claims before the
    change.
    """
    fallen: list[sa.Row[Any]] = []
    held = [ReviewState.CONFIRMED.value, ReviewState.SUPERSEDED.value]
    for some in chunks(sorted(workers)):
        theirs = sa.and_(claims.c.reviewer.in_(some), claims.c.state.in_(held))
        query = sa.select(claims).where(theirs).order_by(claims.c.serial)
        fallen.extend(connection.execute(query.with_for_update()))
        state = sa.case((is_confirmed, ReviewState.PROVISIONAL.value), else_=claims.c.state)
        connection.execute(
            sa.update(claims)
            .where(theirs)
            .values(state=state, reviewer=None, review=None, attestation=Attestation.ONCE.value)
        )
    return fallen


def _withdraw_trials(
    connection: sa.Connection, trial_ids: Sequence[str], workers: Collection[str]
) -> tuple[int, set[str]]:
    """Withdraw the trials with these ids, and all trials of these workers.

    Return the number of newly withdrawn trials, and the ids of the jobs for which the workers
    measured.
    """
    count, jobs = 0, set[str]()
    named = [name for name in trial_ids if name]
    for column, values in ((_trials.c.id, named), (_trials.c.worker, sorted(workers))):
        for some in chunks(list(values)):
            if column is _trials.c.worker:
                query = sa.select(_trials.c.job_id).where(column.in_(some)).distinct()
                jobs.update(connection.execute(query).scalars())
            update = sa.update(_trials).where(column.in_(some), _trials.c.withdrawn.is_(False))
            count += connection.execute(update.values(withdrawn=True)).rowcount
    return count, jobs
