"""Deletion by age: trials, finished jobs, artifacts, models and audit entries.

The best record of a key and its evidence are kept at any age, until a better record replaces them.
Rows of open jobs are kept too. The bytes of deleted models and artifacts are deleted later, by
`BlobStore.sweep`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from tilewright.db.changes import invalidate_lookups
from tilewright.db.clock import Clock, instant
from tilewright.db.engine import reading, writing
from tilewright.db.job_states import FINAL_STATES, JobState
from tilewright.db.models import (
    AuditRow,
    BlobRow,
    ClaimUseRow,
    EventRow,
    JobRow,
    ModelRow,
    RetiredTrialsRow,
    TaskRow,
    TrialRow,
    TuningRunRow,
)
from tilewright.db.stores.claim_rows import claims, is_confirmed, is_race, is_schedule
from tilewright.db.stores.records import KEY
from tilewright.db.stores.statements import chunks, table_of, upsert
from tilewright.tuner.protocol.measurement import RecordKey

BATCH = 400
"""Number of rows deleted per transaction. More rows would block other writers for too long."""

MOST_BATCHES = 25
"""Limit of the batches per kind of row in one call. The next call deletes the remaining rows."""

DAY_SECONDS = 86400.0

Key = sa.Column[Any]
Condition = sa.ColumnElement[bool]
Forget = Callable[[sa.Connection, Key, Sequence[Any]], None]

_trials = table_of(TrialRow)
_retired = table_of(RetiredTrialsRow)
_jobs = table_of(JobRow)
_events = table_of(EventRow)
_tasks = table_of(TaskRow)
_runs = table_of(TuningRunRow)
_uses = table_of(ClaimUseRow)
_models = table_of(ModelRow)
_blobs = table_of(BlobRow)
_audit = table_of(AuditRow)

_ended = _jobs.c.state.in_(sorted(state.value for state in FINAL_STATES))
_open_jobs = sa.select(_jobs.c.id).where(sa.not_(_ended))


@dataclass(frozen=True, slots=True)
class Retention:
    """The age in days at which each kind of row is deleted; 0 keeps the rows forever."""

    trials: float = 0.0
    jobs: float = 0.0
    artifacts: float = 0.0
    models: float = 0.0
    audit: float = 0.0


class RetentionStore:
    def __init__(self, engine: sa.Engine, clock: Clock | None = None) -> None:
        self._engine = engine
        self._now = instant(clock)

    def apply(self, policy: Retention) -> Mapping[str, int]:
        """Delete rows that are older than the policy allows.

        Return the number of deleted rows by kind, such as "trials". Several processes may call it
        concurrently.

        Raises:
            StorageError: if the database fails.
        """
        rules = (
            ("artifacts", policy.artifacts, _jobs.c.id, _old_artifact, _clear_artifacts),
            ("jobs", policy.jobs, _jobs.c.id, _old_job, _delete_jobs),
            ("trials", policy.trials, _trials.c.serial, _old_trial, _delete_trials),
            ("models", policy.models, _models.c.digest, _old_model, _delete_models),
            ("audit", policy.audit, _audit.c.serial, _old_entry, _delete),
        )
        return {
            what: self._forget(key, old(self._now() - days * DAY_SECONDS), forget) if days else 0
            for what, days, key, old, forget in rules
        }

    def retired(self, keys: Sequence[RecordKey], until: float) -> Sequence[RecordKey]:
        """Return the keys for which `apply` has deleted trials that were stored up to `until`.

        `until` is a Unix time in seconds.
        """
        found = set()
        with reading(self._engine) as connection:
            for some in chunks(sorted({key.workload_key for key in keys})):
                query = sa.select(_retired).where(
                    _retired.c.workload_key.in_(some), _retired.c.oldest_at <= until
                )
                for row in connection.execute(query):
                    found.add(
                        RecordKey(row.workload_key, row.target_key, row.threads, row.numerics)
                    )
        return [key for key in keys if key in found]

    def _forget(self, key: Key, old: Condition, forget: Forget) -> int:
        """Delete rows in batches. Return their number.

        Args:
            key: the primary key of the table.
            old: the SQL condition that selects the rows to delete.
            forget: deletes the rows with the given keys, within a transaction.
        """
        count = 0
        for _ in range(MOST_BATCHES):
            some = sa.select(key).where(old).order_by(key).limit(BATCH)
            with reading(self._engine) as connection:  # usually no row matches: no write lock
                if connection.execute(some).first() is None:
                    break
            with writing(self._engine) as connection:
                locked = connection.execute(some.with_for_update(skip_locked=True)).scalars().all()
                # checked again under the lock: a new row may refer to one by now
                again = sa.select(key).where(key.in_(locked), old)
                gone = connection.execute(again).scalars().all()
                forget(connection, key, gone)
            if not gone:
                break  # another replica does it
            count += len(gone)
        return count


def _old_artifact(limit: sa.ColumnElement[float]) -> Condition:
    """Return the SQL condition that selects jobs whose artifact (compiled model) is to be deleted.

    The jobs ended before `limit`. The newest artifact for each model, target and other settings is
    kept.
    """
    return sa.and_(
        _jobs.c.artifact_digest.is_not(None),
        _ended,
        _jobs.c.finished_at < limit,
        _jobs.c.id.not_in(_newest_artifacts()),
    )


def _old_job(limit: sa.ColumnElement[float]) -> Condition:
    """Return the SQL condition that selects jobs to delete: they ended before `limit`.

    Two kinds of jobs are kept. The first kind has the newest compiled model for its model, target
    and compilation settings. The second kind has a compiled model with a schedule that lookups
    return as the best for its workload.
    """
    serving = sa.select(_uses.c.job_id).join(claims, claims.c.id == _uses.c.claim_id)
    serving = serving.where(is_confirmed, is_schedule)
    return sa.and_(
        _ended,
        _jobs.c.finished_at < limit,
        _jobs.c.id.not_in(_newest_artifacts()),
        _jobs.c.id.not_in(serving),
    )


def _old_trial(limit: sa.ColumnElement[float]) -> Condition:
    """Return the SQL condition that selects trials to delete: they were stored before `limit`.

    Trials of open jobs are kept. Trials of workloads that open jobs tune are kept too, and so are
    trials on which a claim (a statement about speed) is based.
    """
    tuned = sa.select(_tasks.c.workload_key).where(_tasks.c.job_id.in_(_open_jobs))
    return sa.and_(
        _trials.c.stored_at < limit,
        _trials.c.id.not_in(sa.select(claims.c.trial_id)),
        _trials.c.job_id.not_in(_open_jobs),
        _trials.c.workload_key.not_in(tuned),
    )


def _old_model(limit: sa.ColumnElement[float]) -> Condition:
    """Return the SQL condition that selects models to delete.

    They are used by no job, and were last uploaded before `limit`.
    """
    young = sa.select(_blobs.c.digest).where(_blobs.c.touched_at >= limit)
    return sa.and_(
        _models.c.created_at < limit,
        _models.c.digest.not_in(sa.select(_jobs.c.model_digest)),
        _models.c.digest.not_in(young),
    )


def _old_entry(limit: sa.ColumnElement[float]) -> Condition:
    return _audit.c.at < limit


def _newest_artifacts() -> sa.Select[tuple[str]]:
    """Return a query for the ids of jobs with the newest compiled model for a model and settings.

    The settings are target, number of threads, numerics, precision and sizes.
    """
    same = (
        *(_jobs.c.model_digest, _jobs.c.target, _jobs.c.target_key),
        *(_jobs.c.threads, _jobs.c.numerics, _jobs.c.options["dims"].as_string()),
        _jobs.c.options["precision"].as_string(),
    )
    newest_first = (_jobs.c.finished_at.desc(), _jobs.c.id.desc())
    place = sa.func.row_number().over(partition_by=same, order_by=newest_first)
    made = sa.select(_jobs.c.id, place.label("place")).where(
        _jobs.c.state == JobState.SUCCEEDED.value, _jobs.c.artifact_digest.is_not(None)
    )
    ranked = made.subquery()
    return sa.select(ranked.c.id).where(ranked.c.place == 1)


def _delete(connection: sa.Connection, key: Key, gone: Sequence[Any]) -> None:
    connection.execute(sa.delete(key.table).where(key.in_(gone)))


def _delete_models(connection: sa.Connection, key: Key, gone: Sequence[Any]) -> None:
    _delete(connection, key, gone)
    invalidate_lookups(connection, gone)


def _delete_trials(connection: sa.Connection, key: Key, gone: Sequence[Any]) -> None:
    """Delete trials, and add their record keys to the table `retired_trials`.

    With that table, `RetentionStore.retired` can report that trials of a key are missing.
    """
    which = [_trials.c[name] for name in KEY]
    oldest = sa.func.min(_trials.c.stored_at).label("oldest_at")
    query = sa.select(*which, oldest).where(key.in_(gone)).group_by(*which)
    rows = [dict(row._mapping) for row in connection.execute(query.order_by(*which))]
    if rows:
        insert = upsert(connection, _retired)
        older = insert.excluded.oldest_at < _retired.c.oldest_at
        insert = insert.on_conflict_do_update(
            index_elements=[_retired.c[name] for name in KEY],
            set_={"oldest_at": insert.excluded.oldest_at},
            where=older,
        )
        connection.execute(insert, rows)
    _delete(connection, key, gone)


def _clear_artifacts(connection: sa.Connection, key: Key, gone: Sequence[Any]) -> None:
    connection.execute(sa.update(_jobs).where(key.in_(gone)).values(artifact_digest=None))


def _delete_jobs(connection: sa.Connection, key: Key, gone: Sequence[Any]) -> None:
    """Delete jobs with their events, tasks, runs, and records of the schedules that they use.

    The jobs may have requested races, which time a model with tuned and with default schedules. The
    verdict of a race is deleted too, unless lookups return it or another job uses it. Such a
    verdict is deleted by a later call, once lookups do not return it and no job uses it.

    Args:
        connection: in a writing transaction.
        key: the column of the table of jobs that identifies a job.
        gone: the values of this column for the jobs to delete.
    """
    for table in (_events, _tasks, _uses):
        connection.execute(sa.delete(table).where(table.c.job_id.in_(gone)))
    # the runs of a job are JOB, JOB.2 and so on
    names = set(gone)
    runs = connection.execute(sa.select(_runs.c.id)).scalars().all()
    for some in chunks([run for run in runs if run.partition(".")[0] in names]):
        connection.execute(sa.delete(_runs).where(_runs.c.id.in_(some)))
    _delete(connection, key, gone)
    used = sa.exists().where(_uses.c.claim_id == claims.c.id)
    requested = sa.exists().where(_jobs.c.id == claims.c.job_id)
    left = sa.and_(is_race, sa.not_(is_confirmed), sa.not_(used), sa.not_(requested))
    connection.execute(sa.delete(claims).where(left))
