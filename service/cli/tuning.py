"""`tilewright tune`: tune on this machine, with the embedded database and no service."""

from __future__ import annotations

import secrets
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.common import (
    STOP_GAIN,
    ModelPath,
    Numerics,
    NumericsOption,
    PadOption,
    SecondsOption,
    SeedOption,
    SizesOption,
    StopGainOption,
    StrategyOption,
    TargetMsOption,
    TargetOption,
    ThreadsOption,
    TimingsOption,
    TrialsOption,
    UnconstrainedOption,
    console,
    existing_file,
    load_settings,
    milliseconds,
    parse_share,
    parse_sizes,
)

if TYPE_CHECKING:
    from compiler.runtime.artifact import Artifact
    from service.jobs.tracker import Tracker
    from tuner.events import Event, Finished
    from tuner.tasks import Task


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
    stop_gain: StopGainOption = STOP_GAIN,
    target_ms: TargetMsOption = None,
    strategy: StrategyOption = None,
    unconstrained: UnconstrainedOption = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for the artifact")
    ] = None,
    timings: TimingsOption = False,
) -> None:
    """Tune a model on this machine. Ctrl-C stops; what was measured is kept."""
    from concurrent.futures import ThreadPoolExecutor
    from dataclasses import replace

    from rich.live import Live

    from compiler.detection import this_device
    from compiler.program_builder import KernelCache
    from compiler.runtime.artifact_writer import check_destination
    from compiler.timings import Timings
    from service.api.schemas import ProgressView
    from service.api.views import failures, task_view
    from service.cli.plan_view import decision_line
    from service.cli.view import (
        ending_line,
        failures_text,
        origins_line,
        progress_line,
        rate_line,
        settled_line,
        task_table,
        timings_table,
    )
    from service.jobs.bounds import machine_bounds
    from service.jobs.cost_models import describe, train_due
    from service.jobs.graph_choice import SHARE, choose_plan, confirm_plan, model_digest
    from service.jobs.no_regret import settle
    from service.jobs.planning import ModelRequest, open_ports, plan_sizes, tasks_of
    from service.jobs.tracker import Tracker
    from service.jobs.tuning import (
        Budget,
        all_known,
        build_artifact,
        default_builders,
        save_texts,
        tune_tasks,
    )
    from service.jobs.verification import Verifier
    from service.storage import open_storage
    from tuner.cancel import CancelToken
    from tuner.measure.builder import ProcessBuilder
    from tuner.measure.local_runner import LocalRunner
    from tuner.measure.oracle import ReferenceCache

    request = ModelRequest(existing_file(model), target, threads, numerics.value)
    gain = parse_share("--stop-gain", stop_gain)
    limits = Budget(trials, seconds, seed, gain, target_ms, strategy, unconstrained)
    limits.options()  # refuses what is impossible
    if output is not None:
        check_destination(output)  # now, and not after an hour of tuning
    recorder, loop, beside = Timings(), Timings(), Timings()
    dims = parse_sizes(dim)
    with ThreadPoolExecutor(1) as pool:
        digest = pool.submit(model_digest, request.model)
        plans = plan_sizes(request, dims, timings=recorder)
    plans = tuple(
        replace(each, request=replace(each.request, digest=digest.result())) for each in plans
    )
    open_ports(plans, pad=pad)  # says now what padding would refuse after an hour
    settings = load_settings()
    storage = open_storage(settings)
    # its own: two runs at once, each with its trials
    job_id = f"tune-{secrets.token_hex(8)}"
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

    builder = ProcessBuilder(settings.builders or default_builders(), timings=beside)
    device = this_device()
    runner = LocalRunner("local", device.brief().to_json())
    if live is not None:
        live.start()
    try:
        budget, references, kernels = limits, ReferenceCache(), KernelCache()
        chosen = []
        with recorder.stage("compare plans"):
            for planned in plans:
                found = choose_plan(
                    planned,
                    storage,
                    builder,
                    runner,
                    budget,
                    job_id=job_id,
                    token=token,
                    references=references,
                    kernels=kernels,
                    share=SHARE / len(plans),
                )
                chosen.append(found)
                budget = found.budget
        plans = tuple(found.planned for found in chosen)
        for planned in plans:
            save_texts(planned, storage)
        with recorder.stage("schedule spaces"):
            tasks = tasks_of(*plans)
        if not all_known(tasks, storage):
            builder.start()
        tracker = Tracker(tasks, budget.trials)

        def tuned(
            tasks: list[Task],
            budget: Budget,
            on_event: Callable[[Event], None] = lambda _: None,
        ) -> Finished:
            return tune_tasks(
                tasks,
                storage,
                builder,
                runner,
                budget,
                job_id=job_id,
                on_event=on_event,
                token=token,
                references=references,
                device=device,
                bounds=lambda: machine_bounds(tasks),
                timings=loop,
                beside=beside,
            )

        with recorder.stage("tune"):
            finished = tuned(tasks, budget, on_event)
        if not finished.cancelled:
            with recorder.stage("compare plans"):
                plans = tuple(confirm_plan(found, storage, tuned, kernels) for found in chosen)
        settled = None
        if output is not None or not finished.cancelled:
            # without an artifact, too: what is found holds for `compile`, `run` and `bench`
            with recorder.stage("race"):
                settled = settle(plans, storage, kernels=kernels)
            plans = settled.planned
    finally:
        if live is not None:
            live.stop()
        speed = runner.speed
        runner.close()
        builder.close()
    for planned in plans:
        out.print(decision_line(planned.decision), soft_wrap=True, markup=False)
    views = [task_view(row) for row in tracker.rows.values()]
    out.print(task_table(views))
    if suggested := origins_line(views):
        out.print(suggested, soft_wrap=True)
    progress = tracker.progress
    out.print(
        f"kernels {milliseconds(progress.default_seconds)} untuned, "
        f"{milliseconds(progress.best_seconds)} tuned; {finished.trials_done} trials, "
        f"{progress.trials_failed} failed, {finished.seconds_elapsed:.1f} s"
        + (f"; {finished.reason}" if finished.reason else ""),
        soft_wrap=True,
    )
    out.print(ending_line(finished), soft_wrap=True)
    if progress.trials_failed:
        kinds = failures(storage.records.count_trials(job_id))
        out.print(f"failed trials: {failures_text(kinds)}", soft_wrap=True)
    if speed is not None and speed["throttled"]:
        out.print(
            "this machine is slow for long: the reference kernel takes "
            f"{speed['arithmetic_ratio']:.2f} and {speed['memory_ratio']:.2f} times its best"
        )
    if output is not None and settled is not None:
        with Verifier(plans) as verifier:

            def check(made: Artifact) -> None:
                with recorder.stage("verify"):
                    verifier.verify(made)

            build_artifact(
                plans,
                settled.schedules,
                output,
                pad=pad,
                timings=recorder,
                kernels=kernels,
                check=check,
            )
        out.print(f"artifact: {output}, {verifier.found.text()}", soft_wrap=True)
    if settled is not None:
        out.print(settled_line(settled), soft_wrap=True, markup=False)
    if not finished.cancelled:
        with recorder.stage("train cost models"):
            for trained in train_due(storage, settings.cost_model_trials):
                out.print(describe(trained), soft_wrap=True, markup=False)
    storage.close()
    if timings:
        out.print(timings_table(recorder.stages))
        out.print(timings_table(loop.stages, "The tuner's loop, by the wall's clock"))
        out.print(timings_table(beside.stages, "Beside it: builders, all together, and the device"))
        out.print(rate_line(finished))
    if finished.cancelled:
        raise typer.Exit(130)
