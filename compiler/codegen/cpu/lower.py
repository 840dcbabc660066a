"""Lowering of loop nests to LLVM IR text.

One mechanism for every kernel: structured scopes (`ssa`), unrolled axes as constants of the
generator (`points`), and access analysis (`access`). A stage becomes one function

    void stage(void *const *buffers, void *scratch, const int64_t *sizes, int64_t lo, int64_t hi)

that runs tiles [lo, hi) of its parallel loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from compiler.codegen.cpu.access import Bound, Kind, Linear, Padding, Variable, bind, evaluate
from compiler.codegen.cpu.compute import ComputeLowering
from compiler.codegen.cpu.ssa import Emitter, Value
from compiler.dtypes import DType
from compiler.errors import ScheduleError
from compiler.loops.expr import Load, Role, Space, Tee, Tensor, walk
from compiler.loops.index import Affine, Axis, affine
from compiler.loops.nest import Binding, Compute, For, Let, LoopNest, Node, Stage
from compiler.target import Target

_ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Segment:
    """`count` tiles of `width` that start at `offset` and follow each other every `step`."""

    offset: int
    count: int
    step: int
    width: int


def segments(extent: int, step: int, *, peel: bool, granularity: int) -> tuple[Segment, ...]:
    """Full tiles (the first and last apart if peeled), a tail of whole vectors, the rest."""
    full, rest = divmod(extent, step)
    result = []
    if peel and full > 2:
        result.append(Segment(0, 1, step, step))
        result.append(Segment(step, full - 2, step, step))
        result.append(Segment((full - 1) * step, 1, step, step))
    elif peel:
        result += [Segment(number * step, 1, step, step) for number in range(full)]
    elif full:
        result.append(Segment(0, full, step, step))
    offset = full * step
    if granularity and rest > granularity and rest % granularity:
        whole = rest - rest % granularity
        result.append(Segment(offset, 1, whole, whole))
        offset, rest = offset + whole, rest - whole
    if rest:
        result.append(Segment(offset, 1, rest, rest))
    return tuple(result)


def stage_symbol(nest: LoopNest, number: int) -> str:
    """The name of a stage's function in the object."""
    return f"{nest.name}_s{number}"


def stage_extent(stage: Stage) -> int:
    """Tiles of the stage's parallel loop, that is what lo and hi count; 1 when it is serial."""
    match stage.body:
        case (For(binding=Binding.PARALLEL) as loop,):
            return sum(s.count for s in _loop_segments(loop))
        case _:
            return 1


