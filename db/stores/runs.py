"""Recordings of tuning runs: inputs, order of the batches, results and forecasts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from tilewright.db.clock import Clock, system_clock
from tilewright.db.engine import reading, writing
from tilewright.db.errors import NotFoundError
from tilewright.db.models import TuningRunRow
from tilewright.db.stores.ids import row_of_id
from tilewright.db.stores.statements import table_of, upsert
from tilewright.tuner.events import Finished, Started, TaskInputs
from tilewright.tuner.options import TuneOptions
from tilewright.tuner.recording import (
    inputs_from_json,
    inputs_to_json,
    options_from_json,
    options_to_json,
)

_runs = table_of(TuningRunRow)


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A recorded tuning run. The fields about its result are None until the run ends.

    Attributes:
        id: the job's id, followed by a number from the job's second run on, such as JOB.2.
        starts: how often the run was started; more than 1 if it was killed and continued.
        options, inputs: the options of the run, and the inputs of each task.
        adopted: measurement requests that an earlier process of the job sent and whose results this
            run used, as JSON.
        journal: the order in which batches of candidates were sent and their results taken.
        ended: why the run ended (`tuner.events.Ended`).
        trials, seconds: number of trials, and duration of the run.
        model_seconds: time of one run of the model with the best schedules.
        forecast_gain: expected gain of another minute of tuning, as a fraction of `model_seconds`.
        forecast_error: the accuracy of earlier forecasts (`tuner.forecast.ForecastError`), as JSON.
        started_at, finished_at: seconds since the epoch.
    """

    id: str  # the job's, with a number from the second run of a job on
    starts: int  # more than 1: the run was killed and continued
    options: TuneOptions
    inputs: tuple[TaskInputs, ...]
    adopted: Sequence[Mapping[str, Any]]  # requests of earlier processes, as JSON
    journal: tuple[int, ...] | None
    ended: str | None  # tuner.events.Ended
    trials: int | None
    seconds: float | None
    model_seconds: float | None  # weighted sum over all tasks
    forecast_gain: float | None  # expected gain of another minute, as a fraction
    forecast_error: Mapping[str, Any] | None  # tuner.forecast.ForecastError
    started_at: float
    finished_at: float | None


class RunStore:
    def __init__(self, engine: sa.Engine, clock: Clock = system_clock) -> None:
        self._engine = engine
        self._clock = clock

    def start(self, started: Started) -> str:
        """Store the inputs of a job's tuning run. Return the run's id.

        The first run of job JOB has the id JOB, later runs JOB.2, JOB.3 and so on. If the process
        of the last run was killed, the new run continues it: it gets the same id, and its inputs
        replace the stored ones.
        """
        job_id = started.options.job_id
        values = {
            "options": options_to_json(started.options),
            "inputs": [inputs_to_json(inputs) for inputs in started.inputs],
            "adopted": [request.to_json() for request in started.adopted],
            "started_at": self._clock(),
        }
        mine = sa.or_(_runs.c.id == job_id, _runs.c.id.startswith(f"{job_id}.", autoescape=True))
        with writing(self._engine) as connection:
            query = sa.select(_runs.c.id, _runs.c.finished_at).where(mine)
            before = connection.execute(query).all()
            open_ = [row.id for row in before if row.finished_at is None]
            run_id = open_[0] if open_ else job_id + (f".{len(before) + 1}" if before else "")
            connection.execute(
                upsert(connection, _runs)
                .values(id=run_id, starts=1, **values)
                .on_conflict_do_update(
                    index_elements=[_runs.c.id], set_={"starts": _runs.c.starts + 1, **values}
                )
            )
        return run_id

    def finish(self, run_id: str, finished: Finished) -> None:
        """Store the course and the result of a tuning run at its end.

        Raises:
            NotFoundError: if no run with this id was started.
        """
        error = finished.forecast_error
        times = [s.best_seconds and s.best_seconds * s.count for s in finished.tasks]
        known = [seconds for seconds in times if seconds is not None]
        values = {
            "journal": list(finished.journal),
            "ended": finished.ended.value,
            "trials": finished.trials_done,
            "seconds": finished.seconds_elapsed,
            "model_seconds": sum(known) if len(known) == len(times) else None,
            "forecast_gain": finished.forecast and finished.forecast.gain_per_minute,
            "forecast_error": None
            if error is None
            else {
                "checks": error.checks,
                "expected": error.expected,
                "gained": error.gained,
                "absolute_error": error.absolute_error,
            },
            "finished_at": self._clock(),
        }
        with writing(self._engine) as connection:
            update = sa.update(_runs).where(_runs.c.id == run_id).values(values)
            if connection.execute(update).rowcount == 0:
                raise NotFoundError("run", run_id)

    def get(self, run_id: str) -> StoredRun:
        """Return the run with this id, or the only one whose id starts with `run_id`.

        Raises:
            NotFoundError: if no run has this id, or several ids start with it.
        """
        with reading(self._engine) as connection:
            return _run(row_of_id(connection, sa.select(_runs), _runs.c.id, run_id, "run"))

    def list(self, limit: int = 100) -> Sequence[StoredRun]:
        """Return at most `limit` runs, most recently started first."""
        query = sa.select(_runs).order_by(_runs.c.started_at.desc(), _runs.c.id).limit(limit)
        with reading(self._engine) as connection:
            return [_run(row) for row in connection.execute(query)]


def _run(row: sa.Row[Any]) -> StoredRun:
    values = dict(row._mapping)
    journal = values.pop("journal")
    return StoredRun(
        options=options_from_json(values.pop("options")),
        inputs=tuple(inputs_from_json(data) for data in values.pop("inputs")),
        journal=None if journal is None else tuple(journal),
        **values,
    )
