"""`tilewright show kernels`: report on the kernels of a compiled model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.service.cli.common import (
    DumpOption,
    JsonOption,
    RangesOption,
    TargetOption,
    TimingsOption,
    UserError,
    check_path,
    check_printing,
    dump_observer,
    existing_file,
    load_settings,
)
from tilewright.service.cli.given import SamplesOption, ValuesOption, given_inputs
from tilewright.service.cli.on_device import OnOption, device_for
from tilewright.service.cli.options import DEFAULTS
from tilewright.service.cli.terminal import complain, console, say, say_json
from tilewright.service.option_texts import parse_ranges, parse_values
from tilewright.service.options import ModeOptions

if TYPE_CHECKING:
    from tilewright.service.jobs.report.explain import KernelReport, ModelReport


def show_kernels(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="ONNX file", callback=check_path)],
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
    mode: ModeOptions = DEFAULTS,
    dim: RangesOption = None,
    samples: SamplesOption = None,
    value: ValuesOption = None,
    as_json: JsonOption = False,
    dump_after: DumpOption = None,
    timings: TimingsOption = False,
    on: OnOption = None,
) -> None:
    """Report on each kernel of a model: operators, schedule, time relative to the roofline, code.

    Compiles with the schedules in the database, runs the model on seeded inputs and times each
    kernel within the model. A model with dynamic sizes has one table per size after @ in --dim.
    Without such sizes, the tables are for typical and for the largest sizes. Each table has the
    kernels that run at its sizes.

    Example: tilewright show kernels model.onnx --kernel 3 --nest --asm
    """
    from tilewright.compiler.timings import Timings
    from tilewright.service.cli.explain_view import assembly_text, kernel_view, report_view
    from tilewright.service.cli.view import selected_line, timings_table
    from tilewright.service.jobs.evidence.end_to_end import select_schedules
    from tilewright.service.jobs.inputs.random_choices import check_draws, named_inputs
    from tilewright.service.jobs.plan.planning import ModelRequest
    from tilewright.service.jobs.plan.segment_planning import plan_first_program
    from tilewright.service.jobs.report.explain import explain as explain_model
    from tilewright.service.jobs.report.shown_sizes import FIRST_STAGE, range_lines
    from tilewright.service.storage import open_storage

    check_printing(as_json, dump_after)
    if (model / "manifest.json").is_file():
        raise UserError(
            f"'{model}' is an artifact, which keeps kernels without their schedules: "
            f"'tilewright show time {model}' times them"
        )
    recorder = Timings()
    storage = open_storage(load_settings())
    try:
        dims = {name: (size,) for name, size in parse_ranges(dim).items()}
        given = given_inputs(model, samples, parse_values(value), dims)
        with device_for(on, target, storage, given) as (device, compiled_for):
            request = ModelRequest(
                existing_file(model),
                mode.mode(compiled_for),
                given=given,
            )
            planned = plan_first_program(
                request, dims, observer=dump_observer(dump_after), timings=recorder
            )
            if planned.stages is not None:
                complain(f"warning: {FIRST_STAGE}; 'tilewright show time' times all stages")
            selected = select_schedules([planned], storage)
            (planned,) = selected.planned
            known = len(planned.workloads)
            for number in kernel or ():
                if not 1 <= number <= known:
                    raise UserError(
                        f"--kernel {number}: the kernels of this model are 1 to {known}"
                    )
            check_draws([planned])
            with named_inputs([planned]):
                reports = explain_model(planned, selected.schedules, device, recorder)
    finally:
        storage.close()
    chosen = _chosen(reports, kernel)
    if as_json:
        views = [report.to_json() for report in reports]
        for each in views:
            each["kernels"] = [k for k in each["kernels"] if k["number"] in chosen]
        data = views[0]
        if planned.open is not None:
            ranges = {d.name: d.range_text for d in planned.open.ranges}
            data = {"ranges": ranges, "at_sizes": views}
        data["end_to_end"] = selected.verdict.to_json()
        if timings:
            data["timings"] = recorder.seconds()
        say_json(data)
        return
    out = console()
    if not kernel:
        for line in () if planned.stages is not None else range_lines([planned]):
            out.print(line, soft_wrap=True, markup=False)
        for report in reports:
            out.print(report_view(report, legend=report is reports[-1]))
            out.print()
        out.print(selected_line(selected), soft_wrap=True, markup=False)
    for one in chosen.values() if kernel or nest or asm else ():
        out.print()
        out.print(kernel_view(reports, one))
        # printed directly: the console would wrap long lines and interpret brackets as markup
        if nest:
            say(f"\n{one.nest}", end="")
        if asm:
            say(f"\n{assembly_text(one)}")
    if timings:
        out.print()
        out.print(timings_table(recorder.stages))


def _chosen(
    reports: Sequence[ModelReport], numbers: Sequence[int] | None
) -> dict[int, KernelReport]:
    """Return the kernels that `--kernel` selects, by number.

    Without `numbers`, return all kernels of the reports, in ascending order. A report contains the
    kernels that run at its sizes.

    Raises:
        UserError: if one of the `numbers` is not the number of a kernel in any report.
    """
    from tilewright.compiler.runtime.ports import sizes_text

    found = {kernel.number: kernel for report in reports for kernel in reversed(report.kernels)}
    for number in numbers or ():
        if number not in found:
            at = ", ".join(sizes_text(tuple(report.sizes.items())) for report in reports)
            raise UserError(
                f"--kernel {number}: it does not run at {at}, where the kernels "
                f"{', '.join(map(str, sorted(found)))} do; hints of --dim choose others"
            )
    return {number: found[number] for number in numbers or sorted(found)}
