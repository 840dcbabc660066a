"""Plans a model: imports and optimises the graph, and partitions it into kernels."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod
from pathlib import Path

from tilewright.compiler import driver
from tilewright.compiler.errors import InvalidArgumentError, InvalidModelError
from tilewright.compiler.frontend.dimensions import cache_lengths, check_dims, model_ports
from tilewright.compiler.frontend.model_file import read_model
from tilewright.compiler.graph.ir import Graph
from tilewright.compiler.mode import Mode
from tilewright.compiler.passes.pipeline import Observer
from tilewright.compiler.plan.intervals import pieces
from tilewright.compiler.plan.plan import GraphPlan
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.profile import affordable_hints, size_hints
from tilewright.compiler.program.builder import CompiledProgram
from tilewright.compiler.runtime.ports import Dims, ModelPorts, Sizes
from tilewright.compiler.runtime.segments import SegmentBoundary
from tilewright.compiler.sizes import Dimension, DynamicSizeError, dimensions, dynamic_size, typical
from tilewright.compiler.sizes.hinted_ranges import Shares, as_hinted, hinted_shares, size_choices
from tilewright.compiler.sizes.invalid_ranges import refused_ranges
from tilewright.compiler.sizes.ranges import SizeRange, attempted, default_ranges, within_defaults
from tilewright.compiler.targets.target import Target
from tilewright.compiler.timings import Timings
from tilewright.service.jobs.inputs.given_inputs import NONE_GIVEN, GivenInputs, most_frequent
from tilewright.service.jobs.plan.fitted_ranges import FittedRanges
from tilewright.tuner.random_sizes import SampledSizes, sample_sizes

SizeChoice = int | str
"""A size of a dimension, or a range of sizes as text."""

COMBINATIONS = 64
"""Limit of the combinations of sizes of several dimensions in one artifact."""


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A model, and the mode and sizes for which it is compiled.

    Attributes:
        model: an ONNX file, or its bytes.
        mode: the target, the threads, the numerics and the precision of the generated code.
        dims: the sizes of named dimensions; None to fix no dimension.
        digest: the SHA-256 of the model's bytes; "" if it is unknown.
        given: the inputs that the user gives. Programs are verified on these inputs, and tuned for
            their sizes.
    """

    model: Path | bytes
    mode: Mode = field(default_factory=Mode)
    dims: Mapping[str, int] | None = None
    digest: str = ""
    given: GivenInputs = field(default=NONE_GIVEN, compare=False, repr=False)
    """Input values from the user. Programs are verified on them, and their sizes are hints."""


@dataclass(frozen=True, slots=True)
class DynamicPlan:
    """A plan of a model with dynamic dimensions; its program supports all sizes of the ranges.

    Attributes:
        plan: the plan for all sizes.
        graph: the imported graph.
        ranges: the range of each dynamic dimension.
        defaults: the names of dimensions whose range the user did not give.
        drawn: the combinations of sizes at which kernels are measured.
        stated: whether the measured sizes are those that a user states or samples have; otherwise
            they are sampled from the ranges.
        implied: the ranges of dimensions whose size follows from other dimensions.
        hints: the size of each dimension, by name, at which the model is planned and verified
            first. It is a size that a user states or samples have, or else a size that
            `compiler.profile` selects. A dimension without an entry is planned at a size near the
            middle of its range.
    """

    plan: GraphPlan
    graph: Graph
    ranges: tuple[Dimension, ...]
    defaults: tuple[str, ...] = ()
    drawn: tuple[SampledSizes, ...] = ()
    stated: bool = False
    implied: tuple[Dimension, ...] = ()
    hints: Sizes = ()

    @property
    def hinted(self) -> dict[str, tuple[int, ...]]:
        """The sizes at which kernels are measured, by dimension, without duplicates.

        Only dimensions in `hints`, which have an expected size, are listed.
        """
        rows = [dict(each.sizes) for each in self.drawn]
        return {name: tuple(dict.fromkeys(row[name] for row in rows)) for name, _ in self.hints}

    @property
    def measured(self) -> tuple[SampledSizes, ...]:
        """The combinations of sizes at which kernels are measured, with a size for unused memory.

        The buffer of a growing cache, such as the keys of attention, may have unused rows. The plan
        has a dimension for the number of unused rows. The number is 0 in each combination that does
        not contain it.
        """
        return tuple(
            replace(each, sizes=tuple(self.plan.with_rooms(dict(each.sizes)).items()))
            for each in self.drawn
        )


