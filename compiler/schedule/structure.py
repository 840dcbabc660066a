"""Functions that templates (kernel generators) share: loop nests, halos, and the vector axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd, inf

from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import ScheduleError
from tilewright.compiler.loops.expr import Combiner, Const, Expr, Load, Reduce, Tensor, loads, walk
from tilewright.compiler.loops.index import Affine, Axis, FloorDiv, affine
from tilewright.compiler.loops.layout import MAX_LANE_STEP
from tilewright.compiler.loops.nest import (
    Binding,
    Compute,
    For,
    Let,
    LoopNest,
    Node,
    Stage,
    Store,
    Tile,
)
from tilewright.compiler.memo import memo
from tilewright.compiler.mode import Mode
from tilewright.compiler.schedule.kernel import Kernel, Transform
from tilewright.compiler.schedule.problem import Problem
from tilewright.compiler.sizes import always_less, bounds, known_divisor

STAGGER = 16
"""Number of unused elements between slices of a buffer. Without them, all slices would start in the
same cache sets."""


@dataclass(frozen=True, slots=True)
class LoopSpec:
    """The properties of a loop that `nest` builds.

    Attributes:
        axis: the axis over which the loop runs.
        step: the size of the loop's tiles.
        peel: whether the first and the last full tile are emitted as static code.
        unroll: whether all tiles are emitted as static code.
        lets: values that each iteration computes first.
    """

    axis: Axis
    step: int = 1
    peel: bool = False
    unroll: bool = False
    lets: tuple[Let, ...] = ()


def nest(loops: Sequence[LoopSpec], *body: Node) -> tuple[Node, ...]:
    """Return serial loops around a body, with `loops` from the outermost to the innermost.

    Loops over an axis of extent 1 are omitted.
    """
    result = body
    for loop in reversed(loops):
        if loop.axis.moves or loop.lets:
            result = (
                For(
                    loop.axis, loop.step, result, Binding.SERIAL, loop.peel, loop.unroll, loop.lets
                ),
            )
    return result


def parallel_stage(name: str, loops: Sequence[LoopSpec], *body: Node) -> Stage:
    """Return a stage (one function of a kernel) with loops around a body.

    The outermost loop is parallel, the others are serial. Without a loop, the stage is serial.
    """
    nodes = nest(loops, *body)
    # Without a loop around them, nodes of the body may depend on each other's results.
    shared = _shared(nodes) if len(nodes) == 1 else None
    return Stage(name, shared or nodes)


def _shared(nodes: Sequence[Node]) -> tuple[Node, ...] | None:
    """Make the outermost loop of each nest parallel.

    Return None if a nest has no loop, or if its outermost loop is unrolled.
    """
    shared: list[Node] = []
    for node in nodes:
        if not isinstance(node, For) or node.unroll:
            return None
        shared.append(replace(node, binding=Binding.PARALLEL))
    return tuple(shared)


def replace_tensors(tensors: Sequence[Tensor], changed: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return the tensors, each replaced by the tensor of the same name in `changed` if there is
    one.

    For example, inputs are replaced by their packed form.
    """
    by_name = {tensor.name: tensor for tensor in changed}
    return tuple(by_name.get(tensor.name, tensor) for tensor in tensors)


def vector_axis(target: Load, axes: Sequence[Axis]) -> Axis | None:
    """Return the axis of `axes` along which elements of `target` are contiguous in memory, or None.

    Such an axis can be the axis of vector lanes.
    """
    tensor = target.tensor
    factors = tensor.layout.resolved(len(tensor.shape))
    for factor, extent in zip(reversed(factors), reversed(tensor.physical_shape), strict=True):
        if extent == 1:
            continue
        index = target.index[factor.dim]
        return next((a for a in axes if index.coefficient(a) == 1), None)
    return None


def unit_stride(load: Load, axis: Axis) -> bool:
    """Whether a load reads contiguous elements of memory along an axis."""
    return vector_axis(load, (axis,)) == axis


def aligned(load: Load, tiles: Mapping[Axis, int], vector: Tile) -> bool:
    """Whether each tile of a load lies within one block of the tensor's layout.

    Args:
        load: the load.
        tiles: the tile size along each axis; axes that are not in `tiles` advance by one.
        vector: the vector axis and its step; a vector may also cover several whole blocks.
    """
    factors = load.tensor.layout.resolved(len(load.tensor.shape))
    divided = [
        (load.index[f.dim] + load.tensor.halo_of(f.dim)[0], block)
        for f in factors
        for block in {f.div, f.div * (f.mod or 1)}
    ]
    terms = (term for index in load.index for term, _ in index.terms)
    divided += [(affine(t.axis), t.divisor) for t in terms if isinstance(t, FloorDiv)]
    return all(_inside(index, block, tiles, vector) for index, block in divided)


