"""Trials (every one, failures too) and the records that are served.

What becomes of a record is in `record_ledger`: it is served while it is the newest confirmed one of
its key. Trials that were withdrawn are kept, and say so.
"""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import sqlalchemy as sa

from tilewright.compiler.mode import Mode
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.db.changes import lookups_change
from tilewright.db.clock import Clock, system_clock
from tilewright.db.engine import reading, writing
from tilewright.db.models import RecordRow, TrialRow
from tilewright.db.standing import Backing, Standing
from tilewright.db.stores.statements import chunks, insert_and_tell, one_at_a_time, table_of
from tilewright.db.stores.worker_outcomes import count_outcomes
from tilewright.tuner.measure.measurement import (
    Measurement,
    Phase,
    RecordKey,
    Status,
    Trial,
    TuningRecord,
)

_trials = table_of(TrialRow)
_records = table_of(RecordRow)

_believed = _trials.c.withdrawn.is_(False)

KEY = ("workload_key", "target_key", "threads", "numerics")
"""The columns of a record key."""


class SqlRecordStore:
    """The tuner's RecordStore and the compiler's ScheduleSource, in SQL."""

    def __init__(self, engine: sa.Engine, clock: Clock = system_clock) -> None:
        self._engine = engine
        self._clock = clock

    # trials

    def add_trials(self, trials: Sequence[Trial]) -> None:
        """Save trials in one transaction, and count them for their workers; a trial whose id is
        known already stays as it is."""
        now = self._clock()
        rows = [_trial_row(trial, now) for trial in trials]
        with writing(self._engine) as connection:
            new = insert_and_tell(connection, _trials, rows, (_trials.c.worker, _trials.c.status))
            count_outcomes(connection, ((row.worker, row.status) for row in new))

    def trials(self, key: RecordKey) -> list[Trial]:
        """Every trial of a record key, in the order of their arrival."""
        query = sa.select(_trials).where(*_matches(_trials, key)).order_by(_trials.c.serial)
        with reading(self._engine) as connection:
            return [trial_of(row) for row in connection.execute(query)]

    def trials_of_job(self, job_id: str) -> list[Trial]:
        """Every trial of a job, in the order of their arrival."""
        query = sa.select(_trials).where(_trials.c.job_id == job_id).order_by(_trials.c.serial)
        with reading(self._engine) as connection:
            return [trial_of(row) for row in connection.execute(query)]

    def count_trials(self, job_id: str) -> dict[Status, int]:
        """The number of a job's trials by the status in which they ended; every status is named."""
        query = (
            sa.select(_trials.c.status, sa.func.count())
            .where(_trials.c.job_id == job_id)
            .group_by(_trials.c.status)
        )
        with reading(self._engine) as connection:
            found = {row[0]: row[1] for row in connection.execute(query)}
        return {status: found.get(status.value, 0) for status in Status}

    def count_screened(self, keys: Sequence[RecordKey], but_of_job: str) -> int:
        """The number of candidates of these keys that other jobs have measured."""
        count = 0
        with reading(self._engine) as connection:
            for kind, some in _by_kind(keys):
                query = sa.select(sa.func.count()).where(
                    *(_trials.c[name] == value for name, value in kind.items()),
                    _trials.c.workload_key.in_(some),
                    _trials.c.job_id != but_of_job,
                    _trials.c.phase == Phase.SCREEN.value,
                )
                count += connection.execute(query).scalar_one()
        return count

    def newest_trials(
        self, target_keys: Sequence[str], codegen_version: str, limit: int
    ) -> list[Trial]:
        """The last trials of some targets, of one version, in the order of their arrival."""
        query = (
            sa.select(_trials)
            .where(
                _trials.c.target_key.in_(target_keys),
                _trials.c.codegen_version == codegen_version,
                _believed,
            )
            .order_by(_trials.c.serial.desc())
            .limit(limit)
        )
        with reading(self._engine) as connection:
            return [trial_of(row) for row in reversed(connection.execute(query).all())]

    def count_by_target(self, codegen_version: str) -> dict[str, int]:
        """The number of trials of one version, by target."""
        query = (
            sa.select(_trials.c.target_key, sa.func.count())
            .where(_trials.c.codegen_version == codegen_version, _believed)
            .group_by(_trials.c.target_key)
        )
        with reading(self._engine) as connection:
            return {row[0]: row[1] for row in connection.execute(query)}

    # records

    def add_record(self, record: TuningRecord) -> None:
        """Serve this as the record of its key, in place of any earlier one.

        Raises ValueError for the record of a failed measurement.
        """
        with changing(self._engine) as connection:
            serve(connection, record_values(record, self._clock()))

    def best_record(self, key: RecordKey) -> TuningRecord | None:
        """The best verified schedule of a record key, or None."""
        return self.best_records([key]).get(key)

    def best_records(self, keys: Sequence[RecordKey]) -> dict[RecordKey, TuningRecord]:
        """The known records of these keys: a whole model at once, in one query per kind of key."""
        with reading(self._engine) as connection:
            found = map(record_of, served_rows(connection, keys))
            return {record.key: record for record in found}

    # the compiler's ScheduleSource

    def best(self, workload_key: str, mode: Mode) -> Schedule | None:
        """The schedule of the best record."""
        record = self.best_record(RecordKey(workload_key, *mode.key))
        return None if record is None else record.schedule


def _matches(table: sa.Table, key: RecordKey) -> list[sa.ColumnElement[bool]]:
    return [table.c[name] == value for name, value in key.to_json().items()]