@dataclass(frozen=True, slots=True)
class Planned:
    """A model partitioned into workloads, at fixed sizes or for ranges of its dynamic dimensions.

    A workload is a fused subgraph, which becomes a kernel. A model with data-dependent sizes is
    divided into segments, programs that run one after the other. It has a `Planned` per segment.

    Attributes:
        request: the model, its mode and its sizes.
        graph: the imported graph before any pass; results are compared with this graph.
        plan: the partition into kernels.
        sizes: the sizes of `graph` and `plan` in the dimensions that have several sizes or a range.
        open: the plan for all sizes of the ranges, from which programs are built; None for fixed
            sizes. If present, `graph` and `plan` have the expected sizes (`DynamicPlan.hints`), at
            which the model is verified.
        stages: the tree of all segments of the model; None for a model without segments.
        stage: the number of the segment to which this plan belongs.
        notes: sentences for the user about dimensions that were fixed to a size.
    """

    request: ModelRequest
    graph: Graph
    plan: GraphPlan
    sizes: Sizes = ()
    """The sizes of `graph` and `plan` in the dimensions that have several sizes or a range."""
    open: DynamicPlan | None = None
    stages: SegmentBoundary[int] | None = field(default=None, repr=False, compare=False)
    """The tree of segments of a model whose sizes depend on data. This plan is for segment number
    `stage`."""
    stage: int = 0
    notes: tuple[str, ...] = ()
    """Sentences for the user about dimensions that were fixed to a size, because no program
    supports a range of sizes."""

    @property
    def mode(self) -> Mode:
        return self.request.mode

    @property
    def target(self) -> Target:
        return self.request.mode.target

    @property
    def workloads(self) -> list[tuple[Workload, int]]:
        """Each workload (a fused subgraph) with the number of its runs in the model.

        If the range of a dimension is split into intervals, each interval has its own workload.
        """
        return self.served_plan.tasks()

    @property
    def untuned(self) -> Mapping[str, Workload]:
        """Map each workload's key to the workload whose default schedule is used before tuning.

        Usually, both are the same workload. If tuning splits the range of a dimension into
        intervals, each interval has its own workload and key. All these keys then map to the
        workload of the whole range, because one kernel is used for the whole range before tuning.
        """
        return {
            piece.workload.key: step.workload
            for step in self.served_plan.kernels
            for piece in pieces(step.workload)
        }

    @property
    def served_plan(self) -> GraphPlan:
        """The plan from which programs are built.

        It is the plan for all sizes of the ranges; for a model without ranges, the plan at fixed
        sizes.
        """
        return self.plan if self.open is None else self.open.plan

    def programs(self, compiled: CompiledProgram) -> tuple[CompiledProgram, ...]:
        """Return the programs to time.

        For a model without dynamic dimensions, the only program is `compiled`. Otherwise, the
        result has a copy of `compiled` for each measured combination of sizes, with these sizes
        fixed.

        Args:
            compiled: the program that was built from `served_plan`.
        """
        if self.open is None:
            return (compiled,)
        return tuple(
            replace(compiled, program=compiled.program.at(dict(drawn.sizes)))
            for drawn in self.open.drawn
        )


def model_digest(model: Path | bytes) -> str:
    """Return the SHA-256 of a model's bytes in hexadecimal, the model's key in the database."""
    if isinstance(model, bytes):
        return hashlib.sha256(model).hexdigest()
    with model.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def plan_model(
    request: ModelRequest, observer: Observer | None = None, timings: Timings | None = None
) -> Planned:
    """Import a model at fixed sizes, and partition it into workloads.

    Args:
        request: the model, its mode and its sizes.
        observer: receives the graph after each pass.
        timings: receives the seconds of each step.

    Raises:
        CompilerError: if the model or the target is invalid or not supported.
    """
    mode = request.mode
    graph = driver.load_for(request.model, dict(request.dims or {}), mode, timings)
    optimised = driver.optimise(graph, mode, observer, timings)
    return Planned(request, graph, driver.make_plan(optimised, mode, timings))


