"""Query for schedules of weak attestation, which idle workers can measure again.

A claim about a schedule is weak if workers of only one owner reported it. A measurement by a worker
of another owner makes it more trustworthy. The query finds served claims, and provisional claims
whose job has ended.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from enum import StrEnum
from itertools import groupby, islice

import sqlalchemy as sa

from tilewright.db.job_states import JobState
from tilewright.db.models import JobRow
from tilewright.db.review_state import Attestation, ClaimKind, ClaimReporter, ReviewState
from tilewright.db.stores.claim_rows import SUBJECT, claims, is_confirmed
from tilewright.db.stores.statements import table_of

_later = claims.alias("later")
_jobs = table_of(JobRow)


def weak_schedules(
    target_key: str, codegen_version: str, others: Collection[ClaimReporter], but: Collection[str]
) -> sa.Select[tuple[object, ...]]:
    """Return a query for claims that a measurement by one of `others` would make more trustworthy.

    A claim states that a schedule is the fastest for its workload. It becomes more trustworthy if
    another worker, or another owner's worker, measures the schedule. The newest claims come first.

    Args:
        target_key, codegen_version: the target and the code-generator version of the claims.
        others: the workers that could measure again, with their owners.
        but: ids of claims to leave out.
    """
    return (
        sa.select(claims)
        .where(
            _WEAK,
            sa.or_(is_confirmed, _left_behind()),
            claims.c.target_key == target_key,
            claims.c.codegen_version == codegen_version,
            sa.or_(sa.false(), *map(_better, _decisive(others))),
            claims.c.id.not_in(sorted(but)),
        )
        .order_by(claims.c.serial.desc())
    )


def _text(values: Iterable[StrEnum]) -> str:
    return ", ".join(f"'{one.value}'" for one in values)


def _below(attestation: Attestation) -> sa.ColumnElement[bool]:
    weaker = [one.value for one in Attestation if one.rank < attestation.rank]
    return claims.c.attestation.in_(weaker)


# as the index has it: with bound values, no planner applies the index
_WEAK = sa.and_(
    sa.text(f"claims.kind = '{ClaimKind.SCHEDULE.value}'"),
    sa.text(f"claims.state IN ({_text([ReviewState.CONFIRMED, ReviewState.PROVISIONAL])})"),
    sa.text(f"claims.attestation IN ({_text(a for a in Attestation if a.weak)})"),
)


def _left_behind() -> sa.ColumnElement[bool]:
    """Return the SQL condition for unconfirmed claims that no job will review any more.

    A claim states that a schedule is the fastest for its workload. An open job reviews its own
    claims, so the condition selects only claims of ended jobs. It also selects only the newest
    claim about a workload, because confirming an older claim would replace the newer one.
    """
    open_job = sa.exists().where(
        _jobs.c.id == claims.c.job_id,
        _jobs.c.state.not_in([state.value for state in JobState if state.final]),
    )
    later = sa.exists().where(
        *(_later.c[name] == claims.c[name] for name in SUBJECT),
        _later.c.state.in_([ReviewState.CONFIRMED.value, ReviewState.PROVISIONAL.value]),
        _later.c.serial > claims.c.serial,
    )
    provisional = claims.c.state == ReviewState.PROVISIONAL.value
    return sa.and_(provisional, sa.not_(open_job), sa.not_(later))


def _better(other: ClaimReporter) -> sa.ColumnElement[bool]:
    """Return the SQL condition that a measurement by `other` would make a claim more trustworthy.

    A measurement by another owner's worker counts most, then one by another worker of the same
    owner, then a repetition by the same worker. `ClaimReporter.second` has the same rule in Python.
    """
    another = claims.c.reporter != other.worker
    return sa.or_(
        sa.and_(another, claims.c.owner != other.owner),
        sa.and_(another, _below(Attestation.ONE_OWNER)),
        _below(Attestation.ONE_WORKER),
    )


def _decisive(others: Collection[ClaimReporter]) -> Sequence[ClaimReporter]:
    """Select at most two workers of each of at most three owners, to keep the query small.

    A claim was reported by one worker of one owner. If a second measurement by any worker in
    `others` would make the claim more trustworthy, then one by a selected worker would too.
    """

    def owner(one: ClaimReporter) -> str:
        return one.owner

    owners = groupby(sorted(set(others), key=lambda one: (one.owner, one.worker)), owner)
    return [one for _, theirs in islice(owners, 3) for one in islice(theirs, 2)]
