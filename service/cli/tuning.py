"""`tilewright tune`: tune on this machine, with the embedded database and no service."""

from __future__ import annotations

import secrets
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.common import (
    ModelPath,
    Numerics,
    NumericsOption,
    PadOption,
    SecondsOption,
    SeedOption,
    SizesOption,
    TargetOption,
    ThreadsOption,
    TimingsOption,
    TrialsOption,
    console,
    existing_file,
    load_settings,
    milliseconds,
    parse_sizes,
)

if TYPE_CHECKING:
    from service.tracker import Tracker
    from tuner.events import Event


def add_to(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(tune)


def tune(
    model: ModelPath,
    trials: TrialsOption = 1000,
    seconds: SecondsOption = None,
    target: TargetOption = "host",
    threads: ThreadsOption = 1,
    numerics: NumericsOption = Numerics.FAST,
    dim: SizesOption = None,
    pad: PadOption = False,
    seed: SeedOption = 0,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for the artifact")
    ] = None,
    timings: TimingsOption = False,
) -> None:
    """Tune a model on this machine. Ctrl-C stops; what was measured is kept."""
    from rich.live import Live

    from compiler.runtime.artifact import check_destination
    from compiler.timings import Timings
    from service.cli.view import progress_line, task_table, timings_table, verdict_text
    from service.cost_models import describe, train_due
    from service.no_regret import settle
    from service.planning import ModelRequest, open_ports, plan_sizes, tasks_of
    from service.schemas import ProgressView
    from service.storage import Storage
    from service.tracker import Tracker
    from service.tuning import (
        Budget,
        build_artifact,
        default_builders,
        save_texts,
        tune_tasks,
        verify_artifact,
    )
    from service.views import task_view
    from service.worker_facts import device_facts
    from tuner.cancel import CancelToken
    from tuner.measure.builder import ProcessBuilder
    from tuner.measure.local_runner import LocalRunner
    from tuner.measure.oracle import ReferenceCache

    request = ModelRequest(existing_file(model), target, threads, numerics.value)
    if output is not None:
        check_destination(output)  # now, and not after an hour of tuning
    recorder, building = Timings(), Timings()
    plans = plan_sizes(request, parse_sizes(dim), timings=recorder)
    open_ports(plans, pad=pad)  # says now what padding would refuse after an hour
    settings = load_settings()
    storage = Storage.open(settings)
    for planned in plans:
        save_texts(planned, storage)
    with recorder.stage("schedule spaces"):
        tasks = tasks_of(*plans)
    tracker = Tracker(tasks, trials)
    token = CancelToken()
    signal.signal(signal.SIGINT, lambda *_: token.cancel("interrupted"))
    out = console()
    live = Live(console=out, refresh_per_second=4, transient=True) if out.is_terminal else None

    def on_event(event: Event) -> None:
        tracker.take(event)
        line = _line(tracker)
        if live is not None:
            live.update(line)
        else:
            out.print(line, soft_wrap=True)

    def _line(tracker: Tracker) -> str:
        view = ProgressView.model_validate(tracker.progress, from_attributes=True)
        return progress_line(view, {"candidates_per_second": tracker.candidates_per_second})

    builder = ProcessBuilder(settings.builders or default_builders(), timings=building)
    runner = LocalRunner("local", device_facts())
    if live is not None:
        live.start()
    try:
        with recorder.stage("tune"):
            finished = tune_tasks(
                tasks,
                storage,
                builder,
                runner,
                Budget(trials, seconds, seed),
                # its own: two runs at once, each with its trials
                job_id=f"tune-{secrets.token_hex(8)}",
                on_event=on_event,
                token=token,
                references=ReferenceCache(),
            )
    finally:
        if live is not None:
            live.stop()
        runner.close()
        builder.close()
    out.print(task_table([task_view(row) for row in tracker.rows.values()]))
    progress = tracker.progress
    out.print(
        f"kernels {milliseconds(progress.default_seconds)} untuned, "
        f"{milliseconds(progress.best_seconds)} tuned; {finished.trials_done} trials, "
        f"{progress.trials_failed} failed, {finished.seconds_elapsed:.1f} s"
        + (f"; {finished.reason}" if finished.cancelled else ""),
        soft_wrap=True,
    )
    if output is not None:
        with recorder.stage("race"):
            schedules, verdict = settle(plans, storage)
        build_artifact(plans, storage, output, pad=pad, schedules=schedules, timings=recorder)
        with recorder.stage("verify"):
            errors = [verify_artifact(planned, output) for planned in plans]
        known = [error for error in errors if error is not None]
        checked = f"largest error {max(known):.1e}" if known else "not run here"
        out.print(f"artifact: {output}, {checked}", soft_wrap=True)
        out.print(f"end to end: {verdict_text(verdict.to_json())}", soft_wrap=True)
    if not finished.cancelled:
        with recorder.stage("train cost models"):
            for trained in train_due(storage, settings.cost_model_trials):
                out.print(describe(trained), soft_wrap=True, markup=False)
    storage.close()
    if timings:
        out.print(timings_table(recorder.stages))
        out.print(timings_table(building.stages, "Builders, all candidates"))
    if finished.cancelled:
        raise typer.Exit(130)