def scratch_layout(nest: LoopNest) -> tuple[dict[str, int], int]:
    """Byte offset of each scratch tensor in a thread's block, and the size of the block."""
    offsets, size = {}, 0
    for tensor in nest.scratch:
        offsets[tensor.name] = size
        size += -(-tensor.bytes // _ALIGNMENT) * _ALIGNMENT
    return offsets, size


def lower_nest(nest: LoopNest, target: Target) -> str:
    """A kernel as the text of an LLVM module, one function a stage.

    Raises:
        ScheduleError: if tiles do not align with layouts or bounds cannot be proved.
    """
    declarations: set[str] = set()
    functions = []
    for number, stage in enumerate(nest.stages):
        lowering = StageLowering(nest, stage, target)
        body = lowering.run()
        declarations |= lowering.emitter.declarations
        functions.append(
            f"define void @{stage_symbol(nest, number)}(ptr %buffers, ptr %scratch, ptr %sizes,"
            f" i64 %lo, i64 %hi) #0 {{\nentry:\n{body}\n  ret void\n}}"
        )
    return "\n".join(
        [
            *sorted(declarations),
            *functions,
            f'attributes #0 = {{ nounwind "prefer-vector-width"="{target.vector_bits}" }}',
            "!0 = distinct !{!0, !1, !2}",
            '!1 = !{!"llvm.loop.unroll.disable"}',
            '!2 = !{!"llvm.loop.vectorize.enable", i1 false}',
            "",
        ]
    )


class StageLowering:
    """Lowers one stage to one function; the state that For and Compute share."""

    def __init__(self, nest: LoopNest, stage: Stage, target: Target) -> None:
        self.nest = nest
        self.stage = stage
        self.emitter = Emitter(target)
        self.lanes = target.lanes(DType.FLOAT32)
        self.registers_available = target.vector_registers
        self.environment: dict[Axis, Bound] = {}
        self.registers: dict[tuple[object, ...], Value] = {}
        self.epochs: dict[str, int] = {}
        self.written = _written(stage.body)
        self._offsets = scratch_layout(nest)[0]

    def run(self) -> str:
        """The function's body."""
        match self.stage.body:
            case (For(binding=Binding.PARALLEL) as loop,):
                self._parallel(loop)
            case body:
                for node in body:
                    self.lower(node)
        return "\n".join(self.emitter.lines)

    def lower(self, node: Node) -> None:
        """Emit one node into the open scope."""
        match node:
            case Compute():
                ComputeLowering(self, node).run()
            case For(binding=Binding.SERIAL):
                self.open_axis(node.axis)
                granularity = 0 if node.unroll else _granularity(node.body, node.axis)
                self.over(
                    node.axis,
                    node.step,
                    lambda values: self._body(node, values),
                    peel=node.peel,
                    unroll=node.unroll,
                    granularity=granularity,
                )
            case For(binding=binding):
                raise ScheduleError(
                    f"loop {node.axis.name}: {binding} is not at the top of a stage"
                )

    def open_axis(self, axis: Axis) -> None:
        """Let an axis stand for its whole extent, unless an outer loop has tiled it."""
        if axis not in self.environment:
            self.environment[axis] = Bound(Linear(), axis.extent)

    def base(self, tensor: Tensor) -> Value:
        """The pointer to a tensor's buffer."""
        if tensor.role is Role.SCRATCH:
            scratch = Value("%scratch", None)
            return self.emitter.offset(scratch, self._offsets[tensor.name])
        names = [buffer.name for buffer in self.nest.buffers]
        slot = self.emitter.offset(Value("%buffers", None), 8 * names.index(tensor.name))
        return self.emitter.emit(None, 1, "load ptr, ptr %s, align 8", slot)

    def over(
        self,
        axis: Axis,
        step: int,
        body: Callable[[list[Value]], list[Value]],
        *,
        carried: Sequence[Value] = (),
        peel: bool = False,
        unroll: bool = False,
        granularity: int = 0,
        clip: Sequence[Load] | None = None,
        padding: Padding = Padding.READ,
    ) -> list[Value]:
        """Run `body` for each tile of an axis; run-time loops where a segment has several tiles."""
        outer = self.environment[axis]
        values = list(carried)
        bounds = self._clip(axis, outer, clip, padding) if clip else None
        for segment in segments(outer.extent, step, peel=peel, granularity=granularity):
            if unroll or (segment.count == 1 and bounds is None):
                for number in range(segment.count):
                    start = _moved(outer.start, segment.offset + number * segment.step)
                    self.environment[axis] = Bound(start, segment.width)
                    values = body(values)
                continue
            low = self.emitter.const(0, DType.INT64)
            high = self.emitter.const(segment.count, DType.INT64)
            low, high = bounds or (low, high)
            values = self.emitter.loop(
                low,
                high,
                values,
                self._tile_body(axis, outer, segment, body, clipped=bounds is not None),
                may_be_empty=bounds is not None,
            )
        self.environment[axis] = outer
        return values

    def _tile_body(
        self,
        axis: Axis,
        outer: Bound,
        segment: Segment,
        body: Callable[[list[Value]], list[Value]],
        *,
        clipped: bool = False,
        first: int = 0,
    ) -> Callable[[Value, list[Value]], list[Value]]:
        """The body of a run-time loop over a segment's tiles, whose counter starts at `first`."""

        def lowered(counter: Value, values: list[Value]) -> list[Value]:
            start = _moved(outer.start, segment.offset)
            if segment.count > 1 or clipped:
                if first:
                    shift = self.emitter.const(first, DType.INT64)
                    counter = self.emitter.emit(
                        DType.INT64, 1, "sub nsw i64 %s, %s", counter, shift
                    )
                variable = Variable(Kind.RUNTIME, segment.count, counter, clipped=clipped)
                start.add(Linear({variable: segment.step}))
            self.environment[axis] = Bound(start, segment.width)
            return body(values)

        return lowered

    def _parallel(self, loop: For) -> None:
        """The tiles [lo, hi) of the stage's loop, split over its segments.

        The narrow tile of rows comes first, and no bound is stated that lo and hi keep: how many
        full tiles follow is nowhere in the code, which then serves any number of them.
        """
        self.open_axis(loop.axis)
        outer = self.environment[loop.axis]
        low, high = Value("%lo", DType.INT64), Value("%hi", DType.INT64)
        parts = _loop_segments(loop)
        if len(parts) == 2 and not loop.peel and _is_of_rows(loop):
            full, rest = parts
            parts = replace(rest, offset=0), replace(full, offset=rest.width)
        first = 0
        for segment in parts:
            start, stop = low, high
            if segment is not parts[0]:
                edge = self.emitter.const(first, DType.INT64)
                start = self.emitter.call(DType.INT64, 1, "llvm.smax.i64", low, edge)
            if segment is not parts[-1]:
                edge = self.emitter.const(first + segment.count, DType.INT64)
                stop = self.emitter.call(DType.INT64, 1, "llvm.smin.i64", high, edge)
            body = self._tile_body(
                loop.axis, outer, segment, lambda values: self._body(loop, values), first=first
            )
            self.emitter.loop(start, stop, (), body, may_be_empty=True)
            first += segment.count

    def _body(self, loop: For, values: list[Value]) -> list[Value]:
        for let in loop.lets:
            self.environment[let.axis] = self._let(let)
        for node in loop.body:
            self.lower(node)
        return values

    def _let(self, let: Let) -> Bound:
        form = bind(self.emitter, self.environment, let.source)
        _, high = form.bounds()
        if high <= let.maximum:
            return Bound(form, 1)
        limit = self.emitter.const(let.maximum, DType.INT64)
        value = self.emitter.call(
            DType.INT64, 1, "llvm.smin.i64", evaluate(self.emitter, form), limit
        )
        return Bound(Linear({Variable(Kind.RUNTIME, let.maximum + 1, value): 1}), 1)

    def _clip(
        self, axis: Axis, outer: Bound, loads: Sequence[Load], padding: Padding
    ) -> tuple[Value, Value] | None:
        """The range of a reduction axis for which all loads are in bounds; None if all of it is.

        Only for offsets that are uniform over the register tile; where they are not, the accesses
        keep their guards.
        """
        if outer.start.terms or outer.start.constant or axis.extent == 1:
            return None
        zero = self.emitter.const(0, DType.INT64)
        low, high = zero, self.emitter.const(axis.extent, DType.INT64)
        found = False
        for load in loads:
            for dim, index in enumerate(load.index):
                factor = index.coefficient(axis)
                if not factor:
                    continue
                rest = index - affine(axis) * factor
                form = bind(self.emitter, self.environment, rest)
                lowest, highest = form.bounds()
                readable = padding is Padding.READ
                before, after = load.tensor.halo_of(dim) if readable else (0, 0)
                extent = load.tensor.shape[dim]
                reach = factor * (axis.extent - 1)
                if lowest >= -before and highest + reach < extent + after:
                    continue
                if factor < 0 or any(v.kind is not Kind.RUNTIME for v in form.terms):
                    return None
                if not self._uniform(rest):
                    return None
                found = True
                offset = evaluate(self.emitter, form)
                low, high = self._clip_range(offset, factor, extent, low, high)
        return (low, high) if found else None

    def _uniform(self, rest: Affine) -> bool:
        return all(self.environment[a].extent == 1 for a in rest.axes() if a in self.environment)

    def _clip_range(
        self, offset: Value, factor: int, extent: int, low: Value, high: Value
    ) -> tuple[Value, Value]:
        """0 <= offset + factor * i < extent  <=>  ceil(-offset / factor) <= i < ceil(...)."""
        emitter = self.emitter
        zero = emitter.const(0, DType.INT64)
        size = emitter.const(extent, DType.INT64)
        first = emitter.emit(DType.INT64, 1, "sub nsw i64 %s, %s", zero, offset)
        first = emitter.call(DType.INT64, 1, "llvm.smax.i64", first, zero)
        last = emitter.emit(DType.INT64, 1, "sub nsw i64 %s, %s", size, offset)
        last = emitter.call(DType.INT64, 1, "llvm.smax.i64", last, zero)
        if factor > 1:
            round_up = emitter.const(factor - 1, DType.INT64)
            divisor = emitter.const(factor, DType.INT64)
            first, last = (
                emitter.emit(
                    DType.INT64,
                    1,
                    "udiv i64 %s, %s",
                    emitter.emit(DType.INT64, 1, "add nsw i64 %s, %s", edge, round_up),
                    divisor,
                )
                for edge in (first, last)
            )
        first = emitter.call(DType.INT64, 1, "llvm.smax.i64", first, low)
        last = emitter.call(DType.INT64, 1, "llvm.smin.i64", last, high)
        return first, last


def _moved(form: Linear, offset: int) -> Linear:
    return Linear(dict(form.terms), form.constant + offset)


def _loop_segments(loop: For) -> tuple[Segment, ...]:
    granularity = _granularity(loop.body, loop.axis)
    return segments(loop.axis.extent, loop.step, peel=loop.peel, granularity=granularity)


def _is_of_rows(loop: For) -> bool:
    """Whether the loop's tiles may start anywhere: no vector and no block of a layout ends there.

    So it is where the axis runs over whole slices of everything that moves with it.
    """

    def of_rows(node: Node) -> bool:
        match node:
            case For():
                return not node.lets and all(map(of_rows, node.body))
            case Compute():
                return loop.axis not in (node.vector, node.store_vector, node.dot) and all(
                    _moves_by_slices(load, loop.axis) for load in _accesses(node)
                )

    return not loop.lets and all(map(of_rows, loop.body))


def _accesses(compute: Compute) -> Iterator[Load]:
    """Every element that a compute reads or writes."""
    expressions = [compute.body, *(store.value for store in compute.stores)]
    expressions += [compute.init] if compute.init is not None else []
    yield from (store.target for store in compute.stores)
    for expression in expressions:
        for node in walk(expression):
            match node:
                case Load():
                    yield node
                case Tee():
                    yield node.target
                case _:
                    pass


def _moves_by_slices(load: Load, axis: Axis) -> bool:
    """Whether a step along the axis is a step along dimensions that no layout divides."""
    factors = load.tensor.layout.resolved(len(load.tensor.shape))
    moved = [f for f in factors if axis in load.index[f.dim].axes()]
    return all(f.div == 1 and f.mod is None for f in moved)


def _granularity(body: Sequence[Node], axis: Axis) -> int:
    """The step in which computes inside unroll an axis: tails are cut to whole vectors of it."""
    for node in body:
        match node:
            case For():
                step = _granularity(node.body, axis)
            case Compute():
                step = next((t.step for t in node.unroll if t.axis == axis), 0)
        if step:
            return step
    return 0


def _written(body: Sequence[Node]) -> frozenset[str]:
    """Names of the memory tensors that a stage stores to."""
    names: set[str] = set()
    for node in body:
        match node:
            case For():
                names |= _written(node.body)
            case Compute():
                targets = [store.target for store in node.stores]
                for expr in (node.body, *(store.value for store in node.stores)):
                    targets += [e.target for e in walk(expr) if isinstance(e, Tee)]
                names |= {t.tensor.name for t in targets if t.tensor.space is Space.MEMORY}
    return frozenset(names)
