"""`tilewright show time`: time of a run per kernel, copy and native function."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.service.cli.common import (
    JsonOption,
    ModelOrArtifact,
    RangesOption,
    UserError,
    existing_file,
    load_settings,
)
from tilewright.service.cli.given import SamplesOption, ValuesOption, given_inputs
from tilewright.service.cli.local import artifact_sizes, opened
from tilewright.service.cli.on_device import OnOption, device_for
from tilewright.service.cli.options import DEFAULTS, check_artifact
from tilewright.service.cli.terminal import complain, console, say_json
from tilewright.service.option_texts import parse_ranges, parse_values
from tilewright.service.options import ModeOptions
from tilewright.service.show.units import microseconds, milliseconds, percent, threads_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.table import Table

    from tilewright.compiler.runtime.guarded import GuardedModel
    from tilewright.compiler.sizes.hinted_ranges import Shares
    from tilewright.service.jobs.inputs.given_inputs import GivenInputs
    from tilewright.service.jobs.plan.planning import ModelRequest
    from tilewright.service.jobs.report.profiling import ModelProfile


def show_time(
    model: ModelOrArtifact,
    trace: Annotated[
        Path | None,
        typer.Option("--trace", metavar="FILE", help="Write a trace that Perfetto opens (.json)"),
    ] = None,
    mode: ModeOptions = DEFAULTS,
    dim: RangesOption = None,
    samples: SamplesOption = None,
    value: ValuesOption = None,
    on: OnOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the time of each kernel, copy and native function of a run, in order.

    The model runs on seeded inputs with the schedules in the database. `show kernels` describes the
    kernels. A model with dynamic sizes has one table per size after @ in --dim. Without such sizes,
    the tables are for typical and for the largest sizes. For an artifact, --dim has only such
    sizes: NAME=@SIZE.

    Example: tilewright show time model.onnx --trace trace.json
    """
    import json

    from tilewright.service.jobs.report.profiling import traces

    if trace is not None and not trace.parent.is_dir():
        raise UserError(f"--trace '{trace}': the folder '{trace.parent}' does not exist")
    if model.is_dir():
        if on is not None:
            raise UserError("--on profiles a model with stored schedules, not an artifact")
        check_artifact(mode, model)
        if samples is not None or value:
            raise UserError("--samples and --value are for a model, not for an artifact")
        found = _of_artifact(model, mode.threads, parse_ranges(dim))
    else:
        dims = {name: (size,) for name, size in parse_ranges(dim).items()}
        given = given_inputs(model, samples, parse_values(value), dims)
        found = _of_model(model, mode, dims, on, given)
    if trace is not None:
        trace.write_text(json.dumps(traces(found)), encoding="utf-8")
    if as_json:
        say_json(found[0].to_json() if not found[0].sizes else _as_json(found))
        return
    out = console()
    for each in found:
        kernels = sum(step.kind == "kernel" for step in each.steps)
        out.print(
            f"{each.title}: {milliseconds(each.seconds)} in {len(each.steps)} instructions, "
            f"{kernels} of them kernels; {each.target}, "
            f"{threads_text(each.threads)}, {each.device}",
            soft_wrap=True,
            markup=False,
        )
        out.print()
        out.print(_table(each))
    if trace is not None:
        out.print(f"trace: {trace}", soft_wrap=True, markup=False)


def _as_json(found: Sequence[ModelProfile]) -> dict[str, Any]:
    return {"at_sizes": [each.to_json() for each in found]}


def _of_artifact(folder: Path, threads: int, dims: Mapping[str, int | str]) -> list[ModelProfile]:
    from tilewright.compiler.runtime.artifact import load_artifact, read_artifact
    from tilewright.compiler.runtime.executable import Executable
    from tilewright.compiler.runtime.guarded import GuardedModel
    from tilewright.compiler.targets.detection import named_device
    from tilewright.service.jobs.inputs.given_inputs import NONE_GIVEN
    from tilewright.service.jobs.report.profiling import (
        SAMPLES,
        ModelProfile,
        operators_of,
        steps_of,
    )
    from tilewright.service.jobs.report.shown_sizes import hinted_sizes, stated_sizes
    from tilewright.tuner.measure.model_runs import draw_inputs

    given, stated = artifact_sizes(folder, dims)
    loaded = load_artifact(folder, threads=threads, sizes=given or None)
    artifact = read_artifact(folder)
    operators = operators_of(artifact)
    target, device = str(artifact.target.get("name")), named_device().model
    if isinstance(loaded, GuardedModel) and loaded.is_segmented:
        return _of_stages(loaded, NONE_GIVEN, stated, (target, device, threads), operators)
    programs: list[tuple[Mapping[str, int], Executable]] = []
    if isinstance(loaded, Executable):
        stated_sizes((), stated)  # rejects hints of fixed dimensions
        programs.append(({}, loaded))
    else:
        assert isinstance(loaded, GuardedModel), "of sizes that are given it is one program"
        if loaded.ranged is None:
            raise UserError(f"give dimension '{loaded.open[0]}' a size with --dim")
        shown = hinted_sizes(loaded.ports, loaded.ranged.dimensions, stated)
        programs += [(sizes, loaded.executable(sizes)) for sizes in shown]
    found = []
    for sizes, executable in programs:
        fastest = executable.profile(draw_inputs(executable.program.inputs), SAMPLES).min(axis=0)
        program = executable.program
        steps = tuple(steps_of(program, fastest, operators=operators))
        found.append(ModelProfile(program.name, target, device, threads, steps, sizes))
    return found


