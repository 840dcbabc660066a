"""Interpreter of loop nests on NumPy arrays: slow, and so simple that it defines the IR's
semantics.

Tests compare both sides with it: a schedule's nest must compute the operators' results, and
generated code must compute its nest's results.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.loops.expr import (
    Combiner,
    Expr,
    Fold,
    IndexValue,
    Load,
    Space,
    Tee,
    Tensor,
    loads,
)
from tilewright.compiler.loops.index import Affine, Axis, FloorDiv
from tilewright.compiler.loops.layout import strides
from tilewright.compiler.loops.nest import Compute, For, LoopNest, Node, Tile
from tilewright.compiler.loops.semantics import (
    Array,
    apply_combiner,
    compute_type,
    evaluate_expression,
    from_memory,
    items_of,
    join,
    neutral_items,
    to_memory,
)


def run_nest(
    nest: LoopNest, buffers: Sequence[Array], sizes: Mapping[str, int] | None = None
) -> None:
    """Run a kernel on its buffers, in place.

    Args:
        nest: the kernel.
        buffers: one for each of `nest.buffers`, in its physical form: 1-D, of `tensor.bytes`, from
            `pack_tensor`.
        sizes: of the dynamic dimensions, by name.

    Raises:
        ValueError: if a buffer has another size or type, or if the nest reads or writes outside a
            tensor where it must not.
    """
    nest = nest.at(sizes or {})
    for tensor, buffer in zip(nest.buffers, buffers, strict=True):
        if buffer.nbytes != tensor.bytes or buffer.dtype != tensor.dtype.numpy:
            raise ValueError(
                f"buffer '{tensor.name}' is not {tensor.bytes} bytes of {tensor.dtype}"
            )
    memory = dict(zip((t.name for t in nest.buffers), buffers, strict=True))
    memory |= {tensor.name: _undefined(tensor) for tensor in nest.scratch}
    machine = _Machine(memory)
    for stage in nest.stages:
        for node in stage.body:
            machine.run(node, {})


def pack_tensor(tensor: Tensor, array: Array) -> Array:
    """A logical array in the physical form of a tensor; halo and padding are 0."""
    buffer = np.zeros(tensor.bytes // tensor.dtype.bytes, tensor.dtype.numpy)
    buffer[physical_offsets(tensor, np.indices(tensor.shape))] = array
    return buffer


def unpack_tensor(tensor: Tensor, buffer: Array) -> Array:
    """The logical array in a tensor's physical form."""
    return np.asarray(buffer[physical_offsets(tensor, np.indices(tensor.shape))])


def physical_offsets(tensor: Tensor, index: Sequence[Array] | Array) -> Array:
    """Elements from the start of the buffer, for an array of positions in each logical axis; the
    arrays are broadcast."""
    steps, _ = strides(tensor.shape, tensor.layout, tensor.halo)
    total = np.zeros((), np.int64)
    for factor, step in zip(tensor.layout.resolved(len(tensor.shape)), steps, strict=True):
        part = index[factor.dim]
        if before := tensor.halo_of(factor.dim)[0]:
            part = part + before
        if factor.div != 1:
            part = part // factor.div
        if factor.mod is not None:
            part = part % factor.mod
        total = total + part * step
    return total


@dataclass(frozen=True, slots=True)
class _Span:
    """The current range of an axis: `width` values from `start`."""

    start: int
    width: int


_Environment = dict[Axis, _Span]


@dataclass(slots=True)
class _Machine:
    """Memory by name; register tensors are created by their first store."""

    memory: dict[str, Array]
    constants: dict[Tensor, Array] = field(default_factory=dict)
    grids: dict[tuple[int, tuple[int, ...]], tuple[_Grid, _Grid]] = field(default_factory=dict)
    """Relative points of a Compute, by its identity and the widths of its axes."""

    def run(self, node: Node, environment: _Environment) -> None:
        match node:
            case For():
                for span in _tiles(environment.get(node.axis, _whole(node.axis)), node.step):
                    inner = {**environment, node.axis: span}
                    for let in node.lets:
                        starts = {axis: np.asarray(s.start) for axis, s in inner.items()}
                        value = min(int(_value(let.source, starts)), let.maximum)
                        inner[let.axis] = _Span(value, 1)
                    for child in node.body:
                        self.run(child, inner)
            case Compute():
                _Execution(self, node, environment).run()

    def array(self, tensor: Tensor) -> Array:
        """The physical elements of a tensor."""
        if tensor.space is Space.CONSTANT:
            if tensor not in self.constants:
                values = np.reshape(tensor.values, tensor.shape)
                self.constants[tensor] = pack_tensor(tensor, values)
            return self.constants[tensor]
        if tensor.name not in self.memory:
            if tensor.space is not Space.REGISTER:
                raise ValueError(f"tensor '{tensor.name}' is neither a buffer nor scratch")
            self.memory[tensor.name] = _undefined(tensor)
        return self.memory[tensor.name].view(tensor.dtype.numpy)