def plan_sizes(
    request: ModelRequest,
    dims: Mapping[str, Sequence[SizeChoice]],
    observer: Observer | None = None,
    timings: Timings | None = None,
) -> tuple[Planned, ...]:
    """Plan a model for ranges of sizes, for fixed sizes, or for both.

    If a dimension has a range, the first plan supports all sizes of the ranges. Then follows a plan
    for each combination of the fixed sizes. A dynamic dimension without a given size or range gets
    a default range, which contains its size hints (expected sizes) and the sizes of the samples.

    Args:
        request: the model and its mode (target, threads, numerics and precision).
        dims: the sizes, ranges and size hints of each named dimension.
        observer: receives the graph after each pass.
        timings: receives the seconds of each step.

    Returns:
        the plans, with the combinations in the order in which `dims` lists the sizes.

    Raises:
        CompilerError: if the model or the target is invalid or not supported, the combinations
            exceed the limit of an artifact, or hints or samples have sizes outside all ranges.
    """
    return tuple(_plan_each(request, dims, observer, timings))


def plan_first_sizes(
    request: ModelRequest,
    dims: Mapping[str, Sequence[SizeChoice]],
    observer: Observer | None = None,
    timings: Timings | None = None,
) -> Planned:
    """Return the first plan of `plan_sizes` without making the other plans.

    Raises:
        CompilerError: if the model or the target is invalid or not supported, the combinations
            exceed the limit of an artifact, or hints or samples have sizes outside all ranges.
    """
    return next(_plan_each(request, dims, observer, timings))


def _plan_each(
    request: ModelRequest,
    dims: Mapping[str, Sequence[SizeChoice]],
    observer: Observer | None = None,
    timings: Timings | None = None,
) -> Iterator[Planned]:
    dims = {name: size_choices(name, sizes) for name, sizes in dims.items()}
    proto = read_model(request.model).proto.graph
    check_dims(proto, {name: sizes[0] for name, sizes in dims.items()})
    shares = hinted_shares(dims)
    ranges = {
        name: ranged
        for name, sizes in dims.items()
        for size in sizes
        if isinstance(size, str) and (ranged := as_hinted(name, size).dimension) is not None
    }
    # hints alone leave a dimension its default range
    dims = {n: sizes for n, sizes in dims.items() if n in ranges or isinstance(sizes[0], int)}
    numbers = {name: [n for n in sizes if isinstance(n, int)] for name, sizes in dims.items()}
    count = prod(len(sizes) for sizes in numbers.values())
    if count > COMBINATIONS:
        raise InvalidArgumentError(
            f"the dimensions have {count} combinations of sizes, at most {COMBINATIONS} are allowed"
        )
    one = {name: sizes[0] for name, sizes in numbers.items() if len(sizes) == 1}
    defaults = model_ports(proto).fixed(dict.fromkeys(dims, 1)).open
    if ranges or defaults:
        several = [n for n, sizes in numbers.items() if n not in ranges and len(sizes) != 1]
        if several:
            raise InvalidArgumentError(
                f"dimension '{several[0]}' has several sizes, and "
                f"'{next(iter((*ranges, *defaults)))}' a range: give '{several[0]}' a range too"
            )
        own = any(numbers[name] for name in ranges)
        absent = [*(name for name in ranges if not numbers[name]), *defaults] if own else []
        if absent:
            raise InvalidArgumentError(
                f"dimension '{absent[0]}' has a range alone, and others have sizes of their own: "
                f"give '{absent[0]}' sizes too"
            )
        sizes: dict[str, int | Dimension] = {**one, **ranges}
        ports = model_ports(proto)
        fixed = {name: size for name, size in one.items() if name not in ranges}
        sampled = request.given.sizes_within(ports.fixed(fixed).inputs, ranges, numbers)
        held = {name: {*sampled.get(name, ()), *shares.get(name, ())} for name in defaults}
        hinted = _Hinted(default_ranges(defaults, held), shares, most_frequent(sampled))
        empty = cache_lengths(proto)
        yield from _plan_ranges(request, sizes, hinted, empty, ports, observer, timings)
        if not own:
            return
    else:
        sample_sizes((), shares)
    varying = sorted(name for name, sizes in dims.items() if len(sizes) > 1)
    for combination in product(*numbers.values()):
        chosen = dict(zip(numbers, combination, strict=True))
        planned = plan_model(replace(request, dims=chosen), observer, timings)
        yield replace(planned, sizes=tuple((name, chosen[name]) for name in varying))


