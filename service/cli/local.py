"""Commands on one model on this machine: show graph, compile, run."""

from __future__ import annotations

from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.service.cli.common import (
    DumpOption,
    JsonOption,
    ModelOrArtifact,
    ModelPath,
    RangesOption,
    TargetOption,
    TimingsOption,
    UserError,
    check_printing,
    dump_observer,
    existing_file,
    load_settings,
)
from tilewright.service.cli.options import DEFAULTS, JOB_DEFAULTS, check_artifact
from tilewright.service.cli.terminal import console, note, say_json
from tilewright.service.option_texts import parse_ranges
from tilewright.service.options import JobOptions, ModeOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from tilewright.compiler.program.builder import CompiledProgram
    from tilewright.compiler.runtime.model import Model
    from tilewright.compiler.sizes.hinted_ranges import Shares
    from tilewright.service.jobs.evidence.end_to_end import SelectedSchedules
    from tilewright.service.jobs.knowledge.known_model import KnownModel


class Format(StrEnum):
    """Values of `--format`: the output formats of the command `compile`."""

    ARTIFACT = "artifact"
    """A folder that loads in Python with NumPy alone."""
    C = "c"
    """A folder with a header and libraries for programs in C."""
    EXE = "exe"
    """An executable program that reads and writes .npy files."""
    WASM = "wasm"
    """A folder with a WebAssembly module and the JavaScript that runs it."""


class WeightsIn(StrEnum):
    """Values of `--weights`: where `compile --format c` stores the weights of a C library."""

    SECTION = "section"
    FILE = "file"


def show_graph(
    model: ModelOrArtifact,
    target: TargetOption = "host",
    mode: ModeOptions = DEFAULTS,
    dim: RangesOption = None,
    as_json: JsonOption = False,
    dump_after: DumpOption = None,
) -> None:
    """Show a model's operators, parameters, MACs, memory traffic and workloads.

    For an artifact, show its programs and their sizes. If a dimension has a range of sizes, the
    figures are for one of them: a size after @ in --dim, or else a typical size.

    Example: tilewright show graph model.onnx --dim batch=1
    """
    from tilewright.compiler.targets.host import resolve_target

    if model.is_dir():
        _show_artifact(model, as_json=as_json)
        return

    from tilewright.compiler.frontend.dimensions import model_ports
    from tilewright.compiler.frontend.model_file import read_model
    from tilewright.compiler.plan.costs import plan_summary
    from tilewright.service.cli.inspect_view import open_inputs, summary_view
    from tilewright.service.jobs.plan.planning import ModelRequest
    from tilewright.service.jobs.plan.segment_planning import plan_first_program
    from tilewright.service.jobs.report.shown_sizes import FIRST_STAGE, range_lines
    from tilewright.service.jobs.report.workload_facts import workload_name

    check_printing(as_json, dump_after)
    read = read_model(existing_file(model))
    request = ModelRequest(model, mode.mode(resolve_target(target)))
    dims = {name: (size,) for name, size in parse_ranges(dim).items()}
    planned = plan_first_program(request, dims, observer=dump_observer(dump_after))
    lines = [*open_inputs(model_ports(read.proto.graph)), *range_lines([planned])]
    if planned.stages is not None:
        lines[-1] = FIRST_STAGE
    summary = plan_summary(planned.plan)
    if as_json:
        say_json({**summary.to_json(), "dynamic": lines})
        return
    names = {w.key: workload_name(w) for w, _ in planned.plan.tasks()}
    out = console()
    for line in lines:
        out.print(line, soft_wrap=True, markup=False)
    out.print(summary_view(summary, names))


def _show_artifact(folder: Path, *, as_json: bool) -> None:
    from tilewright.compiler.runtime.artifact import read_artifact
    from tilewright.service.cli.artifact_view import artifact_facts, artifact_view

    facts = artifact_facts(read_artifact(folder))
    if as_json:
        say_json(facts)
        return
    console().print(artifact_view(facts))


