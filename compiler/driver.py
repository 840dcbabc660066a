"""The whole compiler as one readable column.

ONNX -> load_graph -> optimise -> make_plan -> build_program -> Executable | artifact folder
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from compiler.build import build_kernel, lower_workload
from compiler.choices import RULE, GraphChoice
from compiler.codegen.backend import backend_of
from compiler.dtypes import DType
from compiler.errors import (
    CompilerError,
    InvalidArgumentError,
    OutOfMemoryError,
    UnsupportedOperatorError,
    enough_memory_for,
)
from compiler.frontend.dimensions import check_dims, free_dimensions, model_ports
from compiler.frontend.model_file import ReadModel, read_model, with_tensors
from compiler.frontend.onnx_import import import_model
from compiler.graph.ir import Graph
from compiler.local import check_runs_here
from compiler.partition import plan_graph
from compiler.passes.byte_tables import byte_tables
from compiler.passes.dead_code import dead_code
from compiler.passes.growing_caches import growing_caches
from compiler.passes.layouts import assign_layouts
from compiler.passes.narrow import narrow
from compiler.passes.pipeline import Observer
from compiler.passes.pipeline import optimise as run_passes
from compiler.passes.quantised_pairs import quantised_pairs
from compiler.passes.quantised_products import quantised_products
from compiler.passes.widen import multiplied_type, widen
from compiler.plan import GraphPlan
from compiler.program_builder import (
    CompiledProgram,
    KernelCache,
    ProgramBuilder,
    ScheduleSource,
    build_program,
)
from compiler.ranges import SizeRange, default_range, narrower_text, within_defaults
from compiler.runtime.executable import Executable
from compiler.runtime.native import check_threads
from compiler.runtime.ports import OpenPorts, Sizes
from compiler.runtime.sized import SizedExecutable
from compiler.sizes import Dimension, open_size, typical
from compiler.staged import TAKEN_FOR_NUMBERS, StagedExecutable
from compiler.target import Target, resolve_target
from compiler.timings import Timings, timed

if TYPE_CHECKING:
    from typing import TypeAlias

    import onnx

    Model: TypeAlias = str | Path | bytes | onnx.ModelProto | ReadModel

NUMERICS = ("fast", "strict", "loose")

PRECISIONS = (DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)
"""What values between products are stored as, and products formed of."""

ModelPlanner = Callable[[Graph, "Mapping[str, int] | None"], GraphPlan]
"""Makes the plan of an imported graph, given the sizes of the model's named dimensions; those with
a range are the graph's. None is for a stage of a model that is cut."""

SPARE = 8
"""A model with open dimensions has one block of weights for all sizes. The block is so many times
as large as the first sizes need. Most sizes pack weights alike, and untouched pages take no
memory."""


def load_graph(
    model: Model, dims: Mapping[str, SizeRange] | None = None, timings: Timings | None = None
) -> Graph:
    """Import an ONNX model; `dims` fixes its named dimensions, or gives them ranges.

    Raises:
        InvalidModelError: if it is no valid model.
        UnsupportedOperatorError: if it uses an operator that is not implemented.
    """
    with timed(timings, "import"):
        return import_model(model, dims or {})


def optimise(
    graph: Graph,
    target: Target,
    numerics: str = "fast",
    observer: Observer | None = None,
    timings: Timings | None = None,
    choice: GraphChoice = RULE,
    precision: str = DType.FLOAT32,
) -> Graph:
    """Run the graph passes that suit the target, or that `choice` includes, and that it does not
    leave out.

    `observer` sees the graph after each. The last one makes values narrow, where `precision` asks
    for it. A model that multiplies in a 16-bit float keeps that one: it is widened first.

    Raises:
        CompilerError: if `numerics` is none of NUMERICS, `precision` none of PRECISIONS, or a
            weight is infinite in that.
    """
    check_numerics(numerics)
    check_precision(precision)
    without = choice.without | (unsuited_passes(target) - choice.including)
    stored = DType(precision)
    own = multiplied_type(graph)
    if own is not None:
        stored = own
        with timed(timings, "pass widen"):
            graph = widen(graph, own)
        if observer is not None:
            observer(widen.__name__, graph)
    graph = run_passes(graph, observer, timings, without, target.factor)
    if stored is DType.FLOAT32:
        return graph
    with timed(timings, "pass narrow"):
        graph = dead_code(narrow(graph, stored))
    if observer is not None:
        observer(narrow.__name__, graph)
    return graph