@dataclass(frozen=True, slots=True)
class _Hinted:
    """The default ranges and expected sizes of dimensions.

    Attributes:
        defaults: the default range of each dimension without a given size or range.
        stated: the expected sizes that the user states, by dimension; each has the fraction of runs
            with this size.
        sampled: the most frequent sizes of the samples, by dimension; each has the number of
            samples with this size.
    """

    defaults: Mapping[str, Dimension]
    stated: Shares
    sampled: Shares


def _plan_ranges(
    request: ModelRequest,
    dims: Mapping[str, int | Dimension],
    hinted: _Hinted,
    empty: Collection[str],
    ports: ModelPorts,
    observer: Observer | None,
    timings: Timings | None,
) -> Iterator[Planned]:
    """Yield the plan of a program that supports all sizes of the ranges.

    If no single program supports all sizes, ranges are narrowed or replaced by fixed sizes
    (`FittedRanges`). Then `notes` of the plan lists these changes. If all dimensions become fixed,
    a plan is yielded for each size hint (expected size) instead.

    Args:
        request: the model and its mode (target, threads, numerics and precision).
        dims: the fixed sizes and the ranges of dimensions that the user gave.
        hinted: the default ranges of the other dimensions, and the size hints.
        empty: the dimensions whose default range begins at 0, such as the length of a cache.
        ports: the inputs and outputs of the model.
        observer: receives the graph after each pass.
        timings: receives the seconds of each step.

    Raises:
        CompilerError: if the model is invalid or not supported.
    """
    mode = request.mode
    # modules do not run in sessions
    mode = replace(mode, in_place=mode.in_place and not mode.target.family.modules)
    imports = 0

    def plan(ranges: Mapping[str, Dimension]) -> tuple[Graph, GraphPlan]:
        nonlocal imports
        imports += 1
        sizes: dict[str, SizeRange] = {**numbers, **fitted.sizes, **fitted.given, **ranges}
        graph = driver.load_graph(request.model, sizes, timings)
        optimised = driver.optimise(graph, mode, observer, timings)
        return graph, driver.make_plan(optimised, mode, timings)

    def imported(sizes: Mapping[str, int | Dimension]) -> Graph:
        ranges = {**numbers, **fitted.given, **fitted.left, **sizes}
        return driver.load_graph(request.model, ranges, timings)

    numbers = {n: d for n, d in dims.items() if isinstance(d, int)}
    given = {n: d for n, d in dims.items() if isinstance(d, Dimension)}
    stated = {**hinted.sampled, **hinted.stated}
    hints = size_hints(ports, [*hinted.defaults.values(), *given.values()]) | first_sizes(stated)
    fitted = FittedRanges(given, hinted.defaults, hints, stated)
    while fitted.left or fitted.given:
        before = imports
        found = attempted(lambda: within_defaults(fitted.left, plan, empty))
        if not isinstance(found, DynamicSizeError | InvalidModelError):
            break
        if isinstance(found, InvalidModelError) and imports == before + 1:
            if not fitted.sizes:
                raise refused_ranges({**fitted.left, **fitted.given}.values(), found) from found
            fitted.take_other_sizes(found, imported)
        else:
            fitted.relax(found)
    else:
        yield from _plan_fixed(request, numbers, fitted, imported, observer, timings)
        return
    graph, made = found
    known = {d.name for d in graph.dimensions}
    implied = tuple(d for n, d in fitted.given.items() if n not in known)
    free = [d for d in graph.dimensions if d.name not in fitted.given]
    open_plan = profiled(
        DynamicPlan(made, graph, graph.dimensions, tuple(fitted.left), implied=implied),
        ports,
        free,
        # a dimension that others express has no sizes of its own
        {n: each for n, each in fitted.shares.items() if n in known or n in hinted.stated},
    )
    closed = replace(request, dims={**numbers, **fitted.sizes})
    yield replace(planned_for_ranges(closed, open_plan), notes=tuple(fitted.notes))