def _inside(index: Affine, block: int, tiles: Mapping[Axis, int], vector: Tile) -> bool:
    """Whether an index stays within one block of `block` consecutive values during each tile.

    `tiles` has the tile size along each axis, 1 by default. A vector that covers whole blocks is
    also accepted.
    """
    rest = [(term, coefficient) for term, coefficient in index.terms if coefficient % block != 0]
    first = index.constant % block
    least, most = Affine(tuple(rest), first).bounds()
    if always_less(-1, least) and always_less(most, block):
        return True
    if rest == [(vector.axis, 1)] and first == 0 and not vector.step % block:
        return True
    step = block
    low = high = 0
    for term, coefficient in rest:
        if isinstance(term, FloorDiv) and term.axis in tiles:
            return False
        width = 1 if isinstance(term, FloorDiv) else tiles.get(term, 1)
        if not always_less(term.extent, width + 1):
            step = gcd(step, known_divisor(coefficient) * width)
        reach = coefficient * (width - 1)
        low, high = (low + reach, high) if coefficient < 0 else (low, high + reach)
    return always_less(-1, first % step + low) and always_less(first % step + high, step)


def short_step(load: Load, axis: Axis) -> bool:
    """Whether adjacent lanes along an axis read elements at most `MAX_LANE_STEP` positions apart.

    The positions count along the innermost dimension of memory. Such elements are loaded as whole
    vectors, and then permuted.
    """
    factors = load.tensor.layout.resolved(len(load.tensor.shape))
    last = next((f for f in reversed(factors) if load.tensor.shape[f.dim] != 1), factors[-1])
    moving = [dim for dim, index in enumerate(load.index) if axis in index.axes()]
    return (
        moving == [last.dim]
        and last.mod is None
        and last.div == 1
        and 1 <= load.index[last.dim].coefficient(axis) <= MAX_LANE_STEP
    )


def needs_padding(load: Load, *, with_halo: bool = True) -> tuple[int, ...]:
    """Return the dimensions in which a load may read outside its tensor, for any of the dynamic
    sizes.

    If `with_halo` is true, the halo counts as part of the tensor.
    """
    result = []
    for dim, index in enumerate(load.index):
        low, high = index.bounds()
        before, after = load.tensor.halo_of(dim) if with_halo else (0, 0)
        inside = always_less(-before - 1, low)
        if not inside or not always_less(high, load.tensor.shape[dim] + after):
            result.append(dim)
    return tuple(result)