def unsuited_passes(target: Target) -> frozenset[str]:
    """The names of passes whose kernels need instructions that the target lacks."""
    suited = {
        quantised_products: target.multiplies_bytes,
        quantised_pairs: target.multiplies_bytes,
        byte_tables: target.lookup is not None,
    }
    return frozenset(step.__name__ for step, suits in suited.items() if not suits)


def make_plan(
    graph: Graph,
    target: Target,
    numerics: str = "fast",
    timings: Timings | None = None,
    choice: GraphChoice = RULE,
    *,
    in_place: bool = True,
) -> GraphPlan:
    """Cut an optimised graph into workloads, with layouts and halos between them.

    `in_place`: whether caches that grow are buffers with room, which a session knows to fill.

    Raises:
        CompilerError: if `numerics` is none of NUMERICS, or `choice` does not fit the graph.
    """
    check_numerics(numerics)
    with timed(timings, "partition"):
        assign = partial(assign_layouts, weight_macs=target.core.weight_macs)
        graph, growing = growing_caches(graph) if in_place else (graph, ())
        plan = plan_graph(graph, target.lanes(DType.FLOAT32), assign, choice)
        return replace(plan, growing=growing)


def compile_plan(
    plan: GraphPlan,
    schedules: ScheduleSource | None,
    target: Target,
    threads: int = 1,
    numerics: str = "fast",
    weight_limit_bytes: int | None = None,
    timings: Timings | None = None,
) -> Executable:
    """Compile a plan for this process, with the best schedules that are known.

    Raises:
        CompilerError: if the target does not run on this machine, or a workload does not compile.
    """
    compiled = build_program(
        plan, schedules, check_runs_here(target), threads, numerics, weight_limit_bytes, timings
    )
    return load_program(compiled, threads, timings)


def load_program(
    compiled: CompiledProgram, threads: int = 1, timings: Timings | None = None
) -> Executable:
    """Load a compiled program's code into this process."""
    with timed(timings, "load"):
        library = backend_of(compiled.target).load(compiled.objects)
        return Executable(compiled.program, compiled.weights, library.address, threads, library)


