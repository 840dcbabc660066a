"""What became of every record: proposed, confirmed or disputed, superseded, withdrawn.

A record that a device measured which is not ours is provisional: it is confirmed by a second
measurement before it is served to other jobs. Records are never deleted here, so that whatever was
built on one can be told when it is taken back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from tilewright.db.changes import lookups_change
from tilewright.db.clock import Clock, system_clock
from tilewright.db.engine import reading, together, writing
from tilewright.db.errors import NotFoundError
from tilewright.db.models import RecordRow, RecordUseRow, TrialRow, WorkloadShapeRow
from tilewright.db.standing import Backing, Standing, Witness
from tilewright.db.stores.adoption import Foreign, adopt
from tilewright.db.stores.ids import row_of_id
from tilewright.db.stores.pages import Page, PageOrder, Position
from tilewright.db.stores.records import (
    KEY,
    SqlRecordStore,
    changing,
    record_of,
    record_values,
    serve,
    served_rows,
)
from tilewright.db.stores.statements import chunks, insert_new, table_of
from tilewright.db.stores.weak_backing import weak_records
from tilewright.db.stores.witnesses import lost_second, witness
from tilewright.tuner.measure.measurement import Measurement, RecordKey, Trial, TuningRecord

_records = table_of(RecordRow)
_newest_first = PageOrder((_records.c.serial,))
_trials = table_of(TrialRow)
_uses = table_of(RecordUseRow)
_shapes = table_of(WorkloadShapeRow)


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record, and what became of it.

    `witness` measured it for the job `job_id`; both are empty for records of earlier releases.
    `confirmation` is the second measurement of its schedule. `stored_at` is in Unix seconds.
    """

    id: str
    record: TuningRecord
    state: Standing
    reason: str
    job_id: str
    witness: Witness
    backing: Backing
    confirmation: Measurement | None
    stored_at: float

    @property
    def worker(self) -> str:
        """The id of the worker that measured it."""
        return self.witness.worker


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """What was taken back.

    `restored` are records that are served again in the place of withdrawn ones. `jobs` were built
    with a withdrawn record, or measured by the worker. `named` are the whole ids of the records
    that were named.
    """

    records: tuple[StoredRecord, ...]
    restored: tuple[str, ...]
    trials: int
    jobs: tuple[str, ...]
    named: tuple[str, ...]


