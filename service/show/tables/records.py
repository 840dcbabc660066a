"""Columns of tables of tuning records, trials and versions of cost models."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tilewright.service.api.schemas.cost_models import CostModelView
from tilewright.service.api.schemas.records import StoredRecordView
from tilewright.service.show.table import Cell, CellKind, Column
from tilewright.service.show.text import schedule_text
from tilewright.service.show.units import count, finite, microseconds, moment

RecordColumn = Column[StoredRecordView]

ID = RecordColumn("id", lambda stored: stored.id[:12], CellKind.TEXT)
STATE = RecordColumn("state", lambda stored: stored.state, CellKind.STATE)
NAME = RecordColumn(
    "workload",
    lambda s: Cell(s.name or s.record.workload_key[:12], f"records/{s.id}"),
    CellKind.NAME,
    most=40,
)
KEY = RecordColumn("key", lambda s: s.record.workload_key[:12], CellKind.TEXT)
THREADS = RecordColumn("threads", lambda stored: str(stored.record.threads))
NUMERICS = RecordColumn("numerics", lambda stored: stored.record.numerics, CellKind.TEXT)
TIME = RecordColumn("us", lambda stored: microseconds(stored.record.run_seconds))
ALGORITHM = RecordColumn(
    "algorithm", lambda stored: str(stored.record.schedule.get("algorithm", "-")), CellKind.TEXT
)
ATTESTATION = RecordColumn("attestation", lambda s: s.attestation, CellKind.TEXT)
STORED = RecordColumn("stored", lambda s: moment(s.stored_at), CellKind.MOMENT)
REASON = RecordColumn("reason", lambda stored: stored.reason, CellKind.TEXT)
SCHEDULE = RecordColumn(
    "schedule", lambda stored: schedule_text(stored.record.schedule), CellKind.CODE
)


def target(names: Mapping[str, str]) -> RecordColumn:
    """Return the column with the target of each record.

    `names` has the target names by target key.
    """

    def text(stored: StoredRecordView) -> str:
        return names.get(stored.record.target_key, stored.record.target_key[:12])

    return Column("target", text, CellKind.TEXT)


def worker(names: Mapping[str, str]) -> RecordColumn:
    """Return the column with the worker that measured each record.

    `names` has the names by worker id.
    """
    return Column("worker", lambda s: names.get(s.worker, s.worker), CellKind.TEXT)


NOTEBOOK = (NAME, target({}), THREADS, TIME, STATE, ATTESTATION, SCHEDULE)


def page(names: Mapping[str, str]) -> tuple[RecordColumn, ...]:
    """Return the columns of records on the dashboard.

    `names` has the target names by target key.
    """
    what = (NAME, STATE, target(names), THREADS, NUMERICS)
    return (*what, TIME, ALGORITHM, ATTESTATION, STORED)


TRIALS = (
    Column[Any]("us", lambda trial: microseconds(trial.run_seconds)),
    Column[Any]("status", lambda t: "withdrawn" if t.withdrawn else t.status, CellKind.STATE),
    Column[Any]("from", lambda trial: trial.origin, CellKind.TEXT),
    Column[Any]("phase", lambda trial: trial.phase, CellKind.TEXT),
    Column[Any]("schedule", lambda trial: schedule_text(trial.schedule), CellKind.CODE),
)
"""Columns of a table of trials, both for views of the REST interface and for outlines of the
database."""

HELD_OUT = "tasks"
"""Key of the number of held-out tasks over which scores are averaged. The number is not a score
itself."""

MEANINGS = {
    "pairwise": "share of pairs of candidates that it puts in order",
    "top1": "the fastest time over that of its first pick",
    "top5": "the fastest time over the fastest of its first five picks",
    "recall30": "share of the fastest 30 that are among its first 30 picks",
}


def cost_models(scores: Iterable[str]) -> tuple[Column[CostModelView], ...]:
    """Return the columns of versions of cost models, with a column for each score in `scores`."""

    def score(name: str, digits: int = 3) -> Callable[[CostModelView], str]:
        return lambda model: _number(model.scores.get(name), digits)

    return (
        Column("version", lambda model: str(model.version)),
        Column("state", lambda model: model.state, CellKind.STATE),
        Column("objective", lambda model: model.objective, CellKind.TEXT),
        *(Column(name, score(name), hint=MEANINGS.get(name, "")) for name in scores),
        Column("held out", score(HELD_OUT, 0), hint="Tasks of the scores"),
        Column("tasks", lambda model: count(model.tasks), hint="Tasks that it learned from"),
        Column("trials", lambda model: count(model.trials)),
        Column("made", lambda model: moment(model.created_at), CellKind.MOMENT),
    )


def _number(value: object, digits: int) -> str:
    known = finite(value)
    return "-" if known is None else f"{known:.{digits}f}"