def compile_(
    model: ModelPath,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for the artifact, or the program's file")
    ],
    target: TargetOption = "host",
    mode: ModeOptions = DEFAULTS,
    options: JobOptions = JOB_DEFAULTS,
    format_: Annotated[
        Format | None,
        typer.Option(
            "--format",
            help="artifact: for Python and NumPy; c: a header and libraries for C; "
            "exe: a program that reads and writes .npy files; wasm: a module and JavaScript, "
            "what targets of WebAssembly have",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--name", help="With c and wasm: name of files and functions"),
    ] = None,
    weights: Annotated[
        WeightsIn | None,
        typer.Option("--weights", help="With --format c: in the library, or in a file next to it"),
    ] = None,
    dump_after: DumpOption = None,
    timings: TimingsOption = False,
    as_json: JsonOption = False,
) -> None:
    """Compile to an artifact folder, a C library or a program, with the schedules in the database.

    Example: tilewright compile model.onnx --dim batch=1..64 -o artifact
    """
    from tilewright.compiler.targets.host import resolve_target

    # refused before the slow imports
    check_printing(as_json, dump_after)
    chosen = resolve_target(target)

    from tilewright.compiler.program.kernels import KernelCache
    from tilewright.compiler.timings import Timings
    from tilewright.service.cli.view import selected_line, timings_table
    from tilewright.service.jobs.evidence.end_to_end import select_schedules
    from tilewright.service.jobs.pipeline.tuning import build_artifact, build_for_c
    from tilewright.service.jobs.plan.planning import ModelRequest
    from tilewright.service.jobs.plan.segment_planning import plan_programs
    from tilewright.service.jobs.report.shown_sizes import range_lines
    from tilewright.service.show.units import size
    from tilewright.service.storage import open_storage

    modules = chosen.family.modules
    format_ = format_ or (Format.WASM if modules else Format.ARTIFACT)
    in_place = format_ is Format.ARTIFACT  # arrays of C callers have no slack capacity
    request = ModelRequest(model, mode.mode(chosen, in_place=in_place))
    if modules is not (format_ is Format.WASM):
        raise UserError(f"--format {format_.value} is not for target '{target}'")
    if name is not None and format_ not in (Format.C, Format.WASM):
        raise UserError("--name is for --format c and wasm")
    if weights is not None and format_ is not Format.C:
        raise UserError("--weights is for --format c")
    if format_ is not Format.ARTIFACT and options.pad:
        raise UserError(f"--pad is for artifacts, not for --format {format_.value}")
    recorder = Timings()
    kernels = KernelCache()
    plans = plan_programs(
        request, options.sizes, dump_observer(dump_after), recorder, kernels=kernels
    )
    if format_ is not Format.ARTIFACT and plans[0].stages is not None:
        raise UserError(
            f"--format {format_.value}: the data decide sizes of this model, so that it runs in "
            "stages, which only artifacts hold"
        )
    if format_ is not Format.ARTIFACT and len(plans) > 1:
        raise UserError(
            f"--format {format_.value} holds one size or one range of each dimension, not "
            f"{len(plans)} combinations"
        )
    storage = open_storage(load_settings())
    try:
        selected = select_schedules(plans, storage)
    finally:
        storage.close()
    plans = selected.planned
    constants = [each.plan.graph.constants for each in (plans if plans[0].stages else plans[:1])]
    plain = sum(array.nbytes for each in constants for array in each.values())
    if format_ is Format.ARTIFACT:
        compiled = build_artifact(
            plans,
            selected.schedules,
            output,
            options.weight_limit,
            pad=options.pad,
            timings=recorder,
            kernels=kernels,
        )
        packed = max(each.program.weight_bytes for each in compiled)
        made = f"artifact: {output}"
    else:
        one = build_for_c(plans[0], selected.schedules, options.weight_limit, recorder)
        packed = one.program.weight_bytes
        place = weights or WeightsIn.SECTION
        made = _written_for_c(one, output, model, format_, name, place, mode.threads)
    if as_json:
        view = {
            "output": str(output),
            "format": format_.value,
            "packed_weight_bytes": packed,
            "weight_bytes": plain,
            "ranges": range_lines(plans),
            **served_facts(selected),
        }
        if timings:
            view["timings"] = recorder.seconds()
        say_json(view)
        return
    out = console()
    out.print(
        f"{made} (packed weights take {size(packed)}, the model's {size(plain)})",
        soft_wrap=True,
        markup=False,
    )
    out.print(selected_line(selected), soft_wrap=True, markup=False)
    for line in range_lines(plans):
        out.print(line, soft_wrap=True, markup=False)
    if timings:
        out.print(timings_table(recorder.stages))


