"""`tilewright job replay`: repetition of a recorded tuning run, without its device."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.service.cli.common import JsonOption, UserError, load_settings
from tilewright.service.cli.terminal import console, say_json
from tilewright.service.show.units import milliseconds, percent

if TYPE_CHECKING:
    from rich.console import Console

    from tilewright.db.storage import Storage
    from tilewright.db.stores.runs import StoredRun
    from tilewright.service.jobs.report.replaying import Repeated


def replay(
    run_id: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="A job's id; without it, list the runs")
    ] = None,
    curve: Annotated[
        Path | None, typer.Option("--curve", help="CSV file for trials, seconds and model time")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Repeat a recorded tuning run: its decisions, its curve and its records.

    Example: tilewright job replay tune-52f1c0de --curve curve.csv
    """
    from tilewright.service.storage import open_storage

    out = console(as_json)
    storage = open_storage(load_settings())
    try:
        if run_id is None:
            if as_json:
                say_json([_facts(run) for run in storage.runs.list()])
            else:
                _list(storage, out)
        else:
            run = storage.runs.get(run_id)
            repeated = _repeat(storage, run, curve, out)
            if as_json:
                say_json(_retold(run, repeated))
    finally:
        storage.close()


def _list(storage: Storage, out: Console) -> None:
    from tilewright.service.show.console import rich_table
    from tilewright.service.show.table import CellKind, Column, table

    def forecast(run: StoredRun) -> str:
        error = run.forecast_error
        if error is None:
            return "-"
        return f"{percent(error['expected'])} for {percent(error['gained'])}"

    described: tuple[Column[StoredRun], ...] = (
        Column("run", lambda run: run.id, CellKind.NAME),
        Column("tasks", lambda run: str(len(run.inputs))),
        Column("trials", lambda run: "-" if run.trials is None else str(run.trials)),
        Column("best", lambda run: milliseconds(run.model_seconds)),
        Column("s", lambda run: "-" if run.seconds is None else f"{run.seconds:.1f}"),
        Column("ended", lambda run: run.ended or "did not end", CellKind.TEXT),
        Column("next minute", lambda run: percent(run.forecast_gain, 2)),
        Column("forecast", forecast),
    )
    out.print(rich_table(table(described, storage.runs.list())))


def _facts(run: StoredRun) -> dict[str, Any]:
    """Return the counts, times and state of a recorded tuning run as data for `json.dumps`."""
    return {
        "id": run.id,
        "tasks": len(run.inputs),
        "trials": run.trials,
        "model_seconds": run.model_seconds,
        "seconds": run.seconds,
        "ended": run.ended,
        "forecast_gain": run.forecast_gain,
        "forecast_error": run.forecast_error,
        "started_at": run.started_at,
        "finished_at": run.finished_at,
    }


def _repeat(storage: Storage, run: StoredRun, curve: Path | None, out: Console) -> Repeated:
    """Replay a recorded tuning run, print its progress, and write its curve to a CSV file if given.

    Raises:
        UserError: if the file `curve` cannot be written.
    """
    from tilewright.service.jobs.report.replaying import repeat
    from tilewright.tuner.events import Progress, Recorded

    points = [("trials", "model_seconds", "forecast_gain")]
    result = repeat(run, storage)
    for event in result.events:
        match event:
            case Progress():
                out.print(
                    f"{event.trials_done:5d}  {event.task.name}: "
                    f"best {milliseconds(event.task.best_seconds)}, "
                    f"model {milliseconds(event.model_seconds)}",
                    soft_wrap=True,
                    markup=False,
                )
                gain = "" if event.forecast is None else str(event.forecast.gain)
                seconds = "" if event.model_seconds is None else str(event.model_seconds)
                points.append((str(event.trials_done), seconds, gain))
            case Recorded():
                out.print(
                    f"record {event.task.name}: {milliseconds(event.record.run_seconds)} "
                    f"{event.record.schedule}",
                    soft_wrap=True,
                    markup=False,
                )
            case _:
                continue
    if curve is not None:
        try:
            with open(curve, "w", newline="", encoding="utf-8") as file:
                csv.writer(file).writerows(points)
        except OSError as error:
            raise UserError(f"--curve '{curve}': {error.strerror}") from error
    sources = ", ".join(f"{n} {name or 'unknown'}" for name, n in sorted(result.origins.items()))
    out.print(f"suggested by: {sources}", soft_wrap=True, markup=False)
    out.print(f"{len(result.finished.tasks)} tasks, {result.finished.trials_done} trials: as then")
    return result


def _retold(run: StoredRun, result: Repeated) -> dict[str, Any]:
    """Return a recorded tuning run and its replay as plain data for `json.dumps`.

    The replay has the number of candidates by origin, such as the search or the default. It also
    has the curve: the model's time after each number of trials.
    """
    from tilewright.tuner.events import Progress

    return {
        **_facts(run),
        "origins": {name or "unknown": n for name, n in result.origins.items()},
        "curve": [
            {"trials": event.trials_done, "model_seconds": event.model_seconds}
            for event in result.events
            if isinstance(event, Progress)
        ],
    }
