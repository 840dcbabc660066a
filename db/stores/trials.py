"""Queries for the trials of a job or of a workload, including failed trials."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import sqlalchemy as sa

from tilewright.db.engine import reading
from tilewright.db.models import TrialRow
from tilewright.db.stores.pages import Page, PageOrder, Position
from tilewright.db.stores.records import trial_of
from tilewright.db.stores.statements import table_of
from tilewright.tuner.protocol.measurement import RecordKey, Status, Trial

_trials = table_of(TrialRow)
_newest_first = PageOrder((_trials.c.serial,))


@dataclass(frozen=True, slots=True)
class StoredTrial:
    """A measured candidate, and the time when it was stored, in seconds since the epoch."""

    trial: Trial
    stored_at: float


@dataclass(frozen=True, slots=True)
class TrialOutline:
    """The schedule and the outcome of a trial, without the rest of its measurement.

    Attributes:
        schedule: the schedule as JSON.
        origin: the source of the candidate, such as the default or a search strategy.
        phase, status, error: the phase of tuning, the outcome, and the message of a failure.
        run_seconds: the fastest sample; None if the trial failed.
        withdrawn: whether the trial was withdrawn.
    """

    schedule: dict[str, Any]
    origin: str
    phase: str
    status: str
    error: str
    run_seconds: float | None
    withdrawn: bool


class TrialStore:
    """Queries for stored trials (measured candidates). `SqlRecordStore.add_trials` saves them."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def list(
        self,
        *,
        job_id: str | None = None,
        workload_key: str | None = None,
        target_key: str | None = None,
        status: Status | None = None,
        origin: str | None = None,
        worker: str | None = None,
        limit: int = 100,
        after: Position | None = None,
    ) -> Page[StoredTrial]:
        """Return a page of the trials that match all given filters, newest first.

        A job or a workload is required, because the database may have millions of trials.

        Raises:
            ValueError: if neither a job nor a workload is given.
            PositionError: if no trial can have the position `after`.
        """
        if job_id is None and workload_key is None:
            raise ValueError("trials are those of a job or of a workload")
        wanted = {
            _trials.c.job_id: job_id,
            _trials.c.workload_key: workload_key,
            _trials.c.target_key: target_key,
            _trials.c.status: None if status is None else status.value,
            _trials.c.origin: origin,
            _trials.c.worker: worker,
        }
        given = [(column, value) for column, value in wanted.items() if value is not None]
        (leading, whose), *others = given
        query = (
            sa.select(_trials)
            .where(self._is(leading, whose), *(column == value for column, value in others))
            .order_by(leading.desc())
        )
        with reading(self._engine) as connection:
            return _newest_first.page(
                connection,
                query,
                lambda row: StoredTrial(trial_of(row), row.stored_at),
                limit,
                after,
            )

    def outlines(self, job_id: str, workload_key: str, limit: int) -> Page[TrialOutline]:
        """Return the schedules and outcomes of a task's trials, newest first.

        The task is given by its job and its workload. The call takes a seventh of the time of
        `list`, which also reads the measurements.
        """
        columns = [_trials.c[each.name] for each in fields(TrialOutline)]
        query = (
            sa.select(_trials.c.serial, *columns)
            .where(self._is(_trials.c.job_id, job_id), _trials.c.workload_key == workload_key)
            .order_by(_trials.c.job_id.desc())
        )
        with reading(self._engine) as connection:
            return _newest_first.page(
                connection, query, lambda row: TrialOutline(*tuple(row)[1:]), limit
            )

    def fastest(self, job_id: str, key: RecordKey) -> Trial | None:
        """Return the fastest successful trial of a job for a record key; None without one.

        Of trials with equal times, the earliest is returned. Withdrawn trials are left out.
        """
        query = (
            sa.select(_trials)
            .where(
                _trials.c.job_id == job_id,
                *(_trials.c[name] == value for name, value in key.to_json().items()),
                _trials.c.status == Status.OK.value,
                _trials.c.run_seconds.is_not(None),
                _trials.c.withdrawn.is_(False),
            )
            .order_by(_trials.c.run_seconds, _trials.c.serial)
            .limit(1)
        )
        with reading(self._engine) as connection:
            row = connection.execute(query).first()
        return None if row is None else trial_of(row)

    def _is(self, column: sa.Column[str], value: str) -> sa.ColumnElement[bool]:
        """Return the SQL condition `column = value`, such that PostgreSQL uses the column's index.

        On PostgreSQL, the condition is `column BETWEEN value AND value`. With `=`, the planner may
        scan the table from its newest row until enough rows are found, because it assumes that a
        job's rows are evenly distributed. But the rows of an old job are all at the other end.
        """
        if self._engine.dialect.name == "postgresql":
            return column.between(value, value)
        return column == value