def _of_stages(
    executable: GuardedModel,
    given: GivenInputs,
    stated: Shares,
    where: tuple[str, str, int],
    operators: Mapping[str, Sequence[str]] | None = None,
) -> list[ModelProfile]:
    """Profile a model that consists of several segments, on random inputs.

    A model has segments if its data determine sizes. The results of each segment determine the
    sizes of the next one. Each segment has its own program.

    Args:
        executable: the compiled model.
        given: the user's values for inputs; other inputs are random.
        stated: typical sizes of --dim, with the fraction of runs that have each size.
        where: the target's name, the device's model name and the number of threads.
        operators: the operators of each kernel by kernel name, if they are known.

    Returns:
        one profile per size and segment, in the order of execution.
    """
    from tilewright.service.jobs.inputs.segment_inputs import DRAWN, staged_inputs
    from tilewright.service.jobs.report.profiling import SAMPLES, ModelProfile, steps_of

    complain(f"warning: {DRAWN}")
    found = []
    for sizes, inputs in staged_inputs(executable, given, stated):
        programs = executable.programs_of(inputs)
        for number, (ran, own) in enumerate(programs, 1):
            fastest = ran.profile(own, SAMPLES).min(axis=0)
            steps = tuple(steps_of(ran.program, fastest, operators=operators))
            name = f"{ran.program.name}, stage {number} of {len(programs)}"
            found.append(ModelProfile(name, *where, steps, sizes))
    return found


def _of_model(
    model: Path,
    options: ModeOptions,
    dims: Mapping[str, Sequence[int | str]],
    on: str | None,
    given: GivenInputs,
) -> list[ModelProfile]:
    from tilewright.compiler.program.builder import build_program
    from tilewright.service.jobs.device.loadables import of_compiled
    from tilewright.service.jobs.evidence.end_to_end import select_schedules
    from tilewright.service.jobs.inputs.random_choices import check_draws, named_inputs
    from tilewright.service.jobs.plan.planning import ModelRequest
    from tilewright.service.jobs.plan.segment_planning import plan_first_program
    from tilewright.service.jobs.report.profiling import SAMPLES, ModelProfile, steps_of
    from tilewright.service.jobs.report.shown_sizes import shown_sizes
    from tilewright.service.jobs.report.workload_facts import workload_name
    from tilewright.service.storage import open_storage

    existing_file(model)
    storage = open_storage(load_settings())
    found = []
    try:
        with device_for(on, "host", storage, given) as (device, target):
            mode = options.mode(target)
            request = ModelRequest(model, mode, given=given)
            planned = plan_first_program(request, dims)
            if planned.stages is not None:
                return _of_known_stages(request, options, dims, on)
            selected = select_schedules([planned], storage)
            (planned,) = selected.planned
            plan = planned.served_plan
            every = shown_sizes(planned)
            compiled = build_program(plan, selected.schedules, mode)
            where = device.name if device.facts is None else device.facts.model
            check_draws([planned])
            with named_inputs([planned]):
                for sizes in every:
                    fixed = plan.at(sizes) if sizes else plan
                    program = compiled.program.at(sizes) if sizes else compiled.program
                    at_sizes = replace(compiled, program=program)
                    fastest = device.profile(of_compiled(at_sizes), mode.threads, SAMPLES)
                    names = [workload_name(step.workload) for step in fixed.kernels]
                    steps = tuple(steps_of(program, fastest, names))
                    name = plan.graph.name
                    found.append(ModelProfile(name, target.name, where, mode.threads, steps, sizes))
    finally:
        storage.close()
    return found


def _of_known_stages(
    request: ModelRequest,
    options: ModeOptions,
    dims: Mapping[str, Sequence[int | str]],
    on: str | None,
) -> list[ModelProfile]:
    """Compile a model whose data determine sizes, and profile its programs on this machine.

    The model runs as several programs. The results of each program determine the sizes of the next
    one. Returns one profile per size and program.

    Raises:
        UserError: if `on` names a worker, because workers do not profile such models.
    """
    from tilewright.compiler.runtime.guarded import GuardedModel
    from tilewright.compiler.sizes.hinted_ranges import hinted_shares
    from tilewright.compiler.targets.detection import named_device

    model = request.model
    if on is not None:
        raise UserError("--on: the data decide sizes of this model, whose stages run here alone")
    assert isinstance(model, Path)
    ranges = {name: listed[0] for name, listed in dims.items()}
    with opened(model, options, ranges) as (executable, _):
        assert isinstance(executable, GuardedModel), "it has no first stage otherwise"
        where = (request.mode.target.name, named_device().model, options.threads)
        return _of_stages(executable, request.given, hinted_shares(dims), where)


def _table(found: ModelProfile) -> Table:
    from tilewright.service.jobs.report.profiling import StepKind
    from tilewright.service.show.console import rich_table
    from tilewright.service.show.table import CellKind, Column, table

    Row = tuple[str, StepKind, int, float]
    whole = found.seconds
    described: tuple[Column[Row], ...] = (
        Column("what", lambda row: row[0], CellKind.NAME),
        Column("kind", lambda row: row[1].value, CellKind.TEXT),
        Column("times", lambda row: str(row[2])),
        Column("us", lambda row: microseconds(row[3])),
        Column("share", lambda row: percent(row[3] / whole if whole else None)),
    )
    return rich_table(table(described, found.by_name()))