class _Execution:
    """One run of a Compute: all its points at once, spatial points x reduction points."""

    def __init__(self, machine: _Machine, compute: Compute, environment: _Environment) -> None:
        self.machine = machine
        self.compute = compute
        levels = (*compute.reduce, *compute.unroll)
        axes = dict.fromkeys(tile.axis for tile in levels)
        if compute.vector is not None:
            axes |= {compute.vector: None}
        spans = {axis: environment.get(axis, _whole(axis)) for axis in axes}
        key = id(compute), tuple(span.width for span in spans.values())
        if key not in machine.grids:
            machine.grids[key] = _grids(compute, levels, spans)
        spatial, reduction = machine.grids[key]
        self.fixed = {a: np.asarray(s.start) for a, s in environment.items() if a not in spans}
        self.spatial = {axis: spans[axis].start + steps for axis, steps in spatial.items()}
        self.reduction = {axis: spans[axis].start + steps for axis, steps in reduction.items()}
        self.shape = (next((len(steps) for steps in spatial.values()), 1), 1)

    def run(self) -> None:
        compute = self.compute
        everywhere = {**self.fixed, **self.spatial, **self.reduction}
        if compute.combiner is None:
            result: tuple[Array, ...] = (self._evaluate(compute.body, everywhere),)
        else:
            result = self._reduce(compute.combiner, everywhere)
        here = {**self.fixed, **self.spatial}
        for store in compute.stores:
            self._store(store.target, self._evaluate(store.value, here, result), here)

    def _reduce(self, combiner: Combiner | Fold, values: Mapping[Axis, Array]) -> tuple[Array, ...]:
        """The body combined over the reduction's points, except those out of bounds."""
        compute = self.compute
        inside = np.asarray(True)
        halo_counts = not compute.skip_padding or combiner is Combiner.SUM
        for load in loads(compute.body):
            inside = inside & self._inside(load, values, halo=halo_counts)
        count = next((v.shape[1] for v in self.reduction.values()), 1)
        shape = self.shape[0], count
        starts = neutral_items(combiner, compute.body.dtype)
        terms = [np.full(shape, start) for start in starts]
        if 0 in shape:
            pass
        elif inside.all():
            for term, item in zip(terms, items_of(compute.body), strict=True):
                term[...] = self._evaluate(item, values)
        elif inside.any():
            inside = np.broadcast_to(inside, shape)
            safe = {a: np.broadcast_to(v, shape)[inside] for a, v in values.items()}
            for term, item in zip(terms, items_of(compute.body), strict=True):
                term[inside] = self._evaluate(item, safe)
        total: tuple[Array, ...]
        if isinstance(combiner, Combiner) and shape[1]:
            total = (apply_combiner(combiner, terms[0]),)
        else:
            total = tuple(np.broadcast_to(start, self.shape) for start in starts)
            for point in range(shape[1]):
                total = join(combiner, total, [term[:, point : point + 1] for term in terms])
        if compute.init is None:
            return total
        here = {**self.fixed, **self.spatial}
        first = [
            np.broadcast_to(self._evaluate(item, here), self.shape)
            for item in items_of(compute.init)
        ]
        return join(combiner, first, total)

    def _evaluate(
        self, expr: Expr, values: Mapping[Axis, Array], accumulators: Sequence[Array] = ()
    ) -> Array:
        def position(node: IndexValue) -> Array:
            return np.asarray(_value(node.index, values), compute_type(node.type))

        def write(node: Tee, value: Array) -> None:
            self._store(node.target, value, values)

        return evaluate_expression(
            expr, lambda load: self._load(load, values, accumulators), accumulators, position, write
        )

    def _position(
        self, load: Load, values: Mapping[Axis, Array], accumulators: Sequence[Array]
    ) -> list[Array]:
        index = [_value(i, values) for i in load.index]
        for dim, expr in load.indirect:
            position = self._evaluate(expr, values, accumulators)
            index[dim] = index[dim] + position.astype(np.int64)
        return index

    def _inside(self, load: Load, values: Mapping[Axis, Array], *, halo: bool) -> Array:
        """A mask of the points at which a load lies within its tensor (and its halo)."""
        result = np.asarray(True)
        if load.tensor.space is Space.REGISTER:
            return result
        for dim, index in enumerate(_value(i, values) for i in load.index):
            low, high = load.tensor.halo_of(dim) if halo else (0, 0)
            result = result & (index >= -low) & (index < load.tensor.shape[dim] + high)
        return result

    def _load(
        self, load: Load, values: Mapping[Axis, Array], accumulators: Sequence[Array]
    ) -> Array:
        offsets = self._offsets(load, values, accumulators)
        return from_memory(self.machine.array(load.tensor)[offsets], load.tensor.dtype)

    def _store(self, target: Load, value: Array, values: Mapping[Axis, Array]) -> None:
        offsets = self._offsets(target, values)
        value, offsets = np.broadcast_arrays(value, offsets)
        self.machine.array(target.tensor)[offsets] = to_memory(value, target.tensor.dtype)

    def _offsets(
        self, load: Load, values: Mapping[Axis, Array], accumulators: Sequence[Array] = ()
    ) -> Array:
        index = self._position(load, values, accumulators)
        for dim, position in enumerate(index):
            low, high = load.tensor.halo_of(dim)
            most = load.tensor.shape[dim] + high
            if position.size and (position.min() < -low or position.max() >= most):
                raise ValueError(
                    f"'{load.tensor.name}' is accessed out of bounds in dimension {dim}: "
                    f"{np.min(position)}..{np.max(position)} of {load.tensor.shape[dim]}"
                )
        return physical_offsets(load.tensor, index)