def edges(load: Load, axis: Axis, *, with_halo: bool = True) -> tuple[int, int]:
    """Count the outputs at both ends of an axis whose computation reads outside a tensor.

    `load` is the read in question. For example, with padding 1 and a window of 3, the first and the
    last output read outside the input: (1, 1). If `with_halo` is true, the tensor's halo (a stored
    border of zeros) counts as part of the tensor. With dynamic sizes, each count is the maximum
    over all sizes.

    Returns:
        The number of such outputs at the start and at the end of the axis.

    Raises:
        ScheduleError: if a count has no upper bound.
    """
    first = last = 0
    for dim in needs_padding(load, with_halo=with_halo):
        step = load.index[dim].coefficient(axis)
        if not step:
            continue
        before, after = load.tensor.halo_of(dim) if with_halo else (0, 0)
        low, high = (load.index[dim] - affine(axis) * step).bounds()
        over = high + step * (axis.extent - 1) - (load.tensor.shape[dim] + after - 1)
        first = max(first, _most(-((low + before) // step)))
        last = max(last, _most(-(-over // step)))
    return first, last


def _most(size: int) -> int:
    """Return the maximum of a dynamic size.

    Raises:
        ScheduleError: if the size is unbounded.
    """
    high = bounds(size)[1]
    if high == inf:
        raise ScheduleError(f"there may be ever more than {size}")
    return int(high)


def reads_halo(reduction: Reduce) -> bool:
    """Whether a reduction may read the zeros of a halo (a border of zeros around a stored tensor).

    The result is True for sums only. An additional zero could change a maximum, but not a sum.
    """
    return reduction.combiner is Combiner.SUM


def padded_axes(problem: Problem) -> frozenset[Axis]:
    """Return the output axes along which a load in a reduction may read outside its tensor."""
    return frozenset(
        axis
        for reduction in problem.reductions
        for load in loads(reduction.body)
        for dim in needs_padding(load, with_halo=reads_halo(reduction))
        for axis in load.index[dim].axes()
        if axis in problem.axes
    )


def tile_edges(reduction: Reduce, axis: Axis | None) -> tuple[int, int]:
    """Return how many outputs at the start and at the end of an axis need separate code.

    For these outputs, the window of `reduction` reaches outside an input tensor. The result is (0,
    0) if `axis` is None.
    """
    if axis is None:
        return 0, 0
    reached = [edges(e, axis, with_halo=reads_halo(reduction)) for e in loads(reduction.body)]
    return max((first for first, _ in reached), default=0), max((n for _, n in reached), default=0)


def edges_are_static(edge: tuple[int, int], extent: int, tile: int) -> bool:
    """Whether the first and the last full tile of an axis contain all of its edge outputs.

    An edge output is one whose window reaches outside an input tensor. If the result is True,
    separate static code can compute the first and the last full tile. The run-time loop over the
    other tiles then computes no edge output.

    Args:
        edge: numbers of edge outputs at the start and at the end, from `tile_edges`.
        extent: extent of the axis.
        tile: size of a tile along the axis.
    """
    first, last = edge
    full = extent // tile
    return full < 3 or (first <= tile and last <= extent - (full - 1) * tile)


def depends_on(expr: Expr, axis: Axis) -> bool:
    """Whether the index of any load of an expression depends on an axis."""
    return any(
        axis in index.axes()
        for node in walk(expr)
        if isinstance(node, Load)
        for index in node.index
    )


def kernel_of(
    problem: Problem,
    stages: Sequence[Stage],
    mode: Mode,
    *,
    packed: Sequence[Tensor] = (),
    shared: Sequence[Tensor] = (),
    scratch: Sequence[Tensor] = (),
    output: Tensor | None = None,
    transforms: tuple[tuple[str, Transform], ...] = (),
) -> Kernel:
    """Build the kernel of a workload (a fused subgraph) from its stages.

    A stage is one function of a kernel; all threads finish a stage before the next one starts.

    Args:
        problem: the workload as one expression.
        stages: the stages, in the order in which they run. Loops that write zeros into the output's
            halo, a border around the stored tensor, are added to the last stage.
        mode: the target and its options.
        packed: inputs in another layout, such as packed weights. Each replaces the input with the
            same name.
        shared: buffers that all threads share.
        scratch: buffers that are private to a thread.
        output: the output tensor of the workload, if `problem` computes only a part of the output.
        transforms: the weights whose values are transformed before they are packed, as for
            Winograd's algorithm. Each entry is the name of a weight and its transform.
    """
    output = output or problem.output.tensor
    lanes = mode.target.lanes(DType.FLOAT32)
    buffers = (*replace_tensors(problem.inputs, packed), *shared, output)
    made = LoopNest("kernel", buffers, tuple(scratch), with_halo(tuple(stages), output, lanes))
    return Kernel(made, tuple((t.name, i) for i, t in enumerate(problem.inputs)), transforms)


def with_halo(stages: tuple[Stage, ...], output: Tensor, lanes: int) -> tuple[Stage, ...]:
    """Extend the stages of a kernel, so that they also write zeros into the halo of its output.

    A halo is a border of zeros around a stored tensor. A stage is one function of a kernel. `lanes`
    is the number of float32 elements in a vector. The result has the extended stages.
    """
    return (*stages[:-1], *add_serial_nests(stages[-1], _halo(output, lanes)))


def add_serial_nests(stage: Stage, nests: Sequence[Node]) -> tuple[Stage, ...]:
    """Add loop nests without parallel loops to a stage, a function of a kernel.

    If the stage has a parallel loop, the outer loops of the added nests become parallel. If that is
    not possible, the nests become a second stage. No added nest may access a tensor that the stage
    or another added nest writes.

    Returns:
        One or two stages.
    """
    if not any(isinstance(node, For) and node.binding is Binding.PARALLEL for node in stage.body):
        return (replace(stage, body=(*stage.body, *nests)),)
    shared = _shared(nests)
    if shared is None:
        return stage, Stage(f"{stage.name}b", tuple(nests))
    return (replace(stage, body=(*stage.body, *shared)),)


@memo(1024)
def _halo(output: Tensor, lanes: int) -> tuple[Node, ...]:
    """Return loop nests that write zeros into the halo of an output (a border around the tensor).

    There is one loop nest for each side of each dimension with a halo. The result is empty if the
    output has no halo.
    """
    if not any(output.halo):
        return ()
    rank = len(output.shape)
    nests: list[Node] = []
    for dim, (before, after) in enumerate(output.halo):
        for edge, width in ((-before, before), (output.shape[dim], after)):
            if not width:
                continue
            axes = []
            index: list[Affine] = []
            for d in range(rank):
                low, high = output.halo[d]
                if d == dim:
                    axis, start = Axis(f"h{d}", width), edge
                elif d < dim:
                    # The halo slices of outer dimensions have been written already.
                    axis, start = Axis(f"h{d}", output.shape[d]), 0
                else:
                    axis, start = Axis(f"h{d}", output.shape[d] + low + high), -low
                axes.append(axis)
                index.append(affine(axis) + start)
            target = Load(output, tuple(index))
            vector = vector_axis(target, axes)
            zero = Const(0.0, output.dtype)
            compute = Compute(
                (Store(target, zero),),
                zero,
                unroll=(Tile(vector, lanes),) if vector else (),
                vector=vector,
            )
            step = _halo_step(target, vector, lanes) if vector else 1
            loops = [LoopSpec(a, step if a == vector else 1) for a in axes]
            nests += nest(loops, compute)
    return tuple(nests)


def _halo_step(target: Load, vector: Axis, lanes: int) -> int:
    """Return how many zeros of a halo (a border around a tensor) one loop iteration writes.

    The result is 4 or 2 vectors of `lanes` elements if they always lie within one block of the
    tensor's layout, otherwise one vector.

    Args:
        target: the tensor element that is set to zero.
        vector: the axis along which vectors are written.
        lanes: elements of a vector.
    """
    steps = (count * lanes for count in (4, 2))
    tile = Tile(vector, lanes)
    return next((step for step in steps if aligned(target, {vector: step}, tile)), lanes)