def compile_model(
    model: Model,
    target: str = "host",
    threads: int = 1,
    dims: Mapping[str, SizeRange] | None = None,
    schedules: ScheduleSource | None = None,
    numerics: str = "fast",
    weight_limit_bytes: int | None = None,
    timings: Timings | None = None,
    planner: ModelPlanner | None = None,
    precision: str = DType.FLOAT32,
) -> Executable | SizedExecutable | StagedExecutable:
    """Compile an ONNX model for this machine; what the options mean, `CompileOptions` says.

    If dimensions stay open, one program serves all sizes of their ranges; those without a range
    have 1 to 4096, or less if the model needs it. Where no such program can be made
    (`SizedExecutable.reason`), and for sizes outside of a range that nobody gave, the executable
    compiles when it first meets them, and keeps what it made (`SizedExecutable.made`).

    If the data decide a size, or a branch, that other nodes have to know, the model is cut there: a
    program runs from cut to cut (`StagedExecutable`).

    Args:
        model: a path, the bytes of a model, or a ModelProto.

    Raises:
        CompilerError: naming what is wrong with the model or the options.
    """
    return compile_with(
        model,
        CompileOptions(
            target,
            threads,
            dims or {},
            schedules,
            numerics,
            weight_limit_bytes,
            timings,
            planner,
            precision,
        ),
    )


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """How a model is compiled for this process.

    Attributes:
        target: `host`, or the name of a described target that this machine can run.
        threads: threads that a run uses, the calling one included.
        dims: sizes of named dimensions: a number, or a range such as "1..512", "32..640:32" or
            range(1, 513). The sizes that a run may have are within the range.
        schedules: where tuned schedules are looked up; None compiles with the defaults.
        numerics: "strict" turns off algorithms that change rounding (Winograd, Strassen), "loose"
            lets the search use those that lose more than a digit (Winograd's F(6)).
        weight_limit_bytes: most memory that packed weights may take; algorithms that expand them
            (Winograd, Strassen) give way first.
        timings: counts the time of every stage.
        planner: makes the plans instead of the rules. It makes each plan before the schedules of
            that plan's workloads are looked up.
        precision: "bfloat16" or "float16" store the values of a float32 model between its first and
            its last product in 16 bits, and multiply them so; sums, normalisations, inputs and
            outputs stay float32. A planner has its own.
        own_sizes: sizes of open dimensions that are compiled for their own sake when they are first
            met, though they are within the ranges.
    """

    target: str = "host"
    threads: int = 1
    dims: Mapping[str, SizeRange] = field(default_factory=dict)
    schedules: ScheduleSource | None = None
    numerics: str = "fast"
    weight_limit_bytes: int | None = None
    timings: Timings | None = None
    planner: ModelPlanner | None = None
    precision: str = DType.FLOAT32
    own_sizes: Collection[Sizes] = ()

    def machine(self) -> Target:
        """The target. Raises CompilerError if it does not run here, or an option is impossible."""
        check_numerics(self.numerics)
        check_precision(self.precision)
        check_threads(self.threads)
        return check_runs_here(resolve_target(self.target))

    def builder(self, *, any_rows: bool) -> ProgramBuilder:
        """What builds the programs of one model, or of one stage. Raises as `machine` does."""
        return ProgramBuilder(
            self.schedules,
            self.machine(),
            self.threads,
            self.numerics,
            self.weight_limit_bytes,
            self.timings,
            any_rows=any_rows,
        )

    def executable(
        self, graph: Graph, builder: ProgramBuilder, sizes: Mapping[str, int] | None, spare: int
    ) -> Executable:
        """Plan, build and load an imported graph; `sizes` are those that a planner is told."""
        if self.planner is not None:
            plan = self.planner(graph, sizes)
        else:
            target, timings = builder.target, self.timings
            optimised = optimise(
                graph, target, self.numerics, timings=timings, precision=self.precision
            )
            plan = make_plan(optimised, target, self.numerics, timings)
        del graph
        return load_program(builder.build(plan, spare), self.threads, self.timings)


def compile_with(
    model: Model, options: CompileOptions
) -> Executable | SizedExecutable | StagedExecutable:
    """As `compile_model`, with all options as one value."""
    reading = _reading(model, options)
    try:
        return _compile_whole(reading, options)
    except UnsupportedOperatorError as error:
        if not error.waits_for:
            raise
    return _compile_staged(reading.pop(), options)


def compile_whole(
    model: Model, options: CompileOptions | None = None
) -> Executable | SizedExecutable:
    """As `compile_model`, without a cut.

    Raises:
        CompilerError: as that does; one that says what it waits for
            (`UnsupportedOperatorError.waits_for`) if the model must be cut.
    """
    options = options or CompileOptions()
    return _compile_whole(_reading(model, options), options)


def _reading(model: Model, options: CompileOptions) -> list[ReadModel]:
    """A list with the model's message, so that who takes it out frees the memory."""
    options.machine()  # what is impossible is said before a large file is read
    with timed(options.timings, "read"), enough_memory_for("to read the model"):
        read = read_model(model)
    # what the caller has read may be used again
    return [replace(read, is_own=False) if read is model else read]


def _closed_and_open(
    source: ReadModel, options: CompileOptions
) -> tuple[dict[str, Dimension], dict[str, int], OpenPorts]:
    """The ranges of the options, the sizes among them, and the ports with these sizes."""
    ranges = check_dims(source.proto.graph, options.dims)
    given = {name: open_size(d) for name, d in ranges.items() if d.low == d.high}
    return ranges, given, model_ports(source.proto.graph).fixed(given)