def _written_for_c(
    compiled: CompiledProgram,
    output: Path,
    model: Path,
    format_: Format,
    name: str | None,
    weights: WeightsIn,
    threads: int,
) -> str:
    """Write a C library, an executable or a WebAssembly module.

    Returns a line for the user that lists the written files and their sizes.
    """
    from tilewright.compiler.bindings.c_library import (
        WeightPlace,
        library_name,
        write_c_library,
        write_executable,
        write_wasm_module,
    )
    from tilewright.service.show.units import size

    if format_ is Format.EXE:
        path = write_executable(compiled, output, model.name)
        return f"program: {output}, {size(path.stat().st_size)}"
    if format_ is Format.WASM:
        module = write_wasm_module(
            compiled, output, name or library_name(model), model.name, threads
        )
        return (
            f"module: {output} ({module.name}.wasm, {size(module.bytes)}; {module.name}.mjs, "
            f"{module.name}.d.mts)"
        )
    made = write_c_library(
        compiled, output, name or library_name(model), model.name, WeightPlace(weights.value)
    )
    arena = "" if made.arena_bytes is None else f", arena {size(made.arena_bytes)}"
    return (
        f"C library: {output} ({made.name}.h, lib{made.name}.a, lib{made.name}.so): "
        f"code {size(made.code_bytes)}{arena}"
    )