class RecordLedger:
    """Every record ever made. All methods are safe to repeat."""

    def __init__(self, engine: sa.Engine, clock: Clock = system_clock) -> None:
        self._engine = engine
        self._clock = clock

    def propose(self, record: TuningRecord, job_id: str) -> None:
        """Keep a provisional record of a job; one that is there by its name stays as it is.

        Raises ValueError for the record of a failed measurement.
        """
        values = record_values(record, self._clock(), job_id=job_id)
        with writing(self._engine) as connection:
            values |= {
                "state": Standing.PROVISIONAL.value,
                "backing": Backing.ONCE.value,
                "owner": witness(connection, record.measurement.worker).owner,
            }
            insert_new(connection, _records, [values])

    def provisional(self, job_id: str) -> Sequence[StoredRecord]:
        """The records of a job that nobody confirmed or disputed yet, oldest first."""
        query = sa.select(_records).where(
            _records.c.job_id == job_id, _records.c.state == Standing.PROVISIONAL.value
        )
        with reading(self._engine) as connection:
            rows = connection.execute(query.order_by(_records.c.serial))
            return [_stored(row) for row in rows]

    def confirm(self, record_id: str, second: Measurement, *, ours: bool = False) -> bool:
        """Serve a provisional record, or back one better that is served.

        False if it is neither any more, or this adds nothing. `ours`: our own machine measured.
        """
        with changing(self._engine) as connection:
            row = _locked(connection, record_id)
            first, by = Witness(row.worker, row.owner), witness(connection, second.worker)
            backing = Backing.OWN if ours else first.second(by)
            if not _is_open(row) or backing.rank <= Backing(row.backing).rank:
                return False
            values = dict(row._mapping)
            del values["serial"]  # it becomes the newest
            confirmed = {
                "state": Standing.CONFIRMED.value,
                "confirmation": second.to_json(),
                "confirmed_by": second.worker,
                "backing": backing.value,
                "stored_at": self._clock(),
            }
            serve(connection, {**values, **confirmed})
        return True

    def dispute(self, record_id: str, second: Measurement, reason: str) -> bool:
        """Keep a record from being served that is provisional, or only weakly backed; False if it
        is neither any more.

        What its workers said of this workload teaches nobody any more: a time that is too good
        would stay the best of every later run. What was served before it is served again.
        """
        with changing(self._engine) as connection:
            row = _locked(connection, record_id)
            if not _is_open(row):
                return False
            connection.execute(
                sa.update(_records)
                .where(_records.c.serial == row.serial)
                .values(
                    state=Standing.DISPUTED.value,
                    confirmation=second.to_json(),
                    reason=reason,
                )
            )
            _restore(connection, [row])
            lookups_change(connection, [row.workload_key])
            theirs = (_trials.c[name] == row._mapping[name] for name in KEY)
            liars = _trials.c.worker.in_({row.worker, row.confirmed_by} - {None})
            connection.execute(sa.update(_trials).where(*theirs, liars).values(withdrawn=True))
        return True

    @contextmanager
    def adopting(self) -> Iterator[None]:
        """What is adopted inside, and written through other stores, is one transaction.

        It comes before or after every other that changes what is served.
        """
        with together(self._engine), changing(self._engine):
            yield

    def adopt(self, new: Sequence[Foreign]) -> Sequence[Standing | None]:
        """Keep records that other services made; each is served unless a faster one is known.

        What became of each in its turn; None if it was here before, and stays as it is.
        """
        with changing(self._engine) as connection:
            return adopt(connection, new, self._clock())

    def served(self, keys: Sequence[RecordKey]) -> dict[RecordKey, StoredRecord]:
        """The records that are served for these keys, with what is known of them."""
        found: dict[RecordKey, StoredRecord] = {}
        with reading(self._engine) as connection:
            for row in served_rows(connection, keys):
                stored = _stored(row)
                found[stored.record.key] = stored
        return found

    def weak(
        self,
        target_key: str,
        codegen_version: str,
        others: Collection[Witness],
        *,
        but: Collection[str] = (),
        limit: int,
    ) -> Sequence[StoredRecord]:
        """Records of a target and a code generation that rest on one owner's word, and would rest
        on more if one of the others agreed; the newest first, without those that are named.

        They are served, or provisional though their job has ended, and the last of their key.
        """
        query = weak_records(target_key, codegen_version, others, but).limit(limit)
        with reading(self._engine) as connection:
            return [_stored(row) for row in connection.execute(query)]

    def revalidate(
        self, record_ids: Collection[str], codegen_version: str, compiler_version: str
    ) -> None:
        """The present code generation emits the same code for these records: they are of it."""
        values = {"codegen_version": codegen_version, "compiler_version": compiler_version}
        keys = set[str]()
        with writing(self._engine) as connection:
            for some in chunks(sorted(record_ids)):
                mine = _records.c.id.in_(some)
                connection.execute(sa.update(_records).where(mine).values(values))
                theirs = sa.select(_records.c.workload_key).where(mine)
                keys.update(connection.execute(theirs).scalars())
            lookups_change(connection, keys)

    def use(self, record_ids: Collection[str], job_id: str) -> bool:
        """A job's artifact is built with these records.

        False if one was withdrawn since the job found it: the job looks again what is served.
        """
        names = sorted(set(record_ids))
        with changing(self._engine) as connection:
            for some in chunks(names):
                gone = sa.select(_records.c.id).where(
                    _records.c.id.in_(some), _records.c.state == Standing.WITHDRAWN.value
                )
                if connection.execute(gone.limit(1)).first() is not None:
                    return False
            rows = [{"record_id": name, "job_id": job_id} for name in names]
            insert_new(connection, _uses, rows)
        return True

    def leave(self, record_ids: Collection[str], job_id: str) -> None:
        """A job's artifact is built without these records after all: it is told of them no more."""
        with changing(self._engine) as connection:
            for some in chunks(sorted(set(record_ids))):
                chosen = _uses.c.record_id.in_(some) & (_uses.c.job_id == job_id)
                connection.execute(sa.delete(_uses).where(chosen))

    def uses(self, record_id: str) -> Sequence[str]:
        """The jobs whose artifacts were built with a record."""
        query = sa.select(_uses.c.job_id).where(_uses.c.record_id == record_id)
        with reading(self._engine) as connection:
            return sorted(connection.execute(query).scalars())

    def get(self, record_id: str) -> StoredRecord:
        """The record with this id, or the only one whose id begins so. Raises NotFoundError."""
        with reading(self._engine) as connection:
            query = sa.select(_records)
            return _stored(row_of_id(connection, query, _records.c.id, record_id, "record"))

    def list(
        self,
        *,
        workload_key: str | None = None,
        target_key: str | None = None,
        threads: int | None = None,
        numerics: str | None = None,
        worker: str | None = None,
        state: Standing | None = None,
        named: str | None = None,
        limit: int = 100,
        after: Position | None = None,
    ) -> Page[StoredRecord]:
        """Records that match all that is given, the newest first, after a page's `next`.

        `named` is a part of what their workloads are called, in capitals or not. Raises
        PositionError.
        """
        wanted = {
            _records.c.workload_key: workload_key,
            _records.c.target_key: target_key,
            _records.c.threads: threads,
            _records.c.numerics: numerics,
            _records.c.worker: worker,
            _records.c.state: None if state is None else state.value,
        }
        query = sa.select(_records).where(
            *(column == value for column, value in wanted.items() if value is not None)
        )
        if named is not None:
            called = _shapes.c.name.icontains(named, autoescape=True)
            keys = sa.select(_shapes.c.workload_key).where(called)
            query = query.where(_records.c.workload_key.in_(keys))
        with reading(self._engine) as connection:
            return _newest_first.page(connection, query, _stored, limit, after)

    def withdraw(
        self,
        reason: str,
        *,
        record_ids: Collection[str] = (),
        workers: Collection[str] = (),
    ) -> Withdrawn:
        """Take records back: those that are named, and all that these workers measured.

        For each that was served, the newest one before it is served again. The trials of the
        workers, and those behind the named records, teach nobody any more. What they confirmed of
        others rests on the first word alone.
        """
        with changing(self._engine) as connection:
            rows, named = _to_withdraw(connection, record_ids, workers)
            touched = [row for row in rows if row.state != Standing.WITHDRAWN.value]
            ids = [row.id for row in rows]
            for some in chunks(ids):
                connection.execute(
                    sa.update(_records)
                    .where(_records.c.id.in_(some))
                    .values(state=Standing.WITHDRAWN.value, reason=reason)
                )
            keys = {row.workload_key for row in touched}
            for some in chunks(sorted(workers)):
                lost = lost_second(some, _records).returning(_records.c.workload_key)
                keys.update(connection.execute(lost).scalars())
            restored = _restore(connection, touched)
            lookups_change(connection, keys)
            trials, measured_for = _withdraw_trials(
                connection, [row.trial_id for row in rows], workers
            )
            jobs = set(measured_for)
            for some in chunks(ids):
                query = sa.select(_uses.c.job_id).where(_uses.c.record_id.in_(some))
                jobs.update(connection.execute(query).scalars())
        records = tuple(_stored(row) for row in touched)
        return Withdrawn(
            records, restored, trials, tuple(sorted(jobs - {""})), tuple(sorted(named))
        )


