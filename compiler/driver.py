"""The compiler driver: runs the stages of a compilation in order.

ONNX -> load_graph -> optimise -> make_plan -> build_program -> Model | artifact folder
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tilewright.compiler.codegen.backend import backend_of
from tilewright.compiler.codegen.link import LinkerError
from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import (
    ArtifactError,
    CompilerError,
    InvalidModelError,
    OutOfMemoryError,
    UnsupportedOperatorError,
    enough_memory_for,
)
from tilewright.compiler.frontend.dimensions import (
    cache_lengths,
    check_dims,
    free_dimensions,
    model_ports,
)
from tilewright.compiler.frontend.model_file import ReadModel, read_model, with_tensors
from tilewright.compiler.frontend.onnx_import import import_model
from tilewright.compiler.frontend.segments import input_live_ins
from tilewright.compiler.graph.ir import Graph
from tilewright.compiler.mode import Mode
from tilewright.compiler.options import CompileOptions
from tilewright.compiler.passes.growing_caches import growing_caches
from tilewright.compiler.passes.lookup_tables import lookup_tables
from tilewright.compiler.passes.pipeline import Observer
from tilewright.compiler.passes.pipeline import optimise as run_passes
from tilewright.compiler.passes.quantised_activation_products import quantised_activation_products
from tilewright.compiler.passes.quantised_products import quantised_products
from tilewright.compiler.plan.choices import RULE, GraphChoice
from tilewright.compiler.plan.layouts.assignment import assign_layouts
from tilewright.compiler.plan.partition import plan_graph
from tilewright.compiler.plan.plan import GraphPlan
from tilewright.compiler.profile import size_hints
from tilewright.compiler.program.artifacts import save_artifact
from tilewright.compiler.program.builder import CompiledProgram, ProgramBuilder, build_program
from tilewright.compiler.program.kernels import ScheduleSource
from tilewright.compiler.program.sliced_batch import (
    LEAST_BATCH,
    has_plain_ports,
    in_slices,
    may_outgrow,
    slice_of,
)
from tilewright.compiler.program.slices import cache_budget, slices_of
from tilewright.compiler.runtime.artifact import Artifact
from tilewright.compiler.runtime.executable import Executable
from tilewright.compiler.runtime.guarded import GuardedModel
from tilewright.compiler.runtime.model import Model
from tilewright.compiler.runtime.packing import Array
from tilewright.compiler.runtime.ports import Dims, ModelPorts, sizes_text
from tilewright.compiler.runtime.segments import (
    LiveIns,
    ModelSegment,
    SegmentBoundary,
    SegmentGuard,
)
from tilewright.compiler.sizes import Dimension, dynamic_size
from tilewright.compiler.sizes.hinted_ranges import Shares, hinted_shares
from tilewright.compiler.sizes.invalid_ranges import invalid_everywhere
from tilewright.compiler.sizes.ranges import (
    SizeRange,
    default_ranges,
)
from tilewright.compiler.specialise.jit import SegmentCompiler
from tilewright.compiler.specialise.splits import make_first_segment, make_segment
from tilewright.compiler.targets.host import check_runs_here
from tilewright.compiler.targets.target import Target
from tilewright.compiler.timings import Timings, timed

if TYPE_CHECKING:
    from typing import TypeAlias

    import onnx

    ModelSource: TypeAlias = str | Path | bytes | onnx.ModelProto | ReadModel

SPARE = 8
"""Size of the block of packed weights that all programs of a model with dynamic dimensions share,
as a multiple of the size that the first program needs. Most programs pack weights alike, and
untouched pages take no memory."""


def load_graph(
    model: ModelSource, dims: Mapping[str, SizeRange] | None = None, timings: Timings | None = None
) -> Graph:
    """Import an ONNX model as a graph.

    `dims` maps names of dimensions to a fixed size or a range.

    Raises:
        InvalidModelError: if `model` is not a valid model.
        UnsupportedOperatorError: if the model uses an operator that is not implemented.
    """
    with timed(timings, "import"):
        return import_model(model, dims or {})


def load_for(
    model: ModelSource,
    dims: Mapping[str, int],
    mode: Mode,
    timings: Timings | None = None,
) -> Graph:
    """Import an ONNX model with a fixed size for each named dimension.

    If one of these dimensions is a large batch, the graph loops over slices of the batch, each so
    small that its data fit into the target's caches (`compiler.program.sliced_batch`).

    Raises:
        CompilerError: if the model is invalid, or uses an operator that is not implemented.
    """
    read = read_model(model)
    leading = [shape[0] for shape in model_ports(read.proto.graph).inputs.values() if shape]
    names = [name for name in dict.fromkeys(leading) if isinstance(name, str) and name in dims]
    large = any(dims[name] >= LEAST_BATCH for name in names)
    if not large or mode.target.family.modules:  # a web page runs no functions of the C runtime
        return load_graph(read, dims, timings)
    if read is not model:
        read = with_tensors(read)  # shared by the graphs
    graph = load_graph(read, dims, timings)
    budget = cache_budget(mode.target.core)
    for name in names:
        batch = dims[name]
        if not may_outgrow(graph, batch, budget):
            continue
        try:
            whole = load_graph(read, {**dims, name: Dimension(name, 1, batch)}, timings)
            optimised = optimise(whole, mode, timings=timings)
            plan = make_plan(optimised, replace(mode, in_place=False), timings)
            slices = slices_of(plan, mode.target.core)
        except OutOfMemoryError:
            raise
        except CompilerError:
            continue  # the code depends on the size: it compiles in one piece
        if slices is None or not has_plain_ports(plan):
            continue
        each = slice_of(batch, slices)
        if each is not None:
            return in_slices(graph, whole.at({name: each}))
    return graph


def optimise(
    graph: Graph,
    mode: Mode,
    observer: Observer | None = None,
    timings: Timings | None = None,
    choice: GraphChoice = RULE,
) -> Graph:
    """Run the graph passes that suit the target, and return the optimised graph.

    The first pass replaces 16-bit float operations by float32. The last pass stores values in a
    16-bit float type if `mode.precision` is such a type, or if the model itself multiplies in one.

    Args:
        graph: the imported graph.
        mode: the target and the precision.
        observer: a function that is called with the name of each pass and the graph after it.
        timings: records the time of each pass.
        choice: additional passes to run although they do not suit the target, and passes to skip.
            By default, none.

    Raises:
        CompilerError: if a finite weight becomes infinite in the 16-bit type.
    """
    without = choice.without | (unsuited_passes(mode.target) - choice.including)
    precision = DType(mode.precision)
    target = mode.target
    lookup_operations = target.lookup_operations
    return run_passes(
        graph, observer, timings, without, target.factor, lookup_operations, precision
    )


def unsuited_passes(target: Target) -> frozenset[str]:
    """Return the names of graph passes that do not make models faster on a target.

    The passes for products of quantised values are among them if the target multiplies 8-bit
    integers no faster than float32. The pass for lookup tables is among them if a lookup takes
    longer on the target than a costly function.
    """
    suited = {
        quantised_products: target.multiplies_bytes,
        quantised_activation_products: target.multiplies_bytes,
        lookup_tables: target.lookup_operations is not None,
    }
    return frozenset(step.__name__ for step, suits in suited.items() if not suits)


def make_plan(
    graph: Graph,
    mode: Mode,
    timings: Timings | None = None,
    choice: GraphChoice = RULE,
) -> GraphPlan:
    """Partition an optimised graph into workloads (fused subgraphs), and return the plan.

    The plan also states how each value is stored: its layout, and its halo (a border of zeros, if
    any). `choice` replaces decisions of the default rules, such as the layout in which a workload
    reads a value.

    Raises:
        CompilerError: if `choice` does not fit the graph.
    """
    with timed(timings, "partition"):
        assign = partial(assign_layouts, weight_macs=mode.target.core.weight_macs)
        graph, growing = growing_caches(graph) if mode.in_place else (graph, ())
        plan = plan_graph(graph, mode.target.lanes(DType.FLOAT32), assign, choice)
        return replace(plan, growing=growing)


def compile_plan(
    plan: GraphPlan,
    schedules: ScheduleSource | None,
    mode: Mode,
    weight_limit_bytes: int | None = None,
    timings: Timings | None = None,
) -> Executable:
    """Compile a graph plan, load its code into this process, and return it as an executable.

    A graph plan divides a graph into workloads (fused subgraphs). `schedules` supplies tuned
    schedules; workloads without a tuned schedule get a default schedule.

    Raises:
        CompilerError: if the target does not run on this machine, or a workload does not compile.
    """
    check_runs_here(mode.target)
    compiled = build_program(plan, schedules, mode, weight_limit_bytes, timings)
    return load_program(compiled, mode.threads, timings)


def load_program(
    compiled: CompiledProgram, threads: int = 1, timings: Timings | None = None
) -> Executable:
    """Load a compiled program's code into this process, and return it as an executable.

    `threads` is the number of threads per run.
    """
    with timed(timings, "load"):
        library = backend_of(compiled.target).load(compiled.objects)
        return Executable(compiled.program, compiled.weights, library.address, threads, library)


def compile_with(model: ModelSource, options: CompileOptions, into: Path | None = None) -> Model:
    """Compile a model as `compile_model` does, but without the compilation cache.

    With a folder `into`, a model with one program is also saved there as an artifact, and its code
    and weights are loaded from there. Nothing is saved if no linker is found or the folder cannot
    be written.
    """
    return compile_read(reading(model, options), options, into)


def compile_read(read: list[ReadModel], options: CompileOptions, into: Path | None = None) -> Model:
    """Compile the model in the list that `reading` returned; otherwise like `compile_with`.

    The list is emptied as soon as the model is imported, so that the memory of its protobuf message
    can be freed.
    """
    try:
        return _compile_whole(read, options, into)
    except UnsupportedOperatorError as error:
        if not error.waits_for:
            raise
    return _compile_staged(read.pop(), options)


def compile_whole(
    model: ModelSource, options: CompileOptions | None = None
) -> Executable | GuardedModel:
    """Compile a model as `compile_model` does, without dividing it into segments.

    `compile_model` divides a model into segments, which are compiled separately, if a tensor size
    or a branch depends on computed data.

    Raises:
        UnsupportedOperatorError: if the model must be divided into segments, in which case the
            error's `waits_for` is not empty, or if it uses an operator that is not implemented.
        CompilerError: if the model or the options are invalid.
    """
    options = options or CompileOptions()
    return _compile_whole(reading(model, options), options)


def reading(model: ModelSource, options: CompileOptions) -> list[ReadModel]:
    """Read a model, and return it in a list of one element, for `compile_read`.

    `compile_read` empties the list as soon as the model is imported. The memory of the protobuf
    message is then freed, because the caller holds no reference to it.

    Raises:
        CompilerError: if an option is invalid, or the model cannot be read.
    """
    check_runs_here(options.mode.target)  # fail before a large file is read
    with timed(options.timings, "read"), enough_memory_for("to read the model"):
        read = read_model(model)
    # the caller may use its message again
    return [replace(read, is_own=False) if read is model else read]


def _closed_and_open(
    source: ReadModel, options: CompileOptions
) -> tuple[dict[str, Dimension], dict[str, int], ModelPorts]:
    """Return the ranges and the fixed sizes of a model's named dimensions, and the model's ports.

    The first two results map names of dimensions to ranges and to sizes. A range of one size is a
    fixed size. The ports are the model's inputs and outputs, with the fixed sizes filled in.
    """
    ranges = check_dims(source.proto.graph, options.dims)
    given = {name: dynamic_size(d) for name, d in ranges.items() if d.low == d.high}
    return ranges, given, model_ports(source.proto.graph).fixed(given)


def _compile_staged(source: ReadModel, options: CompileOptions) -> GuardedModel:
    ranges, _, ports = _closed_and_open(source, options)
    return _staged(source, ports, ranges, options)


def _staged(
    source: ReadModel, ports: ModelPorts, ranges: Mapping[str, Dimension], options: CompileOptions
) -> GuardedModel:
    def compiling() -> Callable[[Graph, bool], Executable]:
        """Return a function that compiles the segments after one segment boundary.

        A boundary divides a model where later sizes depend on computed data. Several segments may
        be compiled for the part after the boundary, each for different sizes. They share packed
        weights. The returned function takes a segment's graph, and whether each combination of
        sizes gets its own program.
        """
        builders = {each: _builder(options, any_rows=each) for each in (False, True)}
        return lambda graph, each_size: _executable(
            options, graph, builders[each_size], None, SPARE
        )

    segment_compiler = SegmentCompiler(compiling)
    first = segment_compiler.first(source, ports, ranges)
    if not ports.open:
        segment_compiler.make(first, SegmentGuard(), {})

    def part(inputs: Mapping[str, Dims]) -> GuardedModel:
        known = first.reads.with_dims(inputs).ranges
        return _staged(source, replace(ports, inputs=inputs), known, options)

    return GuardedModel(ports, first, segment_compiler.make, part)


def _compile_whole(
    read: list[ReadModel], options: CompileOptions, into: Path | None = None
) -> Executable | GuardedModel:
    """Compile the model in the list `read`, and remove the model from the list after the import."""
    timings = options.timings
    ranges, given, ports = _closed_and_open(read[0], options)
    hints = hinted_shares({name: [size] for name, size in options.dims.items()})
    builder = _builder(options, any_rows=bool(ports.open))
    if not ports.open:
        with enough_memory_for("to compile the model"):
            # The message and the graph read from it are each as large as the weights: each is freed
            # when the next one is built.
            if given:
                read[0] = with_tensors(read[0])
            graphs = [_fixed(read[0], given, options)]
            read.clear()
            return _executable(options, graphs.pop(), builder, given, 1, into)

    with timed(timings, "read"), enough_memory_for("to read the model"):
        read[0] = source = with_tensors(read[0])

    first = SegmentBoundary[Executable](_reads(source, ports, ranges, hints), whole=True)
    first.own = frozenset(first.reads.at(dict(sizes)) for sizes in options.own_sizes)
    saving = [into]

    def compiled(facts: SegmentGuard) -> ModelSegment[Executable]:
        sizes = {**given, **dict(facts.sizes)}
        with enough_memory_for("to compile the model"):
            if facts.open:
                graph = load_graph(source, {**sizes, **{d.name: d for d in facts.open}}, timings)
                program = _executable(options, graph, builder, sizes, SPARE, saving[0], ports)
            else:
                graph = _fixed(source, sizes, options)
                program = _executable(options, graph, builder, sizes, SPARE)
        return ModelSegment(program, tuple(ports.outputs), None)

    def make(
        cut: SegmentBoundary[Executable], facts: SegmentGuard, values: Mapping[str, Array]
    ) -> ModelSegment[Executable] | None:
        exact = cut.reads.exact(values) if facts.open else facts
        try:
            return make_segment(cut, facts, exact, lambda: compiled(facts))
        except InvalidModelError as error:
            text = sizes_text(tuple(sorted(facts.sizes)))
            raise InvalidModelError(f"at {text}: {error}") from error

    known = {**first.reads.defaults, **ranges}
    sizes = size_hints(ports, known.values())
    sizes |= {name: max(shares, key=shares.__getitem__) for name, shares in hints.items()}
    make_first_segment(first, make, sizes)
    saving[0] = None
    if not first.made:
        other = {name: d for name, d in known.items() if name not in given}
        refused = invalid_everywhere(
            {name: d if name in ranges else replace(d, high=None) for name, d in other.items()},
            lambda sizes: load_graph(source, {**given, **sizes}),
        )
        if refused is not None:
            raise refused
        try:
            load_graph(source, {**given, **sizes})
        except UnsupportedOperatorError as error:
            if error.waits_for:  # fixed sizes do not determine the data
                raise
        except CompilerError:
            pass  # other sizes may compile
    return GuardedModel(ports, first, make)


def _reads(
    source: ReadModel,
    ports: ModelPorts,
    ranges: Mapping[str, Dimension],
    hints: Shares,
) -> LiveIns:
    """Return the inputs of a model, with the ranges of their dynamic dimensions.

    `ranges` are the ranges that the user stated; other dimensions get default ranges. `hints` are
    the size hints (typical sizes) of each dimension. Each hint has the fraction of all runs that
    use this size.
    """
    graph = source.proto.graph
    free = free_dimensions(graph)
    defaults = default_ranges((n for n in ports.open if n in free and n not in ranges), hints)
    for name in cache_lengths(graph) & defaults.keys():
        defaults[name] = replace(defaults[name], low=0)
    derived = frozenset(ports.open) - ranges.keys() - defaults.keys()
    return LiveIns(input_live_ins(graph, ports), ranges, defaults, derived)


def _fixed(source: ReadModel, sizes: Mapping[str, int], options: CompileOptions) -> Graph:
    """Import a model with the fixed sizes `sizes` of its named dimensions."""
    return load_for(source, sizes, options.mode, options.timings)


def _builder(options: CompileOptions, *, any_rows: bool) -> ProgramBuilder:
    """Return a builder for the programs of one model, or of one segment (a part of a model).

    A workload is a fused subgraph. With `any_rows`, each workload without a tuned schedule gets a
    schedule whose code and packed weights serve any number of rows. Programs for different sizes
    can then share the code and the weights.
    """
    return ProgramBuilder(
        options.schedules,
        options.mode,
        options.weight_limit_bytes,
        options.timings,
        any_rows=any_rows,
        kernels=options.kernels,
    )


def _executable(
    options: CompileOptions,
    graph: Graph,
    builder: ProgramBuilder,
    sizes: Mapping[str, int] | None,
    spare: int,
    into: Path | None = None,
    ports: ModelPorts | None = None,
) -> Executable:
    """Plan, build and load an imported graph, and return it as an executable.

    Args:
        options: the options of the compilation.
        graph: the imported graph.
        builder: builds the program.
        sizes: the fixed sizes of named dimensions, for the planner.
        spare: the size of the memory block for packed weights, as a multiple of the size that this
            program needs. Later programs of the model store their packed weights in the rest.
        into: a folder in which the program is saved as an artifact, and from which it is loaded. If
            it cannot be linked or written, the program runs from memory.
        ports: inputs and outputs of the model, for the artifact.
    """
    timings = options.timings
    if options.planner is not None:
        plan = options.planner(graph, sizes)
    else:
        optimised = optimise(graph, options.mode, timings=timings)
        plan = make_plan(optimised, options.mode, timings)
    del graph
    loaded: list[Executable] = []

    def load(made: Artifact) -> None:
        loaded.append(made.executable(options.mode.threads))

    if into is not None:
        with suppress(ArtifactError, LinkerError):
            save_artifact({(): plan}, builder, into, ports, timings, load)
            return loaded.pop()
    return load_program(builder.build(plan, spare), options.mode.threads, timings)
