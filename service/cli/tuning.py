"""`tilewright tune`: tune on this machine, with the embedded database and no service."""

from __future__ import annotations

import secrets
from pathlib import Path
from time import monotonic
from typing import Annotated

import typer

from tilewright.service.cli.common import (
    STOP_GAIN,
    JsonOption,
    ModelPath,
    PadOption,
    SecondsOption,
    SeedOption,
    SizesOption,
    StopGainOption,
    StrategyOption,
    TargetMsOption,
    TargetOption,
    TimingsOption,
    TrialsOption,
    UnconstrainedOption,
    UserError,
    VerboseOption,
    WeightLimitOption,
    existing_file,
    load_settings,
    parse_share,
    parse_sizes,
)
from tilewright.service.cli.given import SamplesOption, ValuesOption, given_inputs
from tilewright.service.cli.mode_options import DEFAULTS, ModeOptions
from tilewright.service.cli.terminal import console, say_json


def tune(
    model: ModelPath,
    trials: TrialsOption = 1000,
    seconds: SecondsOption = None,
    target: TargetOption = "host",
    mode: ModeOptions = DEFAULTS,
    dim: SizesOption = None,
    samples: SamplesOption = None,
    value: ValuesOption = None,
    pad: PadOption = False,
    weight_limit: WeightLimitOption = None,
    seed: SeedOption = 0,
    stop_gain: StopGainOption = STOP_GAIN,
    target_ms: TargetMsOption = None,
    strategy: StrategyOption = None,
    unconstrained: UnconstrainedOption = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for the artifact")
    ] = None,
    verbose: VerboseOption = False,
    timings: TimingsOption = False,
    as_json: JsonOption = False,
) -> None:
    """Tune a model on this machine. Ctrl-C stops; what was measured is kept.

    Example: tilewright tune model.onnx --seconds 120 -o artifact
    """

    from tilewright.compiler.runtime.artifact_writer import check_destination
    from tilewright.compiler.targets.host import resolve_target
    from tilewright.compiler.timings import Timings
    from tilewright.service.api.views import task_view
    from tilewright.service.cli.tune_view import tell, watching
    from tilewright.service.cli.view import rate_line, timings_table
    from tilewright.service.jobs.device.local_device import LocalDevice
    from tilewright.service.jobs.evidence.bounded_verification import verification_limits
    from tilewright.service.jobs.evidence.peer import onnxruntime_times
    from tilewright.service.jobs.knowledge.cost_models import describe, train_due
    from tilewright.service.jobs.pipeline.incomplete import untuned
    from tilewright.service.jobs.pipeline.job_spec import JobBudget, JobSpec
    from tilewright.service.jobs.pipeline.run_job import JobContext, run_job
    from tilewright.service.jobs.process.builders import open_builder
    from tilewright.service.storage import open_storage
    from tilewright.tuner.cancel import AnyToken, CancelToken

    began = monotonic()
    gain = parse_share("--stop-gain", stop_gain)
    budget = JobBudget(trials, seconds, seed, gain, target_ms, strategy, unconstrained)
    chosen = resolve_target(target)
    dims = parse_sizes(dim)
    given = given_inputs(existing_file(model), samples, value, dims)
    spec = JobSpec(
        model,
        mode.mode(chosen),
        dims,
        pad,
        weight_limit,
        budget,
        given=given,
    )
    if output is not None:
        check_destination(output)  # now, and not after an hour of tuning
    settings = load_settings()
    storage = open_storage(settings)
    token = CancelToken()
    out, beside = console(as_json), Timings()
    builder = open_builder(settings, beside)
    # the kernels that planning makes are kept: a child that plans would leave them to this process
    bound = verification_limits(settings)
    job_context = JobContext(storage, builder, verification=bound, beside=beside)
    # its own: two runs at once, each with its trials
    job_id = f"tune-{secrets.token_hex(8)}"
    try:
        with LocalDevice(given) as device:
            if not device.runs(chosen):
                raise UserError(
                    f"this machine does not run target '{chosen.name}': `tilewright server run`, a "
                    "worker on a device that does, and `tilewright job submit` tune for it"
                )
            with watching(out, storage, job_id, device, token, verbose) as watcher:
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
            nothing = None if outcome.cancelled else untuned(outcome, budget, storage, job_id)
    finally:
        builder.close()
    note = "" if nothing is None else nothing.note
    report = {**outcome.report(), "note": note}
    made = output if outcome.verification is not None else None
    if made is not None and not outcome.cancelled and not budget.is_late(monotonic() - began):
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
        told = {
            "run": job_id,
            **report,
            "tasks": [task_view(row) for row in outcome.tracker.rows.values()],
        }
        if timings:
            told["timings"] = {
                "stages": job_context.timings.seconds(),
                "loop": job_context.loop.seconds(),
                "beside": job_context.beside.seconds(),
            }
        say_json(told)
    if outcome.cancelled:
        raise typer.Exit(130)
    if nothing is not None and nothing.is_failure:
        raise UserError(nothing.note)