class JobRecords:
    """The record store of one job whose device is not ours: what it records is provisional.

    It finds what is served, and the trials of all jobs.
    """

    def __init__(self, served: SqlRecordStore, ledger: RecordLedger, job_id: str) -> None:
        self._served = served
        self._ledger = ledger
        self._job_id = job_id

    def best_record(self, key: RecordKey) -> TuningRecord | None:
        """The record that is served, or None."""
        return self._served.best_record(key)

    def add_record(self, record: TuningRecord) -> None:
        """Propose it. Raises ValueError for the record of a failed measurement."""
        self._ledger.propose(record, self._job_id)

    def add_trials(self, trials: Sequence[Trial]) -> None:
        """Save trials; one whose id is known already is left as it is."""
        self._served.add_trials(trials)

    def trials(self, key: RecordKey) -> list[Trial]:
        """Every trial of a record key, in the order of their arrival."""
        return self._served.trials(key)


_confirmed = _records.c.state == Standing.CONFIRMED.value


def _is_open(row: sa.Row[Any]) -> bool:
    """Whether a second measurement decides about a record."""
    served_weakly = row.state == Standing.CONFIRMED.value and Backing(row.backing).weak
    return row.state == Standing.PROVISIONAL.value or served_weakly


def _locked(connection: sa.Connection, record_id: str) -> sa.Row[Any]:
    query = sa.select(_records).where(_records.c.id == record_id).with_for_update()
    row = connection.execute(query).first()
    if row is None:
        raise NotFoundError("record", record_id)
    return row


