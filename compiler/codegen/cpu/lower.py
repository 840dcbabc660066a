"""Lowering of loop nests to LLVM IR text.

Every kernel is lowered in the same way: `points` gives each unrolled axis its value during code
generation, `access` computes addresses, and `ssa` builds the text of the loops and instructions. A
stage becomes one function

    void stage(void *const *buffers, void *scratch, const int64_t *sizes, int64_t lo, int64_t hi)

that runs tiles [lo, hi) of its parallel loops.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import product

from tilewright.compiler.codegen.cpu.access import Bound, Kind, Linear, Variable, bind, evaluate
from tilewright.compiler.codegen.cpu.compute import ComputeLowering
from tilewright.compiler.codegen.cpu.context import Context
from tilewright.compiler.codegen.cpu.loops import (
    Segment,
    Tail,
    over,
    repeating_tail,
    segments,
    tail_of,
    tile_body,
)
from tilewright.compiler.codegen.cpu.rows import may_recompute, may_start_at_any_index
from tilewright.compiler.codegen.cpu.ssa import Emitter, Value
from tilewright.compiler.codegen.cpu.thread_ranges import inner_range, outer_range, thread_range
from tilewright.compiler.codegen.cpu.tile_registers import release
from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import ScheduleError
from tilewright.compiler.loops.expr import Space, Tee, walk
from tilewright.compiler.loops.index import Axis
from tilewright.compiler.loops.nest import Binding, Compute, For, Let, LoopNest, Node, Stage
from tilewright.compiler.sizes import Dimension, always_less, is_dynamic
from tilewright.compiler.targets.target import Target

_ALIGNMENT = 64
MOST_VSCALE = 16
"""Maximum length of SVE vector registers, in units of 128 bits."""


def stage_symbol(name: str, number: int) -> str:
    """Return the name of the function for stage `number` of the kernel `name`."""
    return f"{name}_s{number}"


def stage_extent(stage: Stage) -> int:
    """Return the number of tiles into which a stage is divided for threads.

    These are the tiles of the stage's first parallel loop and of parallel loops nested directly in
    it. A stage without parallel loops has one tile. The result is an int, or a formula over dynamic
    dimensions (`Size`). The stage's function computes the tiles from its argument `lo` to its
    argument `hi` (exclusive).
    """
    loops = _parallel_loops(stage)
    return _shared_tiles(loops[0]) if loops else 1


def _parallel_loops(stage: Stage) -> tuple[For, ...]:
    """Return the loops whose tiles are divided among threads; empty for a serial stage."""
    loops = tuple(node for node in stage.body if isinstance(node, For))
    return loops if all(loop.binding is Binding.PARALLEL for loop in loops) else ()


def _shared_tiles(loop: For) -> int:
    """Return the number of tiles that threads share in a parallel loop.

    If the loop's only statement is another parallel loop, their numbers of tiles are multiplied,
    and so on for further nested loops. The result is an int, or a formula over dynamic dimensions
    (`Size`).
    """
    own = sum(segment.count for segment in _loop_segments(loop))
    inner = _parallel_inside(loop)
    return own * _shared_tiles(inner) if inner is not None else own


def _parallel_inside(loop: For) -> For | None:
    """Return the parallel loop that is the only statement in the body of a loop, else None."""
    first = loop.body[0] if len(loop.body) == 1 else None
    return first if isinstance(first, For) and first.binding is Binding.PARALLEL else None


def scratch_layout(nest: LoopNest) -> tuple[dict[str, int], int]:
    """Assign memory in a thread's scratch block to the scratch tensors of a loop nest.

    Return the byte offset of each tensor by name, and the size of the block in bytes.
    """
    offsets, size = {}, 0
    for tensor in nest.scratch:
        offsets[tensor.name] = size
        size += -(-tensor.bytes // _ALIGNMENT) * _ALIGNMENT
    return offsets, size


def lower_nest(nest: LoopNest, target: Target, sizes: Sequence[Dimension] | None = None) -> str:
    """Return the LLVM IR of a loop nest, as a module with one function per stage.

    `sizes` are the dynamic dimensions in the order of the functions' argument `sizes`; by default,
    those of the nest.

    Raises:
        ScheduleError: if tiles do not align with layouts, accesses cannot be proved to be in
            bounds, or code generation needs the value of a size that is known only at run time.
    """
    if sizes is None:
        sizes = nest.sizes
    if sizes:
        masks = [True, False] if target.masks(DType.FLOAT32) else [False]
        for masked, cut in product(masks, (True, False)):
            with suppress(ScheduleError):
                return _lower_nest(nest, target, sizes, masks=masked, partial_tiles=cut)
    return _lower_nest(nest, target, sizes)


def _lower_nest(
    nest: LoopNest,
    target: Target,
    sizes: Sequence[Dimension],
    *,
    masks: bool = False,
    partial_tiles: bool = False,
) -> str:
    declarations: set[str] = set()
    functions = []
    for number, stage in enumerate(nest.stages):
        emitter = _lower_stage(
            nest, stage, Emitter(target, sizes), masks=masks, partial_tiles=partial_tiles
        )
        declarations |= emitter.declarations
        body = "\n".join([*emitter.opening, *emitter.lines])
        symbol = stage_symbol(nest.name, number)
        functions.append(
            f"define void @{symbol}(ptr %buffers, ptr %scratch, ptr %sizes,"
            f" i64 %lo, i64 %hi) #0 {{\nentry:\n{body}\n  ret void\n}}"
        )
    attributes = ["nounwind", f'"prefer-vector-width"="{target.vector_bits}"']
    if target.register_bits and target.family.vscale_bits:
        least = target.register_bits // target.family.vscale_bits
        attributes.append(f"vscale_range({least},{MOST_VSCALE})")
    return "\n".join(
        [
            *sorted(declarations),
            *functions,
            f"attributes #0 = {{ {' '.join(attributes)} }}",
            "!0 = distinct !{!0, !1, !2}",
            '!1 = !{!"llvm.loop.unroll.disable"}',
            '!2 = !{!"llvm.loop.vectorize.enable", i1 false}',
            "",
        ]
    )


def _lower_stage(
    nest: LoopNest, stage: Stage, emitter: Emitter, *, masks: bool, partial_tiles: bool
) -> Emitter:
    """Emit the body of a stage's function, and return the emitter with its text.

    Args:
        nest: the loop nest.
        stage: the stage.
        emitter: builds the function's text.
        masks: whether a partly used vector at the end of an axis gets a run-time mask.
        partial_tiles: whether the code of full tiles also serves a shorter last tile, if inner
            loops split the tiles further.
    """
    context = Context(
        emitter,
        slots={
            buffer.name: emitter.target.family.pointer_bytes * number
            for number, buffer in enumerate(nest.buffers)
        },
        scratch=scratch_layout(nest)[0],
        written=_written(stage.body),
        masks=masks,
        partial_tiles=partial_tiles,
    )
    loops = _parallel_loops(stage)
    for loop in loops:
        _parallel(
            context, loop, *thread_range(context.emitter, stage_extent(stage), _shared_tiles(loop))
        )
    for node in () if loops else stage.body:
        _lower(context, node)
    release(context)
    return context.emitter


def _lower(context: Context, node: Node) -> None:
    """Emit a loop or a `Compute` of the loop nest at the current position."""
    match node:
        case Compute():
            ComputeLowering(context, node).run()
        case For(binding=Binding.SERIAL):
            context.open_axis(node.axis)
            over(
                context,
                node.axis,
                node.step,
                lambda values: _body(context, node, values),
                peel=node.peel,
                unroll=node.unroll,
                granularity=0 if node.unroll else _granularity(node.body, node.axis),
                tail=_tail(context, node),
            )
        case For(binding=binding):
            raise ScheduleError(f"loop {node.axis.name}: {binding} is not at the top of a stage")


def _parallel(context: Context, loop: For, low: Value, high: Value) -> None:
    """Emit code that runs the tiles `low` to `high` - 1 of a parallel loop.

    The code has one loop per segment (a sequence of equal tiles). Each of these loops compares its
    bounds with `low` and `high` at run time, so the same code serves every thread. If the parallel
    loop contains a second parallel loop, `low` and `high` count the tiles of the second one. A
    thread may then begin or end in the middle of a tile of the outer loop.

    The narrower tile of the remaining rows usually comes last. It comes first if the axis has a
    fixed extent, its tiles may start at any row, and the loop is not peeled.
    """
    emitter = context.emitter
    context.open_axis(loop.axis)
    outer = context.ranges[loop.axis] = context.environment[loop.axis]
    inner = _parallel_inside(loop)
    within = low, high
    if inner is not None:
        low, high = outer_range(emitter, within, _shared_tiles(inner))
    parts = _loop_segments(loop, partial_tiles=context.partial_tiles)
    is_open_loop = is_dynamic(loop.axis.extent)
    if len(parts) == 2 and not loop.peel and not is_open_loop and may_start_at_any_index(loop):
        full, rest = parts
        parts = replace(rest, offset=0), replace(full, offset=rest.width)
    first = 0
    for segment in parts:
        start, stop = low, high
        if segment is not parts[0]:
            edge = emitter.size(first)
            start = emitter.call(DType.INT64, 1, "llvm.smax.i64", low, edge)
        if segment is not parts[-1]:
            edge = emitter.size(first + segment.count)
            stop = emitter.call(DType.INT64, 1, "llvm.smin.i64", high, edge)
        body = partial(_parallel_tile, context, loop, outer, segment, first, inner, within)
        emitter.loop(start, stop, (), body, may_be_empty=True)
        first += segment.count
    context.environment[loop.axis] = outer


def _parallel_tile(
    context: Context,
    loop: For,
    outer: Bound,
    segment: Segment,
    first: int,
    inner: For | None,
    within: tuple[Value, Value],
    counter: Value,
    values: list[Value],
) -> list[Value]:
    """Emit tile `counter` of a parallel loop.

    Args:
        context: the state of code generation for the stage.
        loop: the parallel loop.
        outer: the range of the axis that the loop divides into tiles.
        segment: the segment that contains the tile.
        first: the number of the segment's first tile.
        inner: the nested parallel loop, if any.
        within: the numbers of the nested loop's tiles that the thread computes: the first, and the
            last (exclusive).
        counter: the number of the tile.
        values: loop-carried values.
    """

    def body(values: list[Value]) -> list[Value]:
        if inner is None:
            return _body(context, loop, values)
        for let in loop.lets:
            context.environment[let.axis] = _let(context, let)
        _parallel(
            context, inner, *inner_range(context.emitter, within, counter, _shared_tiles(inner))
        )
        return values

    def tail(values: list[Value]) -> list[Value]:
        """Emit the last tile, whose width is known only at run time; one thread computes it."""
        if _is_split(loop.body, loop.axis):
            return body(values)
        return over(
            context,
            loop.axis,
            loop.step,
            body,
            granularity=_granularity(loop.body, loop.axis),
            tail=_tail(context, loop),
        )

    lowered = tail if is_dynamic(segment.width) else body
    return tile_body(context, loop.axis, outer, segment, lowered, first=first)(counter, values)


def _body(context: Context, loop: For, values: list[Value]) -> list[Value]:
    for let in loop.lets:
        context.environment[let.axis] = _let(context, let)
    for node in loop.body:
        _lower(context, node)
    return values


def _let(context: Context, let: Let) -> Bound:
    emitter = context.emitter
    form = bind(emitter, context.environment, let.source)
    _, high = form.bounds()
    if always_less(high, let.maximum + 1):
        return Bound(form, 1)
    if not always_less(-1, let.maximum):
        raise ScheduleError(f"let '{let.axis.name}': its limit {let.maximum} may be below 0")
    limit = emitter.size(let.maximum)
    value = emitter.call(DType.INT64, 1, "llvm.smin.i64", evaluate(emitter, form), limit)
    return Bound(Linear({Variable(Kind.RUNTIME, let.maximum + 1, value): 1}), 1)


def _loop_segments(loop: For, *, partial_tiles: bool = False) -> tuple[Segment, ...]:
    """Return the segments of a loop, each a sequence of equal tiles.

    With `partial_tiles`, a shorter last tile shares the code of the full tiles where possible
    (`Tail.PARTIAL`). The total number of tiles is the same in both cases.
    """
    return segments(
        loop.axis.extent,
        loop.step,
        peel=loop.peel,
        granularity=_granularity(loop.body, loop.axis),
        tail=Tail.PARTIAL if partial_tiles and _is_split(loop.body, loop.axis) else Tail.WHOLE,
    )


def _granularity(body: Sequence[Node], axis: Axis) -> int:
    """Return the number of indices of an axis that one copy of unrolled code covers.

    `body` is the body of a loop over the axis. The result is the step by which the `Compute` nodes
    in the body unroll the axis, or 0 if none does. Narrower last tiles of the loop are multiples of
    this step as far as possible.
    """
    for node in body:
        match node:
            case For():
                step = _granularity(node.body, axis)
            case Compute():
                step = next((t.step for t in node.unroll if t.axis == axis), 0)
        if step:
            return step
    return 0


def _tail(context: Context, loop: For) -> Tail:
    """Return how code computes the indices that remain after the full tiles of a loop."""
    computes = [*_computes(loop.body)]
    unrolling = [c for c in computes if any(tile.axis == loop.axis for tile in c.unroll)]
    repeats = None
    if unrolling and all(may_recompute(compute, loop.axis) for compute in computes):
        here = context.environment[loop.axis].extent
        repeats = repeating_tail(loop.axis.extent, here, loop.step)
    return tail_of(
        context,
        is_split=_is_split(loop.body, loop.axis),
        is_vector=bool(unrolling) and all(c.vector == loop.axis for c in unrolling),
        is_reduced=False,
        repeats=repeats,
        is_of_matrices=any(compute.rows == loop.axis for compute in unrolling),
    )


def _computes(body: Sequence[Node]) -> Iterator[Compute]:
    for node in body:
        match node:
            case For():
                yield from _computes(node.body)
            case Compute():
                yield node


def _is_split(body: Sequence[Node], axis: Axis) -> bool:
    """Return whether loops in a loop body divide the tiles of an axis further."""
    for node in body:
        match node:
            case For():
                if node.axis == axis or _is_split(node.body, axis):
                    return True
            case Compute():
                if any(tile.axis == axis for tile in node.reduce):
                    return True
    return False


def _written(body: Sequence[Node]) -> frozenset[str]:
    """Return the names of the tensors in memory to which a loop body stores."""
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
