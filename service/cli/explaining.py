"""`tilewright explain`: what was made of a model, kernel by kernel."""

from __future__ import annotations

from typing import Annotated

import typer

from service.cli.common import (
    DimsOption,
    DumpOption,
    JsonOption,
    ModelPath,
    Numerics,
    NumericsOption,
    Precision,
    PrecisionOption,
    TargetOption,
    ThreadsOption,
    TimingsOption,
    UserError,
    check_printing,
    dump_observer,
    existing_file,
    load_settings,
    parse_dims,
)
from service.cli.on_device import OnOption, device_for
from service.cli.terminal import console, say, say_json


def add_to(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(explain)


def explain(
    model: ModelPath,
    kernel: Annotated[
        list[int] | None,
        typer.Option(
            "--kernel", metavar="N", help="All facts of a kernel of the table; repeatable"
        ),
    ] = None,
    nest: Annotated[
        bool, typer.Option("--nest", help="Print loop nests, of all kernels or those chosen")
    ] = False,
    asm: Annotated[
        bool, typer.Option("--asm", help="Print the assembly of innermost loops")
    ] = False,
    target: TargetOption = "host",
    threads: ThreadsOption = 1,
    numerics: NumericsOption = Numerics.FAST,
    precision: PrecisionOption = Precision.FLOAT32,
    dim: DimsOption = None,
    as_json: JsonOption = False,
    dump_after: DumpOption = None,
    timings: TimingsOption = False,
    on: OnOption = None,
) -> None:
    """Every kernel of a model: operators, schedule, time against what the machine allows, code.

    Compiles with the schedules that the database knows, runs the model on seeded inputs and times
    each kernel in its place.

    Example: tilewright explain model.onnx --kernel 3 --nest --asm
    """
    from compiler.timings import Timings
    from service.cli.explain_view import assembly_text, kernel_view, report_view
    from service.cli.plan_view import decision_view
    from service.cli.view import settled_line, timings_table
    from service.jobs.explain import explain as explain_model
    from service.jobs.known_plan import known_plan
    from service.jobs.no_regret import settle
    from service.jobs.planning import ModelRequest, plan_model
    from service.storage import open_storage

    check_printing(as_json, dump_after)
    recorder = Timings()
    storage = open_storage(load_settings())
    try:
        with device_for(on, target, storage) as (device, compiled_for):
            request = ModelRequest(
                existing_file(model),
                compiled_for,
                threads,
                numerics.value,
                parse_dims(dim),
                precision=precision.value,
            )
            planned = plan_model(request, dump_observer(dump_after), recorder)
            settled = settle([known_plan(planned, storage)], storage)
            (planned,) = settled.planned
            known = len(planned.workloads)
            for number in kernel or ():
                if not 1 <= number <= known:
                    raise UserError(
                        f"--kernel {number}: the kernels of this model are 1 to {known}"
                    )
            report = explain_model(planned, settled.schedules, device, recorder)
    finally:
        storage.close()
    if as_json:
        data = {**report.to_json(), "end_to_end": settled.verdict.to_json()}
        if kernel:
            data["kernels"] = [data["kernels"][number - 1] for number in kernel]
        if timings:
            data["timings"] = {stage.stage: stage.seconds for stage in recorder.stages}
        say_json(data)
        return
    out = console()
    chosen = [report.kernels[number - 1] for number in kernel or ()]
    if not chosen:
        out.print(report_view(report))
        out.print()
        out.print(decision_view(report.decision))
        out.print(settled_line(settled), soft_wrap=True, markup=False)
    for one in chosen or (report.kernels if nest or asm else ()):
        out.print()
        out.print(kernel_view(report, one))
        # as they are: the console would wrap long lines and read brackets as markup
        if nest:
            say(f"\n{one.nest}", end="")
        if asm:
            say(f"\n{assembly_text(one)}")
    if timings:
        out.print()
        out.print(timings_table(recorder.stages))
