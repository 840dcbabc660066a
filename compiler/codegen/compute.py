"""Lowering of one Compute: a tensor expression at its register tile.

The unrolled axes are constants of the generator (partial evaluation): skipped taps, constant
matrices with zeros and ones, and tails are all 'evaluate the same code at a known point'.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING

from compiler.codegen import memory
from compiler.codegen.access import Kind, Linear, Padding, bind, evaluate
from compiler.codegen.arithmetic import apply, cast
from compiler.codegen.combining import Partial, join, join_lanes, same_lanes, start
from compiler.codegen.dot import multiply_add
from compiler.codegen.order import constant_points, greedy_points
from compiler.codegen.points import Point, Points
from compiler.codegen.resolve import (
    Access,
    Accesses,
    RegisterAccess,
    in_bounds,
    resolve,
    resolve_register,
    resolve_target,
)
from compiler.codegen.ssa import Value, element
from compiler.codegen.transpose import transpose
from compiler.dtypes import DType
from compiler.errors import ScheduleError
from compiler.loops.expr import (
    Accumulator,
    Cast,
    Combiner,
    Const,
    Expr,
    Fold,
    IndexValue,
    Load,
    Op,
    Operation,
    Reduce,
    Space,
    Tee,
    walk,
)
from compiler.loops.nest import Compute, Order, Store, Tile, dot_operands
from compiler.loops.semantics import items_of

if TYPE_CHECKING:
    from compiler.codegen.lower import StageLowering

Key = tuple[Point, Point]
"""Which accumulator: the point of the spatial axes, and that of the partial axes."""


class ComputeLowering:
    """State of one Compute while it is lowered."""

    def __init__(self, stage: StageLowering, compute: Compute) -> None:
        self.stage = stage
        self.emitter = stage.emitter
        self.compute = compute
        self.output_axes = {
            axis
            for store in compute.stores
            for index in store.target.index
            for axis in index.axes()
        }
        # An axis of one value is in no index; without a reduction all points are stored.
        every = compute.combiner is None
        self.spatial = tuple(t for t in compute.unroll if every or t.axis in self.output_axes)
        self.reduces_lanes = compute.vector is not None and compute.vector not in self.output_axes
        self.dtype = compute.body.dtype
        self.padding = Padding.READ
        if compute.skip_padding:
            harmless = compute.combiner is Combiner.SUM
            self.padding = Padding.SKIP if harmless else Padding.NEVER
        self.hoisted: set[tuple[str, int]] = set()
        self.accumulators = 0

    def run(self) -> None:
        """Emit the whole computation into the open scope."""
        compute, stage = self.compute, self.stage
        for tile in (*compute.reduce, *compute.unroll):
            stage.open_axis(tile.axis)
        saved = dict(stage.environment)
        if compute.combiner is None:
            results = self._map()
        else:
            initial = self._initial(compute.combiner)
            flat = [value for partial in initial.values() for value in partial]
            reduced = self._reduce(0, flat, list(initial))
            results = self._join(compute.combiner, self._by_key(reduced, list(initial)))
        self._finish(results)
        stage.environment = saved

    # ---- accumulators

    def _partial_counts(self) -> list[int]:
        unroll = {t.axis: t.step for t in self.compute.unroll}
        counts = []
        for axis in self.compute.partial:
            extents = [t.step for t in self.compute.reduce if t.axis == axis]
            extent = min([self.stage.environment[axis].extent, *extents])
            counts.append(-(-extent // unroll[axis]))
        return counts

    def _initial(self, combiner: Combiner | Fold) -> dict[Key, Partial]:
        """One accumulator (of several items) for each point of the spatial and partial axes."""
        init = self.compute.init
        partials = list(product(*map(range, self._partial_counts())))
        neutral = start(self.emitter, combiner, self.dtype)
        result: dict[Key, Partial] = {}
        with self._points(self.spatial) as points:
            lanes = self.stage.lanes if self.reduces_lanes else points.lanes
            # Lanes that are joined in the end must see the initial value once: `_join` adds it.
            accesses = None
            if init is not None and not self.reduces_lanes:
                accesses = resolve(self.stage, init, points, self.padding)
            for point in points:
                for number, partial in enumerate(partials):
                    values = neutral
                    if accesses is not None and number == 0 and init is not None:
                        values = self._items(init, accesses, points, point)
                    result[point, partial] = same_lanes(self.emitter, values, lanes)
        self.accumulators = len(result) * len(neutral)
        return result

    def _by_key(self, values: Sequence[Value], keys: Sequence[Key]) -> dict[Key, Partial]:
        """The items of accumulators that follow each other, together again."""
        items = len(values) // len(keys)
        return {key: tuple(values[i * items : (i + 1) * items]) for i, key in enumerate(keys)}

    def _reduce(self, level: int, values: list[Value], keys: list[Key]) -> list[Value]:
        """The reduction loops from `level` inwards, carrying the accumulators."""
        if level == len(self.compute.reduce):
            return self._leaf(values, keys)
        tile = self.compute.reduce[level]
        granularity = next((t.step for t in self.compute.unroll if t.axis == tile.axis), 0)
        return self.stage.over(
            tile.axis,
            tile.step,
            lambda carried: self._reduce(level + 1, carried, keys),
            carried=values,
            unroll=tile.unroll,
            granularity=granularity,
            clip=None if tile.unroll else self._clip_loads(tile),
            padding=self.padding,
        )

    def _clip_loads(self, tile: Tile) -> tuple[Load, ...]:
        """Loads that may clip the range of this reduction loop to what is in bounds."""
        if tile.step != 1:
            return ()
        return tuple(
            node
            for node in walk(self.compute.body)
            if isinstance(node, Load) and node.tensor.space is Space.MEMORY
        )

    def _leaf(self, values: list[Value], keys: list[Key]) -> list[Value]:
        compute = self.compute
        combiner = compute.combiner
        assert combiner is not None
        current = self._by_key(values, keys)
        axes = [t.axis for t in compute.unroll]
        spatial = [axes.index(t.axis) for t in self.spatial]
        partial = [axes.index(axis) for axis in compute.partial]
        with self._points(compute.unroll) as points:
            accesses = resolve(self.stage, compute.body, points, self.padding)
            order = [p for p in points if in_bounds(accesses, p)]
            order = self._ordered(order, accesses, spatial)
            if compute.prefetch:
                memory.prefetch(self.stage, accesses, order, compute.prefetch)
            for point in order:
                key = tuple(point[i] for i in spatial), tuple(point[i] for i in partial)
                current[key] = self._accumulate(combiner, current[key], accesses, points, point)
        return [value for key in keys for value in current[key]]

    def _ordered(
        self, points: list[Point], accesses: Accesses, spatial: Sequence[int]
    ) -> list[Point]:
        match self.compute.body:
            case Op(operation=Operation.MUL, args=args) if self.compute.combiner is Combiner.SUM:
                for arg in args:
                    access = accesses.get(arg) if isinstance(arg, Load) else None
                    if isinstance(access, Access) and access.tensor.space is Space.CONSTANT:
                        points = constant_points(points, access, spatial)
        if self.compute.order is Order.GREEDY:
            in_memory = [a for a in accesses.values() if isinstance(a, Access)]
            return greedy_points(points, in_memory, self.emitter.depth)
        return points

    def _accumulate(
        self,
        combiner: Combiner | Fold,
        current: Partial,
        accesses: Accesses,
        points: Points,
        point: Point,
    ) -> Partial:
        body, emitter = self.compute.body, self.emitter
        neutral = start(emitter, combiner, self.dtype)
        fresh = all(
            c.const is not None and c.const == n.const
            for c, n in zip(current, neutral, strict=True)
        )
        active, lanes = points.active(point), self.stage.lanes
        if self.reduces_lanes and active < lanes:
            values = self._items(body, accesses, points, point)
            mask = memory.lane_mask(lanes, active)
            values = tuple(
                emitter.emit(
                    v.dtype, lanes, f"select {mask}, {v.type} %s, {v.type} %s", v,
                    emitter.splat(n, lanes),
                )
                for v, n in zip(same_lanes(emitter, values, lanes), neutral, strict=True)
            )  # fmt: skip
            return values if fresh else join(emitter, combiner, current, values)
        operands = dot_operands(body) if self.compute.dot is not None else None
        if operands is not None:
            x, y = (self._evaluate(load, accesses, points, point) for load in operands)
            types = operands[0].dtype, operands[1].dtype
            (accumulator,) = current
            return (multiply_add(emitter, types, accumulator, x, y),)
        match body:
            case Op(operation=Operation.MUL, args=(left, right)) if combiner is Combiner.SUM:
                x = self._evaluate(left, accesses, points, point)
                y = self._evaluate(right, accesses, points, point)
                if fresh:
                    return (apply(emitter, Operation.MUL, x, y),)
                return (apply(emitter, Operation.FMA, x, y, *current),)
        values = self._items(body, accesses, points, point)
        return values if fresh else join(emitter, combiner, current, values)

    def _join(self, combiner: Combiner | Fold, values: dict[Key, Partial]) -> dict[Point, Partial]:
        """Join partial accumulators in a tree, then lanes."""
        groups: dict[Point, list[Partial]] = {}
        for (point, _), partial in values.items():
            groups.setdefault(point, []).append(partial)
        result = {}
        for point, group in groups.items():
            while len(group) > 1:
                pairs = [group[i : i + 2] for i in range(0, len(group), 2)]
                group = [
                    join(self.emitter, combiner, *pair) if len(pair) == 2 else pair[0]
                    for pair in pairs
                ]
            partial = group[0]
            if self.reduces_lanes:
                whole = same_lanes(self.emitter, partial, self.stage.lanes)
                partial = join_lanes(self.emitter, combiner, whole)
            result[point] = partial
        init = self.compute.init
        if self.reduces_lanes and init is not None:
            with self._points(self.spatial) as points:
                accesses = resolve(self.stage, init, points)
                for point, partial in result.items():
                    first = self._items(init, accesses, points, point)
                    result[point] = join(self.emitter, combiner, first, partial)
        return result

    # ---- without a reduction

    def _map(self) -> dict[Point, Partial]:
        compute = self.compute
        result: dict[Point, Partial] = {}
        with self._points(compute.unroll) as points:
            accesses = resolve(self.stage, compute.body, points, self.padding)
            for point in points:
                if not in_bounds(accesses, point):
                    raise ScheduleError("a load outside of its tensor, and no reduction to skip")
                result[point] = self._items(compute.body, accesses, points, point)
        return result

    # ---- stores

    def _finish(self, results: dict[Point, Partial]) -> None:
        with self._points(self.spatial) as points:
            prepared = [self._prepare(store, points) for store in self.compute.stores]
            if self.compute.store_vector is not None:
                self._transposed(results, points)
                return
            for point in points:
                for store, value_accesses, target in prepared:
                    value = self._evaluate(
                        store.value, value_accesses, points, point, results[point]
                    )
                    if isinstance(target, RegisterAccess):
                        self.stage.registers[target.key(point)] = value
                    else:
                        self._write(target, value, points, point)

    def _prepare(
        self, store: Store, points: Points
    ) -> tuple[Store, Accesses, Access | RegisterAccess]:
        accesses = resolve(self.stage, store.value, points)
        if store.target.tensor.space is Space.REGISTER:
            return store, accesses, resolve_register(self.stage, store.target, points)
        return store, accesses, resolve_target(self.stage, store.target, points)

    def _write(self, target: Access, value: Value, points: Points, point: Point) -> None:
        lanes = 1 if self.reduces_lanes else points.lanes
        active = 1 if self.reduces_lanes else points.active(point)
        memory.store(self.stage, target, self.emitter.splat(value, lanes), point, active)

    def _transposed(self, results: dict[Point, Partial], points: Points) -> None:
        """Lanes along one axis become lanes along another.

        Before: for each j of `store_vector` one vector over `vector`; after: for each lane of
        `vector` one vector over j.
        """
        axis = self.compute.store_vector
        (store,) = self.compute.stores
        position = [t.axis for t in self.spatial].index(axis) if axis else 0
        width = points.lanes
        target = resolve_target(self.stage, store.target, points)
        accesses = resolve(self.stage, store.value, points)
        groups: dict[Point, dict[int, Value]] = {}
        for point, partial in results.items():
            value = self._evaluate(store.value, accesses, points, point, partial)
            rest = (*point[:position], *point[position + 1 :])
            groups.setdefault(rest, {})[point[position]] = value
        for rest, group in groups.items():
            first = (*rest[:position], 0, *rest[position:])
            if width == 1 or len(group) != width or points.active(first) != width:
                # A ragged tile is scattered lane by lane.
                for i, value in group.items():
                    self._write(target, value, points, (*rest[:position], i, *rest[position:]))
                continue
            rows = transpose(self.emitter, [group[i] for i in range(width)])
            for lane, row in enumerate(rows):
                across = target.transposed(position, lane)
                memory.store(self.stage, across, row, first, width)

    # ---- expressions

    def _points(self, tiles: Sequence[Tile]) -> Points:
        return Points(self.stage, tiles, self.compute.vector, self.compute.dot)

    def _items(self, expr: Expr, accesses: Accesses, points: Points, point: Point) -> Partial:
        """The items of a tuple at one point."""
        return tuple(self._evaluate(e, accesses, points, point) for e in items_of(expr))

    def _evaluate(
        self,
        expr: Expr,
        accesses: Accesses,
        points: Points,
        point: Point,
        accumulator: Partial = (),
    ) -> Value:
        """The value of an expression at one point of the unrolled axes."""
        memo: dict[Expr, Value] = {}

        def visit(node: Expr) -> Value:
            found = memo.get(node)
            if found is None:
                found = memo[node] = compute(node)
            return found

        def compute(node: Expr) -> Value:
            match node:
                case Load(tensor=tensor, indirect=indirect):
                    access = accesses[node]
                    if isinstance(access, RegisterAccess):
                        stored = self.stage.registers.get(access.key(point))
                        if stored is None:
                            raise ScheduleError(
                                f"register tensor '{tensor.name}' is read before it is written"
                            )
                        return stored
                    moved = [visit(e) for _, e in indirect]
                    active, lanes = points.active(point), points.lanes
                    return memory.load(self.stage, self, access, point, active, lanes, moved)
                case Const(value=value, type=dtype):
                    return self.emitter.const(value, dtype)
                case Accumulator(number=number):
                    return accumulator[number]
                case IndexValue(index=index, type=dtype):
                    form = bind(self.emitter, self.stage.environment, index)
                    return self._index_value(form, points, point, dtype)
                case Op(operation=operation, args=args):
                    return apply(self.emitter, operation, *[visit(a) for a in args])
                case Cast(value=inner, type=dtype):
                    return cast(self.emitter, visit(inner), dtype)
                case Tee(value=inner, target=target):
                    kept = visit(inner)
                    access = resolve_target(self.stage, target, points)
                    splat = self.emitter.splat(kept, points.lanes)
                    memory.store(self.stage, access, splat, point, points.active(point))
                    return kept
                case Reduce():
                    raise ScheduleError("a reduction was left inside an expression")
                case _:
                    raise TypeError(f"unknown expression {type(node).__name__}")

        return visit(expr)

    def _index_value(self, form: Linear, points: Points, point: Point, dtype: DType) -> Value:
        emitter, static = self.emitter, points.static(form, point)
        whole = DType.INT64 if dtype.is_float or dtype is DType.BOOL else dtype
        base = cast(emitter, evaluate(emitter, Linear(form.of(Kind.RUNTIME), static)), whole)
        lanes = form.of(Kind.LANE)
        if lanes and points.lanes > 1:
            name = element(whole)
            steps = ", ".join(
                f"{name} {sum(c * (lane // v.divisor) for v, c in lanes.items())}"
                for lane in range(points.lanes)
            )
            base = emitter.splat(base, points.lanes)
            base = emitter.emit(whole, points.lanes, f"add {base.type} %s, <{steps}>", base)
        return cast(emitter, base, dtype)
