"""Store of trials (measured candidates), including failed ones, and of records (best schedules).

A record is served while it is the newest confirmed record of its key; `claim_ledger` manages these
states. Withdrawn trials are marked, not deleted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import sqlalchemy as sa

from tilewright.compiler.mode import Mode
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.db.clock import Clock, system_clock
from tilewright.db.engine import reading, writing
from tilewright.db.models import TrialRow
from tilewright.db.stores.claim_rows import (
    by_mode,
    changing,
    record_of,
    record_values,
    serve,
    served_rows,
)
from tilewright.db.stores.statements import insert_returning, table_of
from tilewright.db.stores.worker_outcomes import count_outcomes
from tilewright.tuner.protocol.measurement import (
    Measurement,
    Phase,
    RecordKey,
    Status,
    Trial,
    TuningRecord,
)

_trials = table_of(TrialRow)

_believed = _trials.c.withdrawn.is_(False)

KEY = ("workload_key", "target_key", "threads", "numerics")
"""The columns of a trial's record key."""


class SqlRecordStore:
    """Stores trials and records in SQL.

    The class implements `RecordStore` for the tuner and `ScheduleSource` for the compiler.
    """

    def __init__(self, engine: sa.Engine, clock: Clock = system_clock) -> None:
        self._engine = engine
        self._clock = clock

    # trials

    def add_trials(self, trials: Sequence[Trial]) -> None:
        """Save trials in one transaction, and add them to the counts of their workers.

        A trial whose id is already stored does not change.
        """
        now = self._clock()
        rows = [_trial_row(trial, now) for trial in trials]
        with writing(self._engine) as connection:
            new = insert_returning(connection, _trials, rows, (_trials.c.worker, _trials.c.status))
            count_outcomes(connection, ((row.worker, row.status) for row in new))

    def trials(self, key: RecordKey) -> list[Trial]:
        """Return all trials of a record key, in the order of their arrival."""
        query = sa.select(_trials).where(*_matches(_trials, key)).order_by(_trials.c.serial)
        with reading(self._engine) as connection:
            return [trial_of(row) for row in connection.execute(query)]

    def failed_schedules(self, key: RecordKey) -> set[str]:
        """Return the digests of the schedules whose trials failed for a record key.

        Withdrawn trials are left out.
        """
        query = (
            sa.select(_trials.c.schedule_digest)
            .distinct()
            .where(*_matches(_trials, key), _trials.c.status != Status.OK.value, _believed)
        )
        with reading(self._engine) as connection:
            return set(connection.execute(query).scalars())

    def trials_of_job(self, job_id: str) -> list[Trial]:
        """Return all trials of a job, in the order of their arrival."""
        query = sa.select(_trials).where(_trials.c.job_id == job_id).order_by(_trials.c.serial)
        with reading(self._engine) as connection:
            return [trial_of(row) for row in connection.execute(query)]

    def count_trials(self, job_id: str) -> dict[Status, int]:
        """Return the number of a job's trials for each status, including 0."""
        query = (
            sa.select(_trials.c.status, sa.func.count())
            .where(_trials.c.job_id == job_id)
            .group_by(_trials.c.status)
        )
        with reading(self._engine) as connection:
            found = {row[0]: row[1] for row in connection.execute(query)}
        return {status: found.get(status.value, 0) for status in Status}

    def count_screened(self, keys: Sequence[RecordKey], but_of_job: str) -> int:
        """Count the screening trials for these record keys, except those of job `but_of_job`.

        Screening is the first phase of tuning, which measures many candidates briefly.
        """
        count = 0
        with reading(self._engine) as connection:
            for mode, some in by_mode(keys):
                query = sa.select(sa.func.count()).where(
                    *(_trials.c[name] == value for name, value in mode.items()),
                    _trials.c.workload_key.in_(some),
                    _trials.c.job_id != but_of_job,
                    _trials.c.phase == Phase.SCREEN.value,
                )
                count += connection.execute(query).scalar_one()
        return count

    def newest_trials(
        self, target_keys: Sequence[str], codegen_version: str, limit: int
    ) -> list[Trial]:
        """Return the newest trials of these targets by one version of the code generator.

        They are in the order of arrival. Withdrawn trials are left out. `limit` is the largest
        number of trials.
        """
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
        """Count the trials by one version of the code generator, for each target key.

        Withdrawn trials are left out.
        """
        query = (
            sa.select(_trials.c.target_key, sa.func.count())
            .where(_trials.c.codegen_version == codegen_version, _believed)
            .group_by(_trials.c.target_key)
        )
        with reading(self._engine) as connection:
            return {row[0]: row[1] for row in connection.execute(query)}

    # records

    def add_record(self, record: TuningRecord) -> None:
        """Store a record and serve it, instead of any earlier record of its key.

        Raises:
            ValueError: if the record's measurement failed.
        """
        with changing(self._engine) as connection:
            serve(connection, record_values(record, self._clock()))

    def best_record(self, key: RecordKey) -> TuningRecord | None:
        """Return the tuning record that lookups return for a key, or None."""
        return self.best_records([key]).get(key)

    def best_records(self, keys: Sequence[RecordKey]) -> dict[RecordKey, TuningRecord]:
        """Return the record that lookups return for each key; keys without one are left out.

        Keys with the same target, threads and numerics are read by one query.
        """
        with reading(self._engine) as connection:
            found = map(record_of, served_rows(connection, keys))
            return {record.key: record for record in found}

    # the compiler's ScheduleSource

    def best(self, workload_key: str, mode: Mode) -> Schedule | None:
        """Return the schedule that lookups return for a workload; None without one.

        `mode` is the target, number of threads and numerics of the generated code.
        """
        record = self.best_record(RecordKey(workload_key, *mode.key))
        return None if record is None else record.schedule


def _matches(table: sa.Table, key: RecordKey) -> list[sa.ColumnElement[bool]]:
    return [table.c[name] == value for name, value in key.to_json().items()]


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
    """Convert a row of the table of trials to a Trial.

    Each field of its Measurement is a column with the same name.
    """
    measured = {each.name: row._mapping[each.name] for each in fields(Measurement)}
    return Trial(
        id=row.id,
        key=RecordKey(row.workload_key, row.target_key, row.threads, row.numerics),
        schedule=Schedule.from_json(row.schedule),
        measurement=Measurement.from_json(measured),
        phase=Phase(row.phase),
        job_id=row.job_id,
        codegen_version=row.codegen_version,
        origin=row.origin,
        withdrawn=row.withdrawn,
    )