def _compile_staged(source: ReadModel, options: CompileOptions) -> StagedExecutable:
    ranges, _, ports = _closed_and_open(source, options)

    def compiling() -> Callable[[Graph], Executable]:
        """What compiles the graphs of one stage, which have their packed weights in common."""
        builder = options.builder(any_rows=True)
        return lambda graph: options.executable(graph, builder, None, SPARE)

    return StagedExecutable(source, ports, ranges, compiling)


def _compile_whole(
    reading: list[ReadModel], options: CompileOptions
) -> Executable | SizedExecutable:
    """The model of `reading`, out of which it is taken once it is imported."""
    timings = options.timings
    ranges, given, ports = _closed_and_open(reading[0], options)
    builder = options.builder(any_rows=bool(ports.open))
    if not ports.open:
        with enough_memory_for("to compile the model"):
            # The message and the graph read from it are each as large as the weights: each is freed
            # when the next one is made.
            graphs = [load_graph(reading[0], given, timings)]
            reading.clear()
            return options.executable(graphs.pop(), builder, given, 1)

    with timed(timings, "read"), enough_memory_for("to read the model"):
        reading[0] = source = with_tensors(reading[0])

    def made(sizes: Sizes) -> Executable:
        with enough_memory_for("to compile the model"):
            whole = {**given, **dict(sizes)}
            return options.executable(load_graph(source, whole, timings), builder, whole, SPARE)

    def for_ranges() -> tuple[Executable | None, str]:
        """A program for all sizes of the ranges, or the reason why there is none."""
        unstated = free_dimensions(source.proto.graph)
        absent = [n for n in ports.fixed(dict.fromkeys(ranges, 1)).open if n in unstated]

        def within(defaults: Mapping[str, Dimension]) -> Executable:
            whole: dict[str, SizeRange] = {**ranges, **defaults}
            return options.executable(load_graph(source, whole, timings), builder, given, SPARE)

        try:
            with enough_memory_for("to compile the model"):
                return within_defaults(absent, within), ""
        except OutOfMemoryError:
            raise
        except CompilerError as error:  # each size may still compile
            return None, f"{error}{narrower_text(ranges, error)}"
        except TAKEN_FOR_NUMBERS as error:
            what = f"a size is taken for a number ({type(error).__name__}: {error})"
            return None, f"a fault of the compiler, {what}"

    ranged, reason = for_ranges()
    if ranged is None:
        sizes = {n: ranges.get(n, default_range(n)) for n in free_dimensions(source.proto.graph)}
        try:
            load_graph(source, {**given, **{n: typical(open_size(d)) for n, d in sizes.items()}})
        except UnsupportedOperatorError as error:
            if error.waits_for:  # no size says what the data decide
                raise
        except CompilerError:
            pass  # other sizes may compile
    own = options.own_sizes
    return SizedExecutable(ports, made, ranges=ranges, ranged=ranged, reason=reason, own=own)


def check_numerics(numerics: str) -> None:
    """Raises InvalidArgumentError unless it is one of NUMERICS."""
    if numerics not in NUMERICS:
        raise InvalidArgumentError(f"numerics is '{numerics}', known are {', '.join(NUMERICS)}")


def check_precision(precision: str) -> None:
    """Raises InvalidArgumentError unless it is one of PRECISIONS."""
    if precision not in PRECISIONS:
        raise InvalidArgumentError(f"precision is '{precision}', known are {', '.join(PRECISIONS)}")


__all__ = [
    "CompileOptions",
    "KernelCache",
    "ProgramBuilder",
    "ScheduleSource",
    "build_kernel",
    "build_program",
    "check_numerics",
    "check_precision",
    "compile_model",
    "compile_plan",
    "compile_whole",
    "compile_with",
    "load_graph",
    "load_program",
    "lower_workload",
    "make_plan",
    "optimise",
]
