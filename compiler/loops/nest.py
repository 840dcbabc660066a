"""The loop-nest IR: schedules lower workloads to it, and code generation reads it.

A kernel is a list of stages with a barrier between them; a stage is a list of nests; a nest is a
tree of `For` with `Compute` at the leaves. A `Compute` evaluates one tensor expression at each
point of its register tile, that is, for each combination of values of the unrolled axes. Extents,
shapes and indices may be dynamic sizes; steps are integers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tilewright.compiler.dtypes import DType
from tilewright.compiler.loops.expr import (
    Cast,
    Combiner,
    Expr,
    Fold,
    IndexValue,
    Load,
    Op,
    Operation,
    Reduce,
    Tee,
    Tensor,
    walk,
)
from tilewright.compiler.loops.index import Affine, Axis
from tilewright.compiler.loops.size_substitution import SameAxisError, SizeSubstitution
from tilewright.compiler.sizes import Dimension, at, dimensions, is_dynamic, replaced


class Binding(StrEnum):
    """How the iterations of a loop are executed.

    SERIAL iterations run in order, and PARALLEL ones on several threads. BLOCK and LANE are
    reserved for the thread blocks and threads of a GPU; no schedule uses them.
    """

    SERIAL = "serial"
    PARALLEL = "parallel"
    BLOCK = "block"
    LANE = "lane"

    __hash__ = str.__hash__  # like DType's


class Order(StrEnum):
    """The order in which code generation emits the points of a register tile.

    A tile point is one combination of values of the unrolled axes. GREEDY first emits the tile
    points that need the fewest loads of elements that are not in registers yet. PROGRAM keeps the
    order of the unrolled axes.
    """

    GREEDY = "greedy"
    """The tile points with the fewest new loads first. A GEMM becomes a sequence of outer products;
    a depthwise convolution reads each input once, and adds it to all sums that need it."""
    PROGRAM = "program"


@dataclass(frozen=True, slots=True)
class Let:
    """A definition of an axis by a formula: `axis = min(source, maximum)`.

    If the last tile would extend past the end of the range, the minimum moves the tile back inside.
    The last tile then recomputes some elements of the tile before it.
    """

    axis: Axis
    source: Affine
    maximum: int


@dataclass(frozen=True, slots=True)
class For:
    """A loop over `axis` in tiles of `step` iterations: full tiles, then a narrower tail.

    Inside the body, `axis` refers to the current tile. Inner loops and register tiles over the same
    axis split this tile further. `peel` takes the first and the last full tile out of the run-time
    loop, so that their positions are known at compile time; `unroll` does so for all tiles.

    A PARALLEL loop is at the top of its stage, next to other PARALLEL loops only. Several threads
    call the stage, each with a range [lo, hi) of tile numbers. The tile numbers count the tiles of
    the loop, with two exceptions:

    - If the body of the loop is only a PARALLEL loop over another axis, tile numbers count the
      tiles of the inner loop. The count continues from one tile of the outer loop to the next.
    - If the stage has several PARALLEL loops at the top, tile numbers count the tiles of the first
      loop. A call that runs a quarter of these tiles also runs a quarter of the tiles of each other
      loop.
    """

    axis: Axis
    step: int
    body: tuple[Node, ...]
    binding: Binding = Binding.SERIAL
    peel: bool = False
    unroll: bool = False
    lets: tuple[Let, ...] = ()
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.axis, self.step, self.body)))

    def __hash__(self) -> int:
        return self._hash


@dataclass(frozen=True, slots=True)
class Tile:
    """One level of the tiling of an axis inside a Compute (a leaf of a loop nest).

    The level advances in steps of `step` elements. For a loop in `Compute.reduce`, `unroll`
    requests that code generation unrolls the loop.
    """

    axis: Axis
    step: int = 1
    unroll: bool = False


@dataclass(frozen=True, slots=True)
class Store:
    """A store of `value`, an expression over the accumulator and loads, to the element `target`."""

    target: Load
    value: Expr


@dataclass(frozen=True, slots=True)
class Compute:
    """A tensor expression and its register tile: the innermost computation of a loop nest.

    A tile point is one combination of values of the unrolled axes. Without a combiner, `body` is
    evaluated and stored at each tile point. With a combiner, `body` is reduced along some axes.
    Each combination of values of the other axes has an accumulator. The results are stored after
    the reduction.

    Attributes:
        stores: the stores of the results.
        body: the expression to evaluate, or to reduce. A Fold reduces tuples: `body` and `init` are
            then `Items`, and the stores read the items as `Accumulator(type, number)`.
        combiner: the operation of the reduction; None without a reduction.
        init: the initial value of the accumulators; None for the neutral element.
        reduce: the loops of the reduction outside the register tile, outermost first.
        unroll: the axes of the register tile, which are unrolled.
        vector: the axis along the lanes. If it is a reduction axis, the lanes are combined at the
            end.
        partial: reduction axes whose unrolled tile points have separate accumulators, which are
            combined at the end.
        order: the order in which the points of the tile are emitted.
        skip_padding: whether no code is emitted for a load that always reads padding.
        store_vector: an unrolled axis along which the lanes are stored, after a transpose in
            registers; None to store along `vector`.
        prefetch: a distance in bytes. The innermost loop prefetches the weights at this distance
            after the weights that it loads, because hardware prefetchers stop at each 4 KiB page.
        passes: surrounding loops, outermost first; empty without passes. A pass is an iteration of
            these loops: all passes read the same panel of `prefetch` bytes of weights. Each pass
            prefetches a part of the next panel, so that this panel is in the cache in time.
        dot: the unrolled reduction axis of a dot-product instruction (VNNI, SDOT). A tile of this
            axis is a dot-product group: 32 bits of elements (4 int8 or 2 bfloat16), or 64 bits for
            instructions that multiply matrices (`smmla`), adjacent in memory. The last group may be
            partial. Without a combiner, the Compute only packs elements into such groups.
        rows: the unrolled axis of the rows in tile registers (AMX); None without tile registers.
            The columns of a tile register are the lanes of `vector`. Sums run along `dot`, and the
            step of the innermost `reduce` loop is the depth of a tile register.
    """

    stores: tuple[Store, ...]
    body: Expr
    combiner: Combiner | Fold | None = None
    init: Expr | None = None
    reduce: tuple[Tile, ...] = ()
    unroll: tuple[Tile, ...] = ()
    vector: Axis | None = None
    partial: tuple[Axis, ...] = ()
    order: Order = Order.GREEDY
    skip_padding: bool = False
    store_vector: Axis | None = None
    prefetch: int = 0
    passes: tuple[Tile, ...] = ()
    dot: Axis | None = None
    rows: Axis | None = None
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.stores, self.body, self.reduce, self.unroll)))

    def __hash__(self) -> int:
        return self._hash

    @property
    def group(self) -> int:
        """The number of elements that a dot-product instruction multiplies per lane.

        The result is 1 without such an instruction. A Compute without a reduction may pack elements
        for such an instruction. The result is then the number of elements that are packed together.
        """
        if self.dot is None or (self.combiner is not None and dot_operands(self.body) is None):
            return 1
        return next((t.step for t in self.unroll if t.axis == self.dot), 1)


Node = For | Compute


def dot_operands(body: Expr) -> tuple[Load, Load] | None:
    """Return the loads a and b if an expression is `mul(cast(a), cast(b))`, else None.

    Dot-product instructions sum such products. The elements of both loads must have the same size,
    below 4 bytes. They are integers that are multiplied in int32, or bfloat16 numbers that are
    multiplied in float32.
    """
    match body:
        case Op(
            operation=Operation.MUL,
            args=(Cast(value=Load() as left), Cast(value=Load() as right)),
        ) if left.dtype.bytes == right.dtype.bytes < 4:
            types = {left.dtype, right.dtype}
            integers = body.dtype is DType.INT32 and not any(t.is_float for t in types)
            brains = body.dtype is DType.FLOAT32 and types == {DType.BFLOAT16}
            return (left, right) if integers or brains else None
    return None


@dataclass(frozen=True, slots=True)
class Stage:
    """Loop nests that run one after the other, without a barrier between them.

    Several threads run the tiles of PARALLEL loops. No tile may therefore access elements that
    another tile of the stage writes.
    """

    name: str
    body: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class LoopNest:
    """The loop nest of a whole kernel.

    Attributes:
        name: the name of the kernel.
        buffers: the arguments of the kernel in order: inputs, weights in their packed form, shared
            scratch, outputs.
        scratch: temporary tensors of each thread, consecutive in the thread's private block of
            memory.
        stages: the stages in order, with a barrier between them.
    """

    name: str
    buffers: tuple[Tensor, ...]
    scratch: tuple[Tensor, ...]
    stages: tuple[Stage, ...]

    @property
    def computes(self) -> tuple[Compute, ...]:
        """Every Compute (a leaf of the loop nest), in program order."""
        return tuple(
            node
            for stage in self.stages
            for node in _nodes(stage.body)
            if isinstance(node, Compute)
        )

    @property
    def sizes(self) -> tuple[Dimension, ...]:
        """The dynamic dimensions, sorted by name.

        The kernel's `sizes` argument holds their sizes in this order.
        """
        return dimensions(*(size for size in self._numbers() if is_dynamic(size)))

    @property
    def axes(self) -> tuple[Axis, ...]:
        """Every axis of the nest, each once, in the order of occurrence."""
        return tuple(
            dict.fromkeys(
                axis for stage in self.stages for node in _nodes(stage.body) for axis in _axes(node)
            )
        )

    def at(self, values: Mapping[str, int]) -> LoopNest:
        """Return the nest with fixed sizes in place of its dynamic dimensions.

        `values` has the size of each dimension by name.

        Raises:
            ValueError: if a size is not in its dimension's range.
            KeyError: if a dimension has no size.
        """
        closed = SizeSubstitution(values)
        try:
            return replaced(self, closed, SizeSubstitution.KINDS)
        except SameAxisError:
            return self._with_separate_axes(values).at(values)

    def _with_separate_axes(self, values: Mapping[str, int]) -> LoopNest:
        """Return the nest with new names for some axes, so that all axes stay different.

        Two axes with the same name and different dynamic extents would become equal if both extents
        have the same size in `values`.
        """
        closed: set[Axis] = set()
        renamed: dict[Axis, Axis] = {}
        for axis in self.axes:
            name, extent = axis.name, at(axis.extent, values)
            while Axis(name, extent) in closed:
                name += "'"
            closed.add(Axis(name, extent))
            if name != axis.name:
                renamed[axis] = Axis(name, axis.extent)
        return replaced(self, lambda axis: renamed.get(axis, axis), Axis)

    def _numbers(self) -> Iterator[int]:
        """Yield every integer of the nest that may be a dynamic size."""
        for axis in self.axes:
            yield axis.extent
        for tensor in (*self.buffers, *self.scratch):
            yield from tensor.shape
        for stage in self.stages:
            for node in _nodes(stage.body):
                for index in _indices(node):
                    yield from index.numbers()
                if isinstance(node, For):
                    yield from (let.maximum for let in node.lets)
                    continue
                for part in _parts(node):
                    if isinstance(part, Load):
                        yield from part.tensor.shape


def _nodes(nodes: tuple[Node, ...]) -> Iterator[Node]:
    """Yield all loops and leaves (`Compute`) of trees of loops, in program order."""
    for node in nodes:
        yield node
        if isinstance(node, For):
            yield from _nodes(node.body)


def _axes(node: Node) -> Iterator[Axis]:
    """Yield the axes that a node refers to, with repetitions, but not those of nested nodes."""
    match node:
        case For():
            yield node.axis
            yield from (let.axis for let in node.lets)
        case Compute():
            yield from (tile.axis for tile in (*node.reduce, *node.unroll, *node.passes))
            yield from node.partial
            for axis in (node.vector, node.store_vector, node.dot, node.rows):
                if axis is not None:
                    yield axis
            for part in _parts(node):
                if isinstance(part, Reduce):
                    yield from part.axes
    for index in _indices(node):
        yield from index.axes()


def _indices(node: Node) -> Iterator[Affine]:
    """Yield the indices in a node, but not those of nested nodes."""
    match node:
        case For():
            yield from (let.source for let in node.lets)
        case Compute():
            for part in _parts(node):
                match part:
                    case Load(index=index):
                        yield from index
                    case IndexValue(index=position):
                        yield position


def _parts(compute: Compute) -> Iterator[Expr]:
    """Yield every expression node of a Compute (a leaf of a loop nest).

    This includes the targets of stores and of Tees (nodes that also store their value), and the
    expressions in the indirect indices of all targets.
    """
    pending = [*reversed(expressions(compute))]
    while pending:
        for part in walk(pending.pop()):
            yield part
            if isinstance(part, Tee):
                pending.append(part.target)


def expressions(compute: Compute) -> tuple[Expr, ...]:
    """Return the body, the initial value, and the target and value of each store of a Compute.

    A Compute is a leaf of a loop nest.
    """
    init = () if compute.init is None else (compute.init,)
    stores = (e for store in compute.stores for e in (store.target, store.value))
    return (compute.body, *init, *stores)