def _to_withdraw(
    connection: sa.Connection, record_ids: Collection[str], workers: Collection[str]
) -> tuple[list[sa.Row[Any]], set[str]]:
    """The records, and the whole ids of those that are named. Raises NotFoundError if one is not
    there."""
    found: dict[str, sa.Row[Any]] = {}
    for column, values in ((_records.c.id, record_ids), (_records.c.worker, workers)):
        for some in chunks(sorted(values)):
            query = sa.select(_records).where(column.in_(some)).order_by(_records.c.serial)
            for row in connection.execute(query.with_for_update()):
                found[row.id] = row
    query = sa.select(_records).with_for_update()
    named = set(record_ids) & found.keys()
    for name in set(record_ids) - named:
        row = row_of_id(connection, query, _records.c.id, name, "record")
        found[row.id] = row
        named.add(row.id)
    return list(found.values()), named


def _restore(connection: sa.Connection, withdrawn: Sequence[sa.Row[Any]]) -> tuple[str, ...]:
    """Serve the newest superseded record of each key that lost what it had; their ids."""
    restored = []
    lost = [row for row in withdrawn if row.state == Standing.CONFIRMED.value]
    for key in dict.fromkeys(tuple(row._mapping[name] for name in KEY) for row in lost):
        same = sa.and_(*(_records.c[n] == v for n, v in zip(KEY, key, strict=True)))
        if connection.execute(sa.select(_records.c.id).where(same, _confirmed)).first() is not None:
            continue
        query = sa.select(_records.c.id).where(same, _records.c.state == Standing.SUPERSEDED.value)
        row = connection.execute(query.order_by(_records.c.serial.desc()).limit(1)).first()
        if row is not None:
            update = sa.update(_records).where(_records.c.id == row.id)
            connection.execute(update.values(state=Standing.CONFIRMED.value))
            restored.append(row.id)
    return tuple(restored)


def _withdraw_trials(
    connection: sa.Connection, trial_ids: Sequence[str], workers: Collection[str]
) -> tuple[int, set[str]]:
    """How many trials were believed until now, and the jobs that the workers measured for."""
    count, jobs = 0, set[str]()
    for column, values in ((_trials.c.id, trial_ids), (_trials.c.worker, sorted(workers))):
        for some in chunks(list(values)):
            if column is _trials.c.worker:
                query = sa.select(_trials.c.job_id).where(column.in_(some)).distinct()
                jobs.update(connection.execute(query).scalars())
            update = sa.update(_trials).where(column.in_(some), _trials.c.withdrawn.is_(False))
            count += connection.execute(update.values(withdrawn=True)).rowcount
    return count, jobs


def _stored(row: sa.Row[Any]) -> StoredRecord:
    return StoredRecord(
        id=row.id,
        record=record_of(row),
        state=Standing(row.state),
        reason=row.reason,
        job_id=row.job_id,
        witness=Witness(row.worker, row.owner),
        backing=Backing(row.backing),
        confirmation=None if row.confirmation is None else Measurement.from_json(row.confirmation),
        stored_at=row.stored_at,
    )
