"""`tilewright tune`: local tuning with the embedded database, without a service."""

from __future__ import annotations

import secrets
from pathlib import Path
from time import monotonic
from typing import Annotated

import typer

from tilewright.service.cli.common import (
    InterruptedTuning,
    JsonOption,
    ModelPath,
    TargetOption,
    TimingsOption,
    UserError,
    load_settings,
)
from tilewright.service.cli.given import SamplesOption, given_inputs
from tilewright.service.cli.options import DEFAULTS, JOB_DEFAULTS
from tilewright.service.cli.terminal import console, say_json
from tilewright.service.options import JobOptions, ModeOptions


def tune(
    model: ModelPath,
    target: TargetOption = "host",
    mode: ModeOptions = DEFAULTS,
    options: JobOptions = JOB_DEFAULTS,
    samples: SamplesOption = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for the artifact")
    ] = None,
    timings: TimingsOption = False,
    as_json: JsonOption = False,
) -> None:
    """Tune a model on this machine. Ctrl-C stops the tuning and keeps the measurements.

    Example: tilewright tune model.onnx --seconds 120 -o artifact
    """
    from tilewright.compiler.runtime.artifact_writer import check_destination
    from tilewright.compiler.targets.host import resolve_target

    # refused before the slow imports
    began = monotonic()
    if output is not None:
        check_destination(output)
    chosen = resolve_target(target)

    from tilewright.compiler.timings import Timings
    from tilewright.service.api.views import task_view
    from tilewright.service.cli.tune_view import tell, watching
    from tilewright.service.cli.view import rate_line, timings_table
    from tilewright.service.jobs.device.local_device import LocalDevice
    from tilewright.service.jobs.evidence.bounded_verification import verification_limits
    from tilewright.service.jobs.evidence.peer import onnxruntime_times
    from tilewright.service.jobs.knowledge.cost_models import describe, train_due
    from tilewright.service.jobs.pipeline.incomplete import untuned
    from tilewright.service.jobs.pipeline.job_spec import JobSpec
    from tilewright.service.jobs.pipeline.run_job import JobContext, run_job
    from tilewright.service.jobs.process.builders import open_builder
    from tilewright.service.storage import open_storage
    from tilewright.tuner.cancel import AnyToken, CancelToken

    given = given_inputs(model, samples, options.values, options.sizes)
    spec = JobSpec(model, mode.mode(chosen), options, given=given)
    settings = load_settings()
    storage = open_storage(settings)
    token = CancelToken()
    out, beside = console(as_json), Timings()
    builder = open_builder(settings, beside)
    # planned in this process, which reuses the kernels: those of a child process would be lost
    bound = verification_limits(settings)
    job_context = JobContext(storage, builder, verification=bound, beside=beside)
    # an id per run keeps the trials of concurrent runs separate
    job_id = f"tune-{secrets.token_hex(8)}"
    try:
        with LocalDevice(given) as device:
            if not device.runs(chosen):
                raise UserError(
                    f"this machine does not run target '{chosen.name}': `tilewright server run`, a "
                    "worker on a device that does, and `tilewright job submit` tune for it"
                )
            with watching(out, storage, job_id, device, token) as watcher:
                outcome = run_job(
                    spec,
                    device,
                    job_context,
                    watcher,
                    job_id=job_id,
                    token=token,
                    output=output,
                    deliver_cancelled=True,
                    stop=AnyToken(()),  # Ctrl-C after the tuning ends the command itself
                )
            nothing = None if outcome.cancelled else untuned(outcome, options, storage, job_id)
    finally:
        builder.close()
    note = "" if nothing is None else nothing.note
    report = {**outcome.report(), "note": note}
    made = output if outcome.verification is not None else None
    if made is not None and not outcome.cancelled and not options.is_late(monotonic() - began):
        report["peers"] = onnxruntime_times(model, made, outcome.latencies, mode.threads, given)
    tell(out, report, made)
    if not outcome.cancelled:
        with job_context.timings.stage("train cost models"):
            for trained in train_due(storage, settings.cost_model_trials):
                out.print(describe(trained), soft_wrap=True, markup=False)
    storage.close()
    if timings:
        out.print(timings_table(job_context.timings.stages))
        out.print(timings_table(job_context.loop.stages, "The tuner's loop, by the wall's clock"))
        title = "Beside it: builders, all together, and the device"
        out.print(timings_table(job_context.beside.stages, title))
        out.print(rate_line(outcome.finished))
    if as_json:
        view = {
            "run": job_id,
            **report,
            "tasks": [task_view(row) for row in outcome.tracker.rows.values()],
        }
        if timings:
            view["timings"] = {
                "stages": job_context.timings.seconds(),
                "loop": job_context.loop.seconds(),
                "beside": job_context.beside.seconds(),
            }
        say_json(view)
    if outcome.cancelled:
        if made is None:
            raise typer.Exit(130)
        raise InterruptedTuning(
            f"interrupted: the artifact '{made}' holds the schedules found so far"
        )
    if nothing is not None and nothing.is_failure:
        raise UserError(nothing.note)
