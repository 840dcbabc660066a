"""`tilewright profile`: where the time of a run goes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.common import (
    DimsOption,
    JsonOption,
    Numerics,
    NumericsOption,
    Precision,
    PrecisionOption,
    ThreadsOption,
    UserError,
    existing_file,
    load_settings,
    parse_dims,
)
from service.cli.on_device import OnOption, device_for
from service.cli.terminal import console, say_json
from service.units import microseconds, milliseconds

if TYPE_CHECKING:
    from rich.table import Table

    from service.jobs.profiling import ModelProfile


def add_to(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(profile)


def profile(
    model: Annotated[Path, typer.Argument(metavar="MODEL|DIR", help="ONNX file or artifact")],
    trace: Annotated[
        Path | None,
        typer.Option("--trace", metavar="FILE", help="Write a trace that Perfetto opens (.json)"),
    ] = None,
    threads: ThreadsOption = 1,
    numerics: NumericsOption = Numerics.FAST,
    precision: PrecisionOption = Precision.FLOAT32,
    dim: DimsOption = None,
    on: OnOption = None,
    as_json: JsonOption = False,
) -> None:
    """Where the time of a run goes: every kernel, copy and native function, in its place.

    The model runs on seeded inputs with the schedules that the database knows; `explain` says what
    each kernel is.

    Example: tilewright profile model.onnx --trace trace.json
    """
    import json

    from service.jobs.profiling import trace as trace_of

    if trace is not None and not trace.parent.is_dir():
        raise UserError(f"--trace '{trace}': the folder '{trace.parent}' is not there")
    if model.is_dir():
        if on is not None:
            raise UserError("--on profiles a model with what the database knows, not an artifact")
        if numerics is not Numerics.FAST or precision is not Precision.FLOAT32:
            raise UserError(f"the artifact '{model}' keeps its own numerics and precision")
        found = _of_artifact(model, threads, parse_dims(dim))
    else:
        found = _of_model(model, threads, numerics, precision, parse_dims(dim), on)
    if trace is not None:
        trace.write_text(json.dumps(trace_of(found)), encoding="utf-8")
    if as_json:
        say_json(found.to_json())
        return
    out = console()
    kernels = sum(step.kind == "kernel" for step in found.steps)
    out.print(
        f"{found.program}: {milliseconds(found.seconds)} in {len(found.steps)} instructions, "
        f"{kernels} of them kernels; {found.target}, "
        f"{'1 thread' if found.threads == 1 else f'{found.threads} threads'}, {found.device}",
        soft_wrap=True,
        markup=False,
    )
    out.print()
    out.print(_table(found))
    if trace is not None:
        out.print(f"trace: {trace}", soft_wrap=True, markup=False)


def _of_artifact(folder: Path, threads: int, sizes: dict[str, int]) -> ModelProfile:
    from compiler.detection import named_device
    from compiler.runtime.artifact import load_artifact, read_artifact
    from compiler.runtime.executable import Executable
    from compiler.runtime.stages import StagedExecutable
    from service.jobs.profiling import SAMPLES, ModelProfile, steps_of
    from tuner.measure.model_runs import draw_inputs

    loaded = load_artifact(folder, threads=threads, sizes=sizes or None)
    if isinstance(loaded, StagedExecutable):
        raise UserError(f"the data decide sizes of '{folder}': drawn inputs would say little of it")
    if not isinstance(loaded, Executable):
        if missing := [name for name in loaded.open if name not in sizes]:
            raise UserError(f"give dimension '{missing[0]}' a size with --dim")
        loaded = loaded.executable(sizes)
    fastest = loaded.profile(draw_inputs(loaded.inputs), SAMPLES).min(axis=0)
    target = str(read_artifact(folder).target.get("name"))
    steps = steps_of(loaded.program, fastest)
    return ModelProfile(loaded.program.name, target, named_device().model, threads, tuple(steps))


def _of_model(
    model: Path,
    threads: int,
    numerics: Numerics,
    precision: Precision,
    dims: dict[str, int],
    on: str | None,
) -> ModelProfile:
    from compiler.program_builder import build_program
    from service.jobs.known_plan import known_plan
    from service.jobs.loadables import of_compiled
    from service.jobs.no_regret import settle
    from service.jobs.planning import ModelRequest, plan_model, workload_name
    from service.jobs.profiling import SAMPLES, ModelProfile, steps_of
    from service.storage import open_storage

    existing_file(model)
    storage = open_storage(load_settings())
    try:
        with device_for(on, "host", storage) as (device, target):
            request = ModelRequest(
                model, target, threads, numerics.value, dims, precision=precision.value
            )
            settled = settle([known_plan(plan_model(request), storage)], storage)
            (planned,) = settled.planned
            compiled = build_program(
                planned.plan, settled.schedules, target, threads, planned.numerics
            )
            fastest = device.profile(of_compiled(compiled), threads, SAMPLES)
            where = device.name if device.facts is None else device.facts.model
    finally:
        storage.close()
    names = [workload_name(step.workload) for step in planned.plan.kernels]
    steps = steps_of(compiled.program, fastest, names)
    return ModelProfile(planned.plan.graph.name, target.name, where, threads, tuple(steps))


def _table(found: ModelProfile) -> Table:
    from rich.text import Text

    from service.cli.view import make_table

    table = make_table("<what", "<kind", "times", "us", "share")
    for name, kind, count, seconds in found.by_name():
        share = f"{100 * seconds / found.seconds:.1f} %" if found.seconds else "-"
        table.add_row(Text(name), kind.value, str(count), microseconds(seconds), share)
    return table
