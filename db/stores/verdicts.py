"""Verdicts of races end to end: which schedules of a model are served.

They stand as records do (`db.standing`): the job that raced believes its own verdict, others
one that a second race agreed with.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from tilewright.db.clock import Clock, system_clock
from tilewright.db.engine import reading, writing
from tilewright.db.models import VerdictRow
from tilewright.db.standing import Backing, Standing, Witness
from tilewright.db.stores.statements import chunks, table_of
from tilewright.db.stores.witnesses import lost_second, witness

_verdicts = table_of(VerdictRow)


@dataclass(frozen=True, slots=True)
class StoredVerdict:
    """What was decided, by whom, and what became of it.

    `served` is which schedules are. `confirmation` is the comparison of the second race.
    """

    serial: int
    identity: str
    job_id: str
    served: str
    verdict: Mapping[str, Any]
    state: Standing
    reason: str
    witness: Witness
    backing: Backing
    confirmation: Mapping[str, Any] | None


class VerdictStore:
    """One row each time that a race was decided, or its verdict used; the identity says what was
    raced."""

    def __init__(self, engine: sa.Engine, clock: Clock = system_clock) -> None:
        self._engine = engine
        self._clock = clock

    def add(
        self,
        identity: str,
        job_id: str,
        served: str,
        verdict: Mapping[str, Any],
        worker: str | None = None,
    ) -> StoredVerdict:
        """Keep what was decided for a job, and why.

        Without a worker our own machine raced, and other jobs believe it at once.
        """
        with writing(self._engine) as connection:
            by = Witness("", "") if worker is None else witness(connection, worker)
            values = {
                "identity": identity,
                "job_id": job_id,
                "served": served,
                "verdict": dict(verdict),
                "created_at": self._clock(),
                "state": (Standing.CONFIRMED if worker is None else Standing.PROVISIONAL).value,
                "reason": "",
                "worker": by.worker,
                "owner": by.owner,
                "backing": (Backing.OWN if worker is None else Backing.ONCE).value,
            }
            row = connection.execute(sa.insert(_verdicts).values(values).returning(_verdicts)).one()
        return _stored(row)

    def use(self, known: StoredVerdict, job_id: str) -> None:
        """Note that a job is served by a verdict of another one; it stands and falls with that."""
        columns = [column.name for column in _verdicts.c if column.name != "serial"]
        mine = {"job_id": job_id, "created_at": self._clock()}
        row = sa.select(
            *(
                sa.literal(mine[name], _verdicts.c[name].type)
                if name in mine
                else _verdicts.c[name]
                for name in columns
            )
        ).where(_verdicts.c.serial == known.serial)
        with writing(self._engine) as connection:
            connection.execute(sa.insert(_verdicts).from_select(columns, row))

    def find(self, identity: str, job_id: str = "") -> StoredVerdict | None:
        """The newest verdict that a job may believe: one that was confirmed, or its own."""
        believed: sa.ColumnElement[bool] = _verdicts.c.state == Standing.CONFIRMED.value
        if job_id:
            own = sa.and_(
                _verdicts.c.job_id == job_id, _verdicts.c.state == Standing.PROVISIONAL.value
            )
            believed = sa.or_(believed, own)
        query = (
            sa.select(_verdicts)
            .where(_verdicts.c.identity == identity, believed)
            .order_by(_verdicts.c.serial.desc())
            .limit(1)
        )
        with reading(self._engine) as connection:
            row = connection.execute(query).first()
        return None if row is None else _stored(row)

    def confirm(
        self, known: StoredVerdict, comparison: Mapping[str, Any], worker: str | None
    ) -> StoredVerdict:
        """A second race agreed, of a worker or without one of our own machine; the verdict as it
        stands then."""
        with writing(self._engine) as connection:
            second = None if worker is None else witness(connection, worker)
            backing = Backing.OWN if second is None else known.witness.second(second)
            backing = max(backing, known.backing, key=lambda one: one.rank)
            values = {
                "state": Standing.CONFIRMED.value,
                "backing": backing.value,
                "confirmed_by": worker,
                "confirmation": dict(comparison),
            }
            connection.execute(_same(known).values(values))
            query = sa.select(_verdicts).where(_verdicts.c.serial == known.serial)
            row = connection.execute(query).first()
        return known if row is None else _stored(row)  # a job's retention may have taken it

    def dispute(self, known: StoredVerdict, comparison: Mapping[str, Any], reason: str) -> None:
        """A second race contradicted it: nobody believes it any more."""
        values = {
            "state": Standing.DISPUTED.value,
            "confirmation": dict(comparison),
            "reason": reason,
        }
        with writing(self._engine) as connection:
            connection.execute(_same(known).values(values))

    def withdraw(self, workers: Collection[str], reason: str) -> int:
        """Take back what these workers decided; what they confirmed of others is provisional
        again. How many were taken back."""
        taken = 0
        with writing(self._engine) as connection:
            for some in chunks(sorted(workers)):
                update = sa.update(_verdicts).where(
                    _verdicts.c.worker.in_(some), _verdicts.c.state != Standing.WITHDRAWN.value
                )
                gone = update.values(state=Standing.WITHDRAWN.value, reason=reason)
                taken += connection.execute(gone).rowcount
                lost = lost_second(some, _verdicts).values(state=Standing.PROVISIONAL.value)
                connection.execute(lost)
        return taken

    def forget(self, job_id: str) -> int:
        """Remove the verdicts that a job's races gave; how many."""
        with writing(self._engine) as connection:
            delete = sa.delete(_verdicts).where(_verdicts.c.job_id == job_id)
            return connection.execute(delete).rowcount

    def counts(self) -> dict[str, int]:
        """How often which schedules were served, by the value of `served`."""
        query = sa.select(_verdicts.c.served, sa.func.count()).group_by(_verdicts.c.served)
        with reading(self._engine) as connection:
            return {row[0]: row[1] for row in connection.execute(query)}


def _same(known: StoredVerdict) -> sa.Update:
    """Statement: all that this worker said of this race, for whatever job, as far as it holds."""
    return sa.update(_verdicts).where(
        _verdicts.c.identity == known.identity,
        _verdicts.c.worker == known.witness.worker,
        _verdicts.c.served == known.served,
        _verdicts.c.state.in_([Standing.PROVISIONAL.value, Standing.CONFIRMED.value]),
    )


def _stored(row: sa.Row[Any]) -> StoredVerdict:
    return StoredVerdict(
        serial=row.serial,
        identity=row.identity,
        job_id=row.job_id,
        served=row.served,
        verdict=row.verdict,
        state=Standing(row.state),
        reason=row.reason,
        witness=Witness(row.worker, row.owner),
        backing=Backing(row.backing),
        confirmation=row.confirmation,
    )
