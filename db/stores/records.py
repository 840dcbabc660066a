"""Trials (every one, failures too) and records (the best of each record key)."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from compiler.schedule.schedule import Schedule
from db.clock import Clock, system_clock
from db.engine import reading, writing
from db.models import RecordRow, TrialRow
from db.stores.statements import chunks, insert_new, table_of, upsert
from tuner.measure.measurement import Measurement, Phase, RecordKey, Status, Trial, TuningRecord

_trials = table_of(TrialRow)
_records = table_of(RecordRow)


class SqlRecordStore:
    """The tuner's RecordStore and the compiler's ScheduleSource, in SQL."""

    def __init__(self, engine: sa.Engine, clock: Clock = system_clock) -> None:
        self._engine = engine
        self._clock = clock

    # trials

    def add_trials(self, trials: Sequence[Trial]) -> None:
        """Save trials in one transaction; one whose id is known already is left as it is."""
        now = self._clock()
        rows = [_trial_row(trial, now) for trial in trials]
        with writing(self._engine) as connection:
            insert_new(connection, _trials, rows)

    def trials(self, key: RecordKey, limit: int | None = None) -> list[Trial]:
        """The trials of a record key in the order of their arrival; with a limit, the last ones."""
        newest = sa.select(_trials).where(*_matches(_trials, key)).order_by(_trials.c.serial.desc())
        with reading(self._engine) as connection:
            rows = connection.execute(newest if limit is None else newest.limit(limit)).all()
        return [_trial(row) for row in reversed(rows)]

    def trials_of_job(self, job_id: str) -> list[Trial]:
        """Every trial of a job, in the order of their arrival."""
        query = sa.select(_trials).where(_trials.c.job_id == job_id).order_by(_trials.c.serial)
        with reading(self._engine) as connection:
            return [_trial(row) for row in connection.execute(query)]

    def count_trials(self, job_id: str) -> dict[Status, int]:
        """How many trials of a job ended how, every status named."""
        query = (
            sa.select(_trials.c.status, sa.func.count())
            .where(_trials.c.job_id == job_id)
            .group_by(_trials.c.status)
        )
        with reading(self._engine) as connection:
            found = {row[0]: row[1] for row in connection.execute(query)}
        return {status: found.get(status.value, 0) for status in Status}

    def newest_trials(
        self, target_keys: Sequence[str], codegen_version: str, limit: int
    ) -> list[Trial]:
        """The last trials of some targets and one version, in the order of their arrival."""
        query = (
            sa.select(_trials)
            .where(
                _trials.c.target_key.in_(target_keys),
                _trials.c.codegen_version == codegen_version,
            )
            .order_by(_trials.c.serial.desc())
            .limit(limit)
        )
        with reading(self._engine) as connection:
            return [_trial(row) for row in reversed(connection.execute(query).all())]

    def count_by_target(self, codegen_version: str) -> dict[str, int]:
        """How many trials of one version each target has."""
        query = (
            sa.select(_trials.c.target_key, sa.func.count())
            .where(_trials.c.codegen_version == codegen_version)
            .group_by(_trials.c.target_key)
        )
        with reading(self._engine) as connection:
            return {row[0]: row[1] for row in connection.execute(query)}

    # records

    def add_record(self, record: TuningRecord) -> None:
        """Make this the record of its key, whatever was there.

        Raises ValueError for the record of a failed measurement.
        """
        values = _record_values(record, self._clock())
        with writing(self._engine) as connection:
            connection.execute(
                upsert(connection, _records)
                .values({**record.key.to_json(), **values})
                .on_conflict_do_update(index_elements=[*_records.primary_key], set_=values)
            )

    def best_record(self, key: RecordKey) -> TuningRecord | None:
        """The best verified schedule of a record key, or None."""
        return self.best_records([key]).get(key)

    def best_records(self, keys: Sequence[RecordKey]) -> dict[RecordKey, TuningRecord]:
        """Those that are known, in one query for each kind of key: a whole model at once."""
        workloads: dict[tuple[str, int, str], list[str]] = {}
        for key in dict.fromkeys(keys):
            kind = (key.target_key, key.threads, key.numerics)
            workloads.setdefault(kind, []).append(key.workload_key)
        found: dict[RecordKey, TuningRecord] = {}
        with reading(self._engine) as connection:
            for (target_key, threads, numerics), names in workloads.items():
                for some in chunks(names):
                    query = sa.select(_records).where(
                        _records.c.workload_key.in_(some),
                        _records.c.target_key == target_key,
                        _records.c.threads == threads,
                        _records.c.numerics == numerics,
                    )
                    for row in connection.execute(query):
                        record = _record(row)
                        found[record.key] = record
        return found

    def find(
        self,
        *,
        workload_key: str | None = None,
        target_key: str | None = None,
        threads: int | None = None,
        numerics: str | None = None,
        limit: int = 100,
    ) -> Sequence[TuningRecord]:
        """Records that match all that is given, newest first."""
        wanted = {
            _records.c.workload_key: workload_key,
            _records.c.target_key: target_key,
            _records.c.threads: threads,
            _records.c.numerics: numerics,
        }
        query = (
            sa.select(_records)
            .where(*(column == value for column, value in wanted.items() if value is not None))
            .order_by(_records.c.stored_at.desc(), *_records.primary_key)
            .limit(limit)
        )
        with reading(self._engine) as connection:
            return [_record(row) for row in connection.execute(query)]

    # the compiler's ScheduleSource

    def best(
        self, workload_key: str, target_key: str, threads: int, numerics: str
    ) -> Schedule | None:
        """The schedule of the best record."""
        record = self.best_record(RecordKey(workload_key, target_key, threads, numerics))
        return None if record is None else record.schedule


def _matches(table: sa.Table, key: RecordKey) -> list[sa.ColumnElement[bool]]:
    return [table.c[name] == value for name, value in key.to_json().items()]


def _key(row: sa.Row[Any]) -> RecordKey:
    return RecordKey(row.workload_key, row.target_key, row.threads, row.numerics)


def _trial_row(trial: Trial, now: float) -> dict[str, Any]:
    measurement = trial.measurement
    return {
        **trial.key.to_json(),
        # the fields of a Measurement are columns of their own names
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
    }


def _trial(row: sa.Row[Any]) -> Trial:
    return Trial(
        id=row.id,
        key=_key(row),
        schedule=Schedule.from_json(row.schedule),
        measurement=Measurement.from_json(dict(row._mapping)),
        phase=Phase(row.phase),
        job_id=row.job_id,
        codegen_version=row.codegen_version,
        origin=row.origin,
    )


def _record_values(record: TuningRecord, now: float) -> dict[str, Any]:
    """The columns of a record that are not its key."""
    run_seconds = record.run_seconds
    samples = record.measurement.samples_seconds
    spread = (statistics.median(samples) - run_seconds) / run_seconds if run_seconds > 0 else 0.0
    return {
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
        "measured_at": record.measurement.measured_at,
        "stored_at": now,
    }


def _record(row: sa.Row[Any]) -> TuningRecord:
    return TuningRecord(
        key=_key(row),
        schedule=Schedule.from_json(row.schedule),
        measurement=Measurement.from_json(row.measurement),
        trial_id=row.trial_id,
        codegen_version=row.codegen_version,
        compiler_version=row.compiler_version,
    )