def run(
    model: ModelOrArtifact,
    inputs: Annotated[
        Path | None,
        typer.Option("--inputs", help="Input arrays by name (.npz); random ones if not given"),
    ] = None,
    outputs: Annotated[
        Path | None, typer.Option("--outputs", help="Where to write the outputs (.npz)")
    ] = None,
    mode: ModeOptions = DEFAULTS,
    dim: RangesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a model or an artifact on arrays from a file, or on random arrays.

    Example: tilewright run artifact --inputs in.npz --outputs out.npz
    """
    from tilewright.service.arrays import save_arrays

    if outputs is not None:
        _check_place(outputs)  # checked before the run
    given = None if inputs is None else _load_arrays(inputs)
    ranges = parse_ranges(dim)
    with opened(model, mode, ranges) as (executable, known):
        arrays = given if given is not None else _random_arrays(executable, model, ranges)
        names = executable.output_names
        found = zip(names, executable.run(arrays), strict=True)
        results = dict(pair for name, array in found for pair in _storable(name, array, names))
    if outputs is not None:
        save_arrays(outputs, results.items())
    if as_json:
        shapes = {n: {"type": str(a.dtype), "shape": list(a.shape)} for n, a in results.items()}
        say_json({"outputs": shapes, "served": known_facts(known)})
        return
    out = console()
    for name, array in results.items():
        out.print(f"{name}: {array.dtype} {array.shape}", soft_wrap=True, markup=False)
    tell_served(known)


def _random_arrays(
    executable: Model,
    model: Path,
    ranges: Mapping[str, int | str],
) -> Mapping[str, Any]:
    """Return random inputs for `run`, and print a note about them to standard error.

    Their sizes are the first of the sizes at which `bench` would time the model.
    """
    from tilewright.compiler.sizes.hinted_ranges import hinted_shares
    from tilewright.service.cli.feeds import feeds_of
    from tilewright.service.jobs.inputs.given_inputs import NONE_GIVEN

    shares = hinted_shares({name: [size] for name, size in ranges.items()})
    feed = feeds_of(executable, model, shares, ranges, NONE_GIVEN)[0]
    at = f" at {feed.sizes}" if feed.sizes else ""
    note(f"the inputs are random{at}: --inputs FILE.npz gives real ones")
    return feed.arrays


def _storable(name: str, output: Any, names: Collection[str]) -> list[tuple[str, Any]]:
    """Return an output as (name, array) pairs that .npz stores without pickle.

    A list of dictionaries with equal keys becomes a matrix of their values. Any other list becomes
    one array per element, under names that are not in `names`, the names of the outputs. A bfloat16
    array becomes a uint16 array of its bits.
    """
    import numpy as np

    from tilewright.compiler.runtime.ports import element_name

    if isinstance(output, list):
        each = (
            _storable(element_name(name, number, names), array, names)
            for number, array in enumerate(output)
        )
        return [pair for pairs in each for pair in pairs]
    if output.dtype == object:
        output = np.array([list(row.values()) for row in output])
    if output.dtype.name == "bfloat16":
        output = output.view(np.uint16)
    return [(name, output)]


def _check_place(path: Path) -> None:
    """Check that the path of --outputs is not a folder, and that its parent folder exists.

    Raises UserError otherwise.
    """
    if path.is_dir():
        raise UserError(f"--outputs '{path}' is a folder, not a file")
    if not path.parent.is_dir():
        raise UserError(f"--outputs '{path}': the folder '{path.parent}' does not exist")


def _load_arrays(path: Path) -> dict[str, Any]:
    from tilewright.service.arrays import ArraysError, load_arrays

    try:
        return dict(load_arrays(existing_file(path)))
    except ArraysError as error:
        raise UserError(str(error)) from error


def served_facts(selected: SelectedSchedules) -> dict[str, Any]:
    """Return which schedules were selected for a model, as plain data for `json.dumps`.

    The data has three numbers: of the model's workloads, of workloads with a tuning record, and of
    workloads with only a record of a similar workload. It also has the verdict of the end-to-end
    comparison, which decides between tuned and default schedules.
    """
    return {
        "workloads": selected.workloads,
        "workloads_known": selected.known,
        "workloads_related": selected.related,
        "end_to_end": selected.verdict.to_json(),
    }


def known_facts(known: KnownModel | None) -> list[dict[str, Any]]:
    """Return which schedules were selected for a compiled model, as data for `json.dumps`.

    The list has an element per compiled program; `served_facts` describes the elements. It is empty
    for an artifact, for which `known` is None.
    """
    return [] if known is None else [served_facts(selected) for selected in known.selected]


def tell_served(known: KnownModel | None) -> None:
    """Print which schedules each program of a compiled model uses, and why.

    `known` has the selected schedules. It is None for an artifact, and then nothing is printed.
    """
    if known is None:
        return
    from tilewright.service.cli.view import selected_line

    for selected in known.selected:
        console().print(selected_line(selected), soft_wrap=True, markup=False)


def artifact_sizes(folder: Path, dims: Mapping[str, int | str]) -> tuple[dict[str, int], Shares]:
    """Return the sizes and the typical sizes (size hints) that --dim states for a compiled model.

    Args:
        folder: the compiled model (an artifact).
        dims: the size or text of --dim by dimension, such as 16 or "@128" for a hint.

    Raises:
        UserError: if --dim states a range, because an artifact's ranges are fixed.
    """
    from tilewright.compiler.sizes.hinted_ranges import hinted_shares

    hints = {name: [text] for name, text in dims.items() if isinstance(text, str)}
    for name, (text,) in hints.items():
        if not text.startswith("@"):
            raise UserError(
                f"--dim {name}={text}: the artifact '{folder}' keeps its ranges; give one size, or "
                f"hints alone such as {name}=@128"
            )
    return {n: size for n, size in dims.items() if isinstance(size, int)}, hinted_shares(hints)


@contextmanager
def opened(
    model: Path,
    mode: ModeOptions,
    dims: Mapping[str, int | str],
    tell: Callable[[str], None] = lambda _step: None,
) -> Iterator[tuple[Model, KnownModel | None]]:
    """Yield a model that can run: load an artifact, or compile an ONNX file.

    Also yield the compiler of the ONNX file (`KnownModel`), which has the schedules that it
    selected in the database. For an artifact, yield None instead. Before compiling, call `tell`
    with a line of progress, because a compilation may take long.
    """
    if model.is_dir():
        # loading an artifact needs neither the compiler nor the database
        from tilewright.compiler.runtime.artifact import load_artifact

        check_artifact(mode, model)
        sizes, _ = artifact_sizes(model, dims)
        yield load_artifact(model, threads=mode.threads, sizes=sizes or None), None
        return
    from tilewright.compiler.targets.host import resolve_target
    from tilewright.service.jobs.knowledge.known_model import KnownModel
    from tilewright.service.storage import open_storage

    existing_file(model)
    storage = open_storage(load_settings())
    try:
        known = KnownModel(model, storage, mode.mode(resolve_target("host")))
        tell(f"compiling {model.name}")
        # sizes without a program compile during a run, and then query the database
        yield known.compile(dims), known
    finally:
        storage.close()