def key_of(row: sa.Row[Any]) -> RecordKey:
    return RecordKey(row.workload_key, row.target_key, row.threads, row.numerics)


def _trial_row(trial: Trial, now: float) -> dict[str, Any]:
    measurement = trial.measurement
    return {
        **trial.key.to_json(),
        # Each field of a Measurement is a column of the same name.
        **measurement.to_json(),
        "run_seconds": measurement.run_seconds,
        "id": trial.id,
        "phase": trial.phase.value,
        "job_id": trial.job_id,
        "algorithm": trial.schedule.algorithm,
        "schedule": trial.schedule.to_json(),
        "schedule_digest": trial.schedule.digest,
        "codegen_version": trial.codegen_version,
        "origin": trial.origin,
        "stored_at": now,
        "withdrawn": trial.withdrawn,
    }


def trial_of(row: sa.Row[Any]) -> Trial:
    """The trial in a row: each field of its measurement is a column of the same name."""
    measured = {each.name: row._mapping[each.name] for each in fields(Measurement)}
    return Trial(
        id=row.id,
        key=key_of(row),
        schedule=Schedule.from_json(row.schedule),
        measurement=Measurement.from_json(measured),
        phase=Phase(row.phase),
        job_id=row.job_id,
        codegen_version=row.codegen_version,
        origin=row.origin,
        withdrawn=row.withdrawn,
    )


def record_id(key: RecordKey, schedule_digest: str, trial_id: str) -> str:
    """A name for a record, the same for the same evidence: 32 hexadecimal digits.

    Code of a later generation that comes out the same keeps the record, so that is no part of it.
    """
    parts = (*map(str, key.to_json().values()), schedule_digest, trial_id)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def record_values(record: TuningRecord, now: float, *, job_id: str = "") -> dict[str, Any]:
    """The columns of a new record, which is confirmed."""
    run_seconds = record.run_seconds
    samples = record.measurement.samples_seconds
    spread = (statistics.median(samples) - run_seconds) / run_seconds if run_seconds > 0 else 0.0
    return {
        **record.key.to_json(),
        "id": record_id(record.key, record.schedule.digest, record.trial_id),
        "state": Standing.CONFIRMED.value,
        "reason": "",
        "job_id": job_id,
        "worker": record.measurement.worker,
        "trial_id": record.trial_id,
        "algorithm": record.schedule.algorithm,
        "schedule": record.schedule.to_json(),
        "schedule_digest": record.schedule.digest,
        "object_digest": record.measurement.object_digest,
        "codegen_version": record.codegen_version,
        "compiler_version": record.compiler_version,
        "run_seconds": run_seconds,
        "samples": len(samples),
        "spread": spread,
        "measurement": record.measurement.to_json(),
        "confirmation": None,
        "owner": "",
        "backing": Backing.OWN.value,
        "confirmed_by": None,
        "measured_at": record.measurement.measured_at,
        "stored_at": now,
    }


def served_rows(
    connection: sa.Connection,
    keys: Sequence[RecordKey],
) -> Iterator[sa.Row[Any]]:
    """The rows that are served for these keys, in one query for each kind of key."""
    for kind, some in _by_kind(keys):
        query = sa.select(_records).where(
            *(_records.c[name] == value for name, value in kind.items()),
            _records.c.workload_key.in_(some),
            _records.c.state == Standing.CONFIRMED.value,
        )
        yield from connection.execute(query.order_by(_records.c.serial))


def _by_kind(keys: Sequence[RecordKey]) -> Iterator[tuple[dict[str, Any], Sequence[str]]]:
    """What keys have in common but the workload, and the workloads, as many as fit a statement."""
    workloads: dict[tuple[str, int, str], list[str]] = {}
    for key in dict.fromkeys(keys):
        kind = (key.target_key, key.threads, key.numerics)
        workloads.setdefault(kind, []).append(key.workload_key)
    for kind, names in workloads.items():
        for some in chunks(names):
            yield dict(zip(KEY[1:], kind, strict=True)), some


@contextmanager
def changing(engine: sa.Engine) -> Iterator[sa.Connection]:
    """A transaction that changes what is served, one after the other.

    Serving a record writes its row anew. On PostgreSQL another transaction that waited for the old
    row would miss the new one: a withdrawal would leave it served.
    """
    with writing(engine) as connection:
        one_at_a_time(connection, "records")
        yield connection


def serve(connection: sa.Connection, values: dict[str, Any]) -> None:
    """Make a confirmed record the newest one of its key; the one before is superseded.

    One that was there by the same name is replaced. The transaction is one of `changing`.
    """
    served = sa.and_(
        *(_records.c[name] == values[name] for name in KEY),
        _records.c.state == Standing.CONFIRMED.value,
    )
    connection.execute(sa.delete(_records).where(_records.c.id == values["id"]))
    connection.execute(sa.update(_records).where(served).values(state=Standing.SUPERSEDED.value))
    connection.execute(sa.insert(_records).values(values))
    lookups_change(connection, [values["workload_key"]])


def record_of(row: sa.Row[Any]) -> TuningRecord:
    """The record in a row."""
    return TuningRecord(
        key=key_of(row),
        schedule=Schedule.from_json(row.schedule),
        measurement=Measurement.from_json(row.measurement),
        trial_id=row.trial_id,
        codegen_version=row.codegen_version,
        compiler_version=row.compiler_version,
    )
