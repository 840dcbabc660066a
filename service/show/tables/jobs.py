"""Columns of tables of jobs."""

from __future__ import annotations

from tilewright.service.api.schemas.jobs import JobView
from tilewright.service.show.table import Cell, CellKind, Column
from tilewright.service.show.units import duration, gain, milliseconds, moment

SHORT = 30
"""Limit of the characters of a name in a terminal line."""

JobColumn = Column[JobView]


def _trials(job: JobView) -> Cell:
    done, budget = job.progress.trials_done, job.progress.trials_budget
    return Cell(f"{done}/{budget}", done=(min(done, budget), budget) if budget else None)


JOB = JobColumn("job", lambda job: job.id[:12], CellKind.TEXT)
MODEL = JobColumn(
    "model",
    lambda job: Cell(job.model_name or job.model[:12], f"jobs/{job.id}"),
    CellKind.NAME,
    most=SHORT,
)
STATE = JobColumn("state", lambda job: job.state, CellKind.STATE)
TARGET = JobColumn("target", lambda job: job.target, CellKind.TEXT, most=SHORT)
OWNER = JobColumn("owner", lambda job: job.owner or "-", CellKind.TEXT, most=20)
THREADS = JobColumn("threads", lambda job: str(job.threads))
TASKS = JobColumn("tasks", lambda job: f"{job.progress.tasks_done}/{job.progress.tasks_total}")
TRIALS = JobColumn("trials", _trials)
UNTUNED = JobColumn("untuned", lambda job: milliseconds(job.progress.default_seconds))
BEST = JobColumn("best", lambda job: milliseconds(job.progress.best_seconds))
GAIN = JobColumn(
    "vs untuned", lambda job: gain(job.progress.default_seconds, job.progress.best_seconds)
)
LEFT = JobColumn("left", lambda job: "-" if job.final else duration(job.progress.seconds_left))
MADE = JobColumn("made", lambda job: moment(job.created_at), CellKind.MOMENT)
WHY = JobColumn("why", lambda job: job.error or job.reason or "", CellKind.TEXT, most=80)


def age(now: float) -> JobColumn:
    """Return the column with the time since each job was created. `now` is in Unix seconds."""
    return Column("age", lambda job: duration(now - job.created_at))


def spent(now: float) -> JobColumn:
    """Return the column with the running time of each job, or the waiting time before it starts.

    `now` is in Unix seconds.
    """

    def seconds(job: JobView) -> float:
        return max(0.0, (job.finished_at or now) - (job.started_at or job.created_at))

    return Column("for", lambda job: duration(seconds(job)))


NOTEBOOK = (JOB, STATE, MODEL, TARGET, TRIALS, UNTUNED, BEST, GAIN)
PAGE = (MODEL, STATE, TARGET, THREADS, TRIALS, UNTUNED, BEST, GAIN, LEFT, OWNER, MADE)
