"""Which records rest on one owner's word, and could be backed better: those that are served, and
those that nobody has measured again for the job that made them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from enum import StrEnum
from itertools import groupby, islice

import sqlalchemy as sa

from tilewright.db.job_states import JobState
from tilewright.db.models import JobRow, RecordRow
from tilewright.db.standing import Backing, Standing, Witness
from tilewright.db.stores.records import KEY
from tilewright.db.stores.statements import table_of

_records = table_of(RecordRow)
_later = _records.alias("later")
_jobs = table_of(JobRow)


def weak_records(
    target_key: str, codegen_version: str, others: Collection[Witness], but: Collection[str]
) -> sa.Select[tuple[object, ...]]:
    """Records of a target, the newest first, that rest on more if one of the others agrees.

    Without those that are named in `but`. The index of weak records has them in this order.
    """
    return (
        sa.select(_records)
        .where(
            _WEAK,
            sa.or_(_records.c.state == Standing.CONFIRMED.value, _left_behind()),
            _records.c.target_key == target_key,
            _records.c.codegen_version == codegen_version,
            sa.or_(sa.false(), *map(_better, _telling(others))),
            _records.c.id.not_in(sorted(but)),
        )
        .order_by(_records.c.serial.desc())
    )


def _text(values: Iterable[StrEnum]) -> str:
    return ", ".join(f"'{one.value}'" for one in values)


def _below(backing: Backing) -> sa.ColumnElement[bool]:
    return _records.c.backing.in_([one.value for one in Backing if one.rank < backing.rank])


# as the index has it: for bound values, no planner knows that it applies
_WEAK = sa.and_(
    sa.text(f"records.state IN ({_text([Standing.CONFIRMED, Standing.PROVISIONAL])})"),
    sa.text(f"records.backing IN ({_text(b for b in Backing if b.weak)})"),
)


def _left_behind() -> sa.ColumnElement[bool]:
    """A record is provisional, though its job has ended, and none was made of its key since.

    While the job is open it sees to that itself. To confirm a record makes it the one that is
    served: not in the place of a later one.
    """
    open_job = sa.exists().where(
        _jobs.c.id == _records.c.job_id,
        _jobs.c.state.not_in([state.value for state in JobState if state.final]),
    )
    later = sa.exists().where(
        *(_later.c[name] == _records.c[name] for name in KEY),
        _later.c.state.in_([Standing.CONFIRMED.value, Standing.PROVISIONAL.value]),
        _later.c.serial > _records.c.serial,
    )
    provisional = _records.c.state == Standing.PROVISIONAL.value
    return sa.and_(provisional, sa.not_(open_job), sa.not_(later))


def _better(other: Witness) -> sa.ColumnElement[bool]:
    """`Witness.second(other)` is worth more than what backs a weak record."""
    another = _records.c.worker != other.worker
    return sa.or_(
        sa.and_(another, _records.c.owner != other.owner),
        sa.and_(another, _below(Backing.ONE_OWNER)),
        _below(Backing.ONE_WORKER),
    )


def _telling(others: Collection[Witness]) -> Sequence[Witness]:
    """Some of the others that back whatever all of them could: two workers each of three owners.

    Whoever made a record is one worker of one owner.
    """

    def owner(one: Witness) -> str:
        return one.owner

    owners = groupby(sorted(set(others), key=lambda one: (one.owner, one.worker)), owner)
    return [one for _, theirs in islice(owners, 3) for one in islice(theirs, 2)]