def _plan_fixed(
    request: ModelRequest,
    numbers: Mapping[str, int],
    fitted: FittedRanges,
    imported: Callable[[Mapping[str, int | Dimension]], Graph],
    observer: Observer | None,
    timings: Timings | None,
) -> Iterator[Planned]:
    """Yield a plan at each size hint (expected size), for a model without remaining ranges.

    All dimensions of the model were fixed, because no program supports a range of their sizes.

    Args:
        request: the model and its mode (target, threads, numerics and precision).
        numbers: the sizes of the dimensions that the user fixed.
        fitted: the sizes of the other dimensions.
        imported: imports the model at given sizes; used to find new sizes if the model rejects the
            sizes in `fitted`.
        observer: receives the graph after each pass.
        timings: receives the seconds of each step.
    """

    def plan(sizes: Mapping[str, int]) -> Planned:
        return plan_model(replace(request, dims={**numbers, **sizes}), observer, timings)

    try:
        first = plan(fitted.rows()[0])
    except InvalidModelError as error:
        fitted.take_other_sizes(error, imported)
        first = plan(fitted.rows()[0])
    rows = fitted.rows()
    varying = sorted(name for name in fitted.sizes if len({row[name] for row in rows}) > 1)
    for row in rows:
        planned = first if row is rows[0] else plan(row)
        sizes = tuple((name, row[name]) for name in varying)
        yield replace(planned, sizes=sizes, notes=tuple(fitted.notes))


def profiled(
    plan: DynamicPlan, ports: ModelPorts, free: Sequence[Dimension], shares: Shares
) -> DynamicPlan:
    """Select the sizes at which a plan is measured and verified, and return the plan with them.

    Args:
        plan: the plan for all sizes of its ranges.
        ports: the model's inputs and outputs with their dimensions.
        free: the dimensions whose range the user did not give; the function selects an expected
            size for each.
        shares: the sizes that the user states or samples have, by dimension. They have precedence.
            Each size has its fraction of runs or number of samples.

    Raises:
        InvalidArgumentError: if a size in `shares` lies outside the range of its dimension.
    """
    ports = _united(ports, plan.graph)
    types, constants = plan.graph.types, plan.graph.constants
    hints = affordable_hints(
        size_hints(ports, (d for d in free if d.name not in shares)),
        first_sizes(shares),
        plan.ranges,
        [kind.elements for name, kind in types.items() if name not in constants],
    )
    own = {name: {size: 1.0} for name, size in hints.items()}
    drawn = tuple(sample_sizes(plan.ranges, {**own, **shares}))
    hints |= first_sizes(shares)
    return replace(plan, drawn=drawn, stated=bool(shares), hints=tuple(sorted(hints.items())))


def _united(ports: ModelPorts, graph: Graph) -> ModelPorts:
    """Return the model's ports with equal names for input dimensions that always have equal sizes.

    The import of the model finds such dimensions. The name is the one in the imported graph.
    """

    def named(name: str, dims: Dims) -> Dims:
        shape = graph.types[name].shape if name in graph.types else ()
        if len(shape) != len(dims):
            return dims
        return tuple(
            known[0].name
            if isinstance(dim, str)
            and (known := dimensions(size))
            and size == dynamic_size(known[0])
            else dim
            for dim, size in zip(dims, shape, strict=True)
        )

    return replace(ports, inputs={name: named(name, dims) for name, dims in ports.inputs.items()})


def first_sizes(shares: Shares) -> dict[str, int]:
    """Return the most frequent size of each dimension.

    Args:
        shares: the frequency of each size, by dimension.
    """
    return {name: max(listed, key=lambda size: listed[size]) for name, listed in shares.items()}


def planned_for_ranges(request: ModelRequest, plan: DynamicPlan) -> Planned:
    """Return a `Planned` for a plan with dynamic dimensions.

    Its attributes `graph` and `plan` have fixed sizes: `plan.hints`, and a size near the middle of
    the range for each other dimension.

    Args:
        request: the model, its mode and its fixed sizes.
        plan: the plan with dynamic dimensions.
    """
    hints = dict(plan.hints)
    sizes = {d.name: hints.get(d.name) or typical(dynamic_size(d)) for d in plan.ranges}
    return Planned(
        replace(request, dims={**(request.dims or {}), **sizes}),
        plan.graph.at(sizes),
        plan.plan.at(sizes),
        tuple(sorted(sizes.items())),
        open=plan,
    )