_Grid = dict[Axis, Array]


def _grids(
    compute: Compute, levels: Sequence[Tile], spans: Mapping[Axis, _Span]
) -> tuple[_Grid, _Grid]:
    """All combinations of the points of a Compute's axes, relative to the start of each span: those
    of the stores' axes as columns, and those of the reduction's axes as rows."""
    outputs = {a for s in compute.stores for i in s.target.index for a in i.axes()}
    points = {axis: _points(axis, levels, compute, span.width) for axis, span in spans.items()}
    return (
        _grid({a: p for a, p in points.items() if a in outputs}, 0),
        _grid({a: p for a, p in points.items() if a not in outputs}, 1),
    )


def _points(axis: Axis, levels: Sequence[Tile], compute: Compute, width: int) -> Array:
    """The values of an axis that a Compute visits: its tile, split level by level.

    At the innermost level an axis has the start of its tile, unless it runs along the lanes or
    through a packed element.
    """
    spans = [_Span(0, width)]
    for tile in levels:
        if tile.axis == axis:
            spans = [part for span in spans for part in _tiles(span, tile.step)]
    if axis in (compute.vector, compute.dot):
        return np.array([i for s in spans for i in range(s.start, s.start + s.width)], np.int64)
    return np.array([s.start for s in spans], np.int64)


def _grid(points: Mapping[Axis, Array], side: int) -> _Grid:
    """All combinations: for each axis its value at every point, as a column (0) or a row (1)."""
    mesh = np.meshgrid(*points.values(), indexing="ij")
    shape = (-1, 1) if side == 0 else (1, -1)
    return {axis: m.reshape(shape) for axis, m in zip(points, mesh, strict=True)}


def _whole(axis: Axis) -> _Span:
    return _Span(0, axis.extent)


def _tiles(span: _Span, step: int) -> Iterator[_Span]:
    """Full tiles, then a narrower one."""
    end = span.start + span.width
    for start in range(span.start, end, step):
        yield _Span(start, min(step, end - start))


def _value(index: Affine, values: Mapping[Axis, Array]) -> Array:
    """An index at every point."""
    total = np.asarray(index.constant)
    for term, coefficient in index.terms:
        axis = term.axis if isinstance(term, FloorDiv) else term
        if axis not in values:
            if axis.extent == 1:
                continue
            raise ValueError(f"axis '{axis.name}' is used outside of its loop")
        part = values[axis] // term.divisor if isinstance(term, FloorDiv) else values[axis]
        total = total + part * coefficient
    return total


def _undefined(tensor: Tensor) -> Any:
    """Memory that has not been written yet: NaN, so that a read of it shows in the result."""
    count = tensor.bytes // tensor.dtype.bytes
    if tensor.dtype is DType.BFLOAT16:
        return np.full(count, 0x7FC0, np.uint16)
    fill = np.nan if tensor.dtype.is_float else 1
    return np.full(count, fill, tensor.dtype.numpy)
