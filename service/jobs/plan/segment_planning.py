"""Plans models whose sizes depend on data: a plan for each program of such a model.

Such a model is divided into segments (called stages in the code): programs that run one after the
other. Tuning, timing and verification treat the segments like the plans of a model at several
sizes. Each segment is a program that is verified separately.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tilewright.compiler import driver
from tilewright.compiler.errors import CompilerError, InvalidArgumentError, UnsupportedOperatorError
from tilewright.compiler.frontend.dimensions import check_dims, free_dimensions, model_ports
from tilewright.compiler.frontend.model_file import read_model
from tilewright.compiler.graph.ir import Graph
from tilewright.compiler.passes.pipeline import Observer
from tilewright.compiler.program.builder import ProgramBuilder
from tilewright.compiler.program.kernels import KernelCache
from tilewright.compiler.runtime.segments import ModelSegment, SegmentBoundary
from tilewright.compiler.sizes import DynamicSizeError, dynamic_size, typical
from tilewright.compiler.sizes.hinted_ranges import as_hinted, hinted_shares
from tilewright.compiler.sizes.ranges import default_range, default_ranges
from tilewright.compiler.specialise.enumerate import enumerate_segments
from tilewright.compiler.specialise.jit import JitBoundary, SegmentCompiler
from tilewright.compiler.timings import Timings
from tilewright.service.jobs.inputs.given_inputs import most_frequent
from tilewright.service.jobs.plan.planning import (
    DynamicPlan,
    ModelRequest,
    Planned,
    SizeChoice,
    plan_first_sizes,
    plan_sizes,
    planned_for_ranges,
    profiled,
)
from tilewright.tuner.random_sizes import check_hinted


def plan_programs(
    request: ModelRequest,
    dims: Mapping[str, Sequence[SizeChoice]],
    observer: Observer | None = None,
    timings: Timings | None = None,
    kernels: KernelCache | None = None,
) -> tuple[Planned, ...]:
    """Plan all programs of a model: one per size, or one per segment if sizes depend on data.

    The segments of a model are programs that run one after the other (`plan_segments`). A model
    without data-dependent sizes is planned by `plan_sizes`.

    Args:
        request: the model and its mode (target, threads, numerics and precision).
        dims: the sizes, ranges and size hints of each named dimension.
        observer: receives the graph after each pass; not called for segments.
        timings: receives the seconds of each step.
        kernels: the cache of compiled kernels.

    Raises:
        CompilerError: if the model or the target is invalid or not supported, the sizes cannot be
            planned together, or the segments cannot be enumerated ahead of time.
    """
    try:
        return plan_sizes(request, dims, observer, timings)
    except CompilerError as error:
        if not _must_be_cut(request, dims, error):
            raise
    return plan_segments(request, dims, timings, kernels)


def plan_first_program(
    request: ModelRequest,
    dims: Mapping[str, Sequence[SizeChoice]],
    observer: Observer | None = None,
    timings: Timings | None = None,
) -> Planned:
    """Return the first plan of `plan_programs`, without generating code.

    Raises:
        CompilerError: if the model or the target is invalid or not supported. Errors in later
            programs are not found.
    """
    try:
        return plan_first_sizes(request, dims, observer, timings)
    except CompilerError as error:
        if not _must_be_cut(request, dims, error):
            raise
    return plan_first_stage(request, dims)


def _must_be_cut(
    request: ModelRequest, dims: Mapping[str, Sequence[SizeChoice]], error: CompilerError
) -> bool:
    """Whether a model must be divided into several programs, because data determine its sizes.

    Args:
        request: the model and its mode (target, threads, numerics and precision).
        dims: the sizes, ranges and expected sizes of each named dimension.
        error: the error of the import of the whole model.
    """
    if isinstance(error.__cause__, DynamicSizeError):
        names = free_dimensions(read_model(request.model).proto.graph)
        given = {n: as_hinted(n, dims[n][0]).dimension for n in names if n in dims}
        ranges = {n: given.get(n) or default_range(n) for n in names}
        sizes = {n: typical(dynamic_size(d)) for n, d in ranges.items()}
        try:
            driver.load_graph(request.model, sizes)
        except CompilerError as found:
            error = found
    return isinstance(error, UnsupportedOperatorError) and bool(error.waits_for)


def plan_segments(
    request: ModelRequest,
    dims: Mapping[str, Sequence[SizeChoice]],
    timings: Timings | None = None,
    kernels: KernelCache | None = None,
) -> tuple[Planned, ...]:
    """Plan all segments of a model whose sizes depend on data.

    Segments are programs that run one after the other. Each segment is compiled, because only
    compilation shows the range of sizes that it supports.

    Args:
        request: the model and its mode (target, threads, numerics and precision).
        dims: a size or range for each named dimension.
        timings: receives the seconds of each step.
        kernels: the cache of compiled kernels.

    Returns:
        the plans; the attribute `stage` of each plan is its position.

    Raises:
        CompilerError: if the model or the target is invalid or not supported, a dimension has
            several sizes, or the segments cannot be enumerated ahead of time.
    """
    segment_compiler, first = _beginning(request, dims, timings, kernels, build=True)
    enumerate_segments(segment_compiler, first)
    plans: list[Planned] = []
    stages = _numbered(first, plans)
    return tuple(
        replace(planned, stages=stages, stage=number) for number, planned in enumerate(plans)
    )


def plan_first_stage(request: ModelRequest, dims: Mapping[str, Sequence[SizeChoice]]) -> Planned:
    """Return the plan of a model's first segment that has kernels, without generating code.

    The segments of a model with data-dependent sizes are programs that run one after the other.

    Raises:
        CompilerError: if the model or the target is invalid or not supported, or a dimension has
            several sizes. Errors in later segments are not found.
    """
    segment_compiler, first = _beginning(request, dims, None, None, build=False)
    plans: list[Planned] = []
    enumerate_segments(segment_compiler, first, behind=False)
    stages = _numbered(first, plans)
    if not plans:  # every kernel comes after the first data-dependent size
        enumerate_segments(segment_compiler, first)
        stages = _numbered(first, plans)
    return replace(plans[0], stages=stages)


def _beginning(
    request: ModelRequest,
    dims: Mapping[str, Sequence[SizeChoice]],
    timings: Timings | None,
    kernels: KernelCache | None,
    *,
    build: bool,
) -> tuple[SegmentCompiler[Planned], JitBoundary[Planned]]:
    """Return a planner of segments, and the boundary in the model before the first segment.

    The segments of a model with data-dependent sizes are programs that run one after the other.
    This function plans no segment.

    Args:
        request: the model and its mode (target, threads, numerics and precision).
        dims: a size or range for each named dimension.
        timings: receives the seconds of each step.
        kernels: the cache of compiled kernels.
        build: whether the planner also compiles each segment.
    """
    for name, listed in dims.items():
        if len(listed) > 1:
            raise InvalidArgumentError(
                f"the data decide sizes of this model, and dimension '{name}' has {len(listed)} "
                "sizes: give it one, or a range"
            )
    source = read_model(request.model)
    ranges = check_dims(source.proto.graph, {name: listed[0] for name, listed in dims.items()})
    given = {name: dynamic_size(d) for name, d in ranges.items() if d.low == d.high}
    ports = model_ports(source.proto.graph).fixed(given)
    shares = hinted_shares(dims)
    check_hinted(shares, ports.open)
    sampled = request.given.sizes_within(ports.inputs, ranges)
    # a default range reaches as far as hints and samples do
    held = {name: {*sampled.get(name, ()), *shares.get(name, ())} for name in ports.open}
    wide = default_ranges(ports.open, held)
    widened = {name: d for name, d in wide.items() if d != default_range(name)}
    shares = {**most_frequent(sampled), **shares}
    request = replace(request, dims=given)

    def compiling() -> Callable[[Graph, bool], Planned]:
        builder = ProgramBuilder(None, request.mode, kernels=kernels)

        def planned(graph: Graph, each_size: bool) -> Planned:
            optimised = driver.optimise(graph, request.mode, None, timings)
            plan = driver.make_plan(optimised, request.mode, timings)
            if build:
                builder.build(plan)
            if not graph.dimensions:
                return Planned(request, graph, plan)
            known = {d.name for d in graph.dimensions}
            stated = {name: each for name, each in shares.items() if name in known}
            free = [d for d in graph.dimensions if d.name not in ranges]
            open_plan = DynamicPlan(plan, graph, graph.dimensions)
            return planned_for_ranges(request, profiled(open_plan, ports, free, stated))

        return planned

    segment_compiler = SegmentCompiler(compiling)
    return segment_compiler, segment_compiler.first(source, ports, {**widened, **ranges})


def _numbered(cut: SegmentBoundary[Planned], plans: list[Planned]) -> SegmentBoundary[int]:
    """Copy a tree of segments, with numbers in place of plans.

    The segments of a model with data-dependent sizes are programs that run one after the other.

    Args:
        cut: the boundary at which the tree's first segments begin.
        plans: a list to which the plans are appended; each number is an index into this list.

    Returns:
        the same boundary in the copy.
    """
    found = SegmentBoundary[int](cut.reads, cut.ends, reason=cut.reason)
    for facts, stage in cut.made.items():
        number = None
        if stage.program is not None:
            number = len(plans)
            plans.append(stage.program)
        behind = None if stage.behind is None else _numbered(stage.behind, plans)
        found.made[facts] = ModelSegment(number, stage.makes, behind)
    return found
