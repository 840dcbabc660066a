"""Lowering of one `Compute`: a tensor expression over a register tile.

The unrolled axes have constant values during code generation, and code is emitted separately for
each combination of their values (a tile point). The generator thus skips tile points in padding and
zeros of constant matrices, and emits narrower tiles at the end of an axis, without code paths for
these cases.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from operator import itemgetter

from tilewright.compiler.codegen.cpu import memory
from tilewright.compiler.codegen.cpu.access import Padding
from tilewright.compiler.codegen.cpu.ahead import loads_ahead
from tilewright.compiler.codegen.cpu.combining import Partial, same_lanes
from tilewright.compiler.codegen.cpu.context import Context, RegisterBudget
from tilewright.compiler.codegen.cpu.deinterleaving import (
    Place,
    has_deinterleaving_loads,
    paired_vectors,
)
from tilewright.compiler.codegen.cpu.dot_instructions import multiply_add
from tilewright.compiler.codegen.cpu.expressions import Evaluator, evaluator, items_evaluator
from tilewright.compiler.codegen.cpu.folds import join, join_lanes, start
from tilewright.compiler.codegen.cpu.loops import over, tail_of
from tilewright.compiler.codegen.cpu.matrix_tiles import Key, matrix_tile
from tilewright.compiler.codegen.cpu.operations import apply
from tilewright.compiler.codegen.cpu.order import constant_points, greedy_points
from tilewright.compiler.codegen.cpu.points import Point, Points
from tilewright.compiler.codegen.cpu.prefetch import prefetch
from tilewright.compiler.codegen.cpu.quads import vector_pairs
from tilewright.compiler.codegen.cpu.resolve import (
    Access,
    Accesses,
    RegisterAccess,
    bounds_check,
    resolve,
    resolve_register,
    resolve_target,
)
from tilewright.compiler.codegen.cpu.ssa import Value
from tilewright.compiler.codegen.cpu.stores import are_independent, may_be_delayed
from tilewright.compiler.codegen.cpu.tile_registers import tile_registers
from tilewright.compiler.codegen.cpu.transpose import transpose
from tilewright.compiler.codegen.cpu.uint8_stores import Uint8Stores
from tilewright.compiler.codegen.cpu.vectors import lane_mask
from tilewright.compiler.errors import ScheduleError
from tilewright.compiler.loops.expr import Combiner, Fold, Load, Op, Operation, Space, walk
from tilewright.compiler.loops.nest import Compute, Order, Store, Tile, dot_operands
from tilewright.compiler.sizes import is_dynamic


class ComputeLowering:
    """The lowering of one `Compute` node to LLVM IR; `run` emits the code."""

    def __init__(self, context: Context, compute: Compute) -> None:
        self.context = context
        self.emitter = context.emitter
        self.compute = compute
        self.output_axes = {
            axis
            for store in compute.stores
            for index in store.target.index
            for axis in index.axes()
        }
        # Without a reduction all points are stored. An axis of one value may be in no index.
        every = compute.combiner is None
        self.spatial = tuple(t for t in compute.unroll if every or t.axis in self.output_axes)
        self.reduces_lanes = compute.vector is not None and compute.vector not in self.output_axes
        self.dtype = compute.body.dtype
        self.padding = Padding.READ
        if compute.skip_padding:
            harmless = compute.combiner is Combiner.SUM
            self.padding = Padding.SKIP if harmless else Padding.NEVER
        self.budget = RegisterBudget(context.emitter.target.vector_registers)
        self.matrix = matrix_tile(context, compute, self.spatial)
        self.registers = tile_registers(context, compute, self.spatial)

    def run(self) -> None:
        """Emit the computation at the current position of the function."""
        compute, context = self.compute, self.context
        dot = compute.dot
        if dot is not None and is_dynamic(dot.extent) and dot.extent % compute.group != 0:
            raise ScheduleError(f"dot axis '{dot.name}' may end inside of a group")
        for tile in (*compute.reduce, *compute.unroll):
            context.open_axis(tile.axis)
        saved = dict(context.environment)
        results: Mapping[Point, Partial]
        if compute.combiner is None:
            results = self._map()
        elif self.registers is not None:
            with self._points(self.spatial) as points:
                self.registers.begin(points)
            self._reduce(0, [], [])
            results = self.registers.sums()
        else:
            initial = self._initial(compute.combiner)
            if self.matrix is not None:
                initial = self.matrix.turned(initial)
            flat = [value for partial in initial.values() for value in partial]
            reduced = self._by_key(self._reduce(0, flat, list(initial)), list(initial))
            if self.matrix is not None:
                reduced = self.matrix.turned(reduced)
            results = self._join(compute.combiner, reduced)
        self._finish(results)
        context.environment = saved

    # ---- accumulators

    def _partial_counts(self) -> list[int]:
        unroll = {t.axis: t.step for t in self.compute.unroll}
        counts = []
        for axis in self.compute.partial:
            extents = [t.step for t in self.compute.reduce if t.axis == axis]
            whole = self.context.environment[axis].extent
            extent = min(extents if is_dynamic(whole) else [whole, *extents])
            counts.append(-(-extent // unroll[axis]))
        return counts

    def _initial(self, combiner: Combiner | Fold) -> dict[Key, Partial]:
        """Return the initial accumulators of a reduction, each a tuple of values.

        There is one for each combination of indices on the output axes and on the axes with
        separate partial sums (`Compute.partial`).
        """
        init = self.compute.init
        partials = list(product(*map(range, self._partial_counts())))
        neutral = start(self.emitter, combiner, self.dtype)
        result: dict[Key, Partial] = {}
        with self._points(self.spatial) as points:
            lanes = self.context.lanes if self.reduces_lanes else points.lanes
            # If lanes are joined at the end, the initial value must count once: `_join` adds it.
            items = None
            if init is not None and not self.reduces_lanes:
                accesses = resolve(self.context, init, points, self.padding)
                items = items_evaluator(self.context, self.budget, init, accesses, points)
            for point in points:
                for number, partial in enumerate(partials):
                    values = items(point) if items is not None and number == 0 else neutral
                    result[point, partial] = same_lanes(self.emitter, values, lanes)
        self.budget.accumulators = len(result) * len(neutral)
        return result

    def _by_key(self, values: Sequence[Value], keys: Sequence[Key]) -> dict[Key, Partial]:
        """Group a flat list of values into one accumulator per key, in the order of the keys.

        A key is an accumulator's indices on the output axes and on the axes with separate partial
        sums. All accumulators have the same number of values: one, or one per item of a reduction
        of tuples.
        """
        items = len(values) // len(keys)
        return {key: tuple(values[i * items : (i + 1) * items]) for i, key in enumerate(keys)}

    def _reduce(self, level: int, values: list[Value], keys: list[Key]) -> list[Value]:
        """Emit the reduction loops from number `level` (0 is the outermost) to the innermost.

        Args:
            level: the number of the loop.
            values: the values of all accumulators before the loops, as a flat list.
            keys: a key per accumulator, in the same order: its indices on the output axes and on
                the axes with separate partial sums.

        Returns:
            The values of all accumulators after the loops, as a flat list.
        """
        if level == len(self.compute.reduce):
            return self._leaf(values, keys)
        tile = self.compute.reduce[level]
        granularity = next((t.step for t in self.compute.unroll if t.axis == tile.axis), 0)
        is_split = any(t.axis == tile.axis for t in self.compute.reduce[level + 1 :])
        is_vector = tile.axis == self.compute.vector
        return over(
            self.context,
            tile.axis,
            granularity if self._is_rest(tile) else tile.step,
            lambda carried: self._reduce(level + 1, carried, keys),
            carried=values,
            unroll=tile.unroll,
            granularity=granularity,
            tail=tail_of(self.context, is_split=is_split, is_vector=is_vector, is_reduced=True),
            clip=None if tile.unroll else self._clip_loads(tile),
            padding=self.padding,
        )

    def _is_rest(self, tile: Tile) -> bool:
        """Return whether a reduction loop is for the rows that remain after the full tiles of rows.

        The code for the remaining rows runs only once, so such a loop is not unrolled. The result
        is true for the innermost reduction loop only, and only if the loop has no separate partial
        sums.
        """
        one_by_one = any(t.axis == tile.axis for t in self.compute.unroll)
        is_inner = tile is self.compute.reduce[-1] and not tile.unroll
        is_partial = tile.axis in self.compute.partial
        rows = any(self.context.environment[t.axis].rows for t in self.spatial)
        return one_by_one and is_inner and not is_partial and rows

    def _clip_loads(self, tile: Tile) -> tuple[Load, ...]:
        """Return the loads because of which a reduction loop may skip iterations.

        The loop skips indices at which such a load would be out of bounds, as in the padding of a
        convolution.
        """
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
        axes = [t.axis for t in compute.unroll]
        spatial = [axes.index(t.axis) for t in self.spatial]
        spatial_of = _picker(spatial)
        partial_of = _picker([axes.index(axis) for axis in compute.partial])
        with self._points(compute.unroll) as points:
            accesses = resolve(self.context, compute.body, points, self.padding)
            if self.registers is not None:
                self.registers.multiply(accesses, points)
                return values
            current = self._by_key(values, keys)
            order = [*filter(bounds_check(accesses.values()), points)]
            order = self._ordered(order, accesses, spatial, points)
            if compute.prefetch:
                prefetch(self.context, compute, accesses, order)

            def key_of(point: Point) -> Key:
                return spatial_of(point), partial_of(point)

            if self.matrix is not None:
                self.matrix.multiply(self.budget, current, order, key_of, accesses, points)
                return [value for key in keys for value in current[key]]
            accumulate = self._accumulator(combiner, accesses, points)
            ahead = loads_ahead(self.context, self.budget, accesses, points, order)
            for number, point in enumerate(order):
                ahead(number)
                current[key_of(point)] = accumulate(current[key_of(point)], point)
        return [value for key in keys for value in current[key]]

    def _ordered(
        self, points: list[Point], accesses: Accesses, spatial: Sequence[int], every: Points
    ) -> list[Point]:
        match self.compute.body:
            case Op(operation=Operation.MUL, args=args) if self.compute.combiner is Combiner.SUM:
                for arg in args:
                    access = accesses.get(arg) if isinstance(arg, Load) else None
                    if isinstance(access, Access) and access.tensor.space is Space.CONSTANT:
                        points = constant_points(points, access, spatial)
        if self.compute.order is Order.GREEDY:
            in_memory = [a for a in accesses.values() if isinstance(a, Access)]

            def beside(access: Access, is_alone: bool) -> dict[Place, Place]:
                pairs = vector_pairs(self.emitter, access, every) if is_alone else {}
                found: dict[Place, Place] = {(j,): (i,) for i, j in pairs.items()}
                halves = (
                    paired_vectors(points, access)
                    if has_deinterleaving_loads(self.emitter.target)
                    else {}
                )
                return found | halves

            return greedy_points(points, in_memory, self.emitter.depth, beside)
        return points

    def _accumulator(
        self, combiner: Combiner | Fold, accesses: Accesses, points: Points
    ) -> Callable[[Partial, Point], Partial]:
        """Return a function that emits one step of the reduction.

        The function takes the values of an accumulator and a point of the register tile (one index
        per unrolled axis). It evaluates the `Compute`'s expression at this tile point, and returns
        the values of the accumulator combined with the result.
        """
        lanes = self.context.lanes
        if not self.reduces_lanes:
            return self._whole_accumulator(combiner, accesses, points)
        if not points.is_ragged:
            if is_dynamic(points.lanes_in_use) or points.lanes_in_use < lanes:
                return self._masked_accumulator(combiner, accesses, points)
            return self._whole_accumulator(combiner, accesses, points)
        whole = self._whole_accumulator(combiner, accesses, points)
        masked = self._masked_accumulator(combiner, accesses, points)

        def accumulate(current: Partial, point: Point) -> Partial:
            return (masked if points.active(point) < lanes else whole)(current, point)

        return accumulate

    def _masked_accumulator(
        self, combiner: Combiner | Fold, accesses: Accesses, points: Points
    ) -> Callable[[Partial, Point], Partial]:
        """Return a function that emits a reduction step along the lanes of partly used vectors.

        The function takes the values of an accumulator and a point of the register tile (one index
        per unrolled axis). It evaluates the `Compute`'s expression at this point. In unused lanes,
        it replaces the value by the neutral element of the reduction, such as 0 for a sum. It
        returns the values of the accumulator combined with the result.
        """
        emitter, lanes = self.emitter, self.context.lanes
        neutral = start(emitter, combiner, self.dtype)
        items = items_evaluator(self.context, self.budget, self.compute.body, accesses, points)

        def accumulate(current: Partial, point: Point) -> Partial:
            mask = lane_mask(emitter, lanes, points.active(point))
            values = tuple(
                emitter.emit(
                    v.dtype, lanes, f"select {mask.type} %s, {v.type} %s, {v.type} %s", mask, v,
                    emitter.splat(n, lanes),
                )
                for v, n in zip(same_lanes(emitter, items(point), lanes), neutral, strict=True)
            )  # fmt: skip
            return values if _equal(current, neutral) else join(emitter, combiner, current, values)

        return accumulate

    def _whole_accumulator(
        self, combiner: Combiner | Fold, accesses: Accesses, points: Points
    ) -> Callable[[Partial, Point], Partial]:
        body, emitter = self.compute.body, self.emitter
        neutral = start(emitter, combiner, self.dtype)
        operands = dot_operands(body) if self.compute.dot is not None else None
        if operands is not None:
            left, right = (
                evaluator(self.context, self.budget, load, accesses, points) for load in operands
            )
            types = operands[0].dtype, operands[1].dtype

            def dot(current: Partial, point: Point) -> Partial:
                (accumulator,) = current
                x, y = left(point, ()), right(point, ())
                return (multiply_add(emitter, types, accumulator, x, y),)

            return dot
        match body:
            case Op(operation=Operation.MUL, args=args) if combiner is Combiner.SUM:
                left, right = (
                    evaluator(self.context, self.budget, arg, accesses, points) for arg in args
                )

                def product(current: Partial, point: Point) -> Partial:
                    x, y = left(point, ()), right(point, ())
                    if _equal(current, neutral):
                        return (apply(emitter, Operation.MUL, x, y),)
                    return (apply(emitter, Operation.FMA, x, y, *current),)

                return product
        items = items_evaluator(self.context, self.budget, body, accesses, points)

        def joined(current: Partial, point: Point) -> Partial:
            values = items(point)
            return values if _equal(current, neutral) else join(emitter, combiner, current, values)

        return joined

    def _join(self, combiner: Combiner | Fold, values: dict[Key, Partial]) -> dict[Point, Partial]:
        """Combine the accumulators of each output element to one; return one result per element.

        The keys of the result are the element's indices on the unrolled output axes (its tile
        point). The accumulators of an element are combined in a binary tree. If the vector axis is
        reduced, the lanes are then combined.
        """
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
                whole = same_lanes(self.emitter, partial, self.context.lanes)
                partial = join_lanes(self.emitter, combiner, whole)
            result[point] = partial
        init = self.compute.init
        if self.reduces_lanes and init is not None:
            with self._points(self.spatial) as points:
                items = items_evaluator(
                    self.context, self.budget, init, resolve(self.context, init, points), points
                )
                for point, partial in result.items():
                    result[point] = join(self.emitter, combiner, items(point), partial)
        return result

    # ---- without a reduction

    def _map(self) -> dict[Point, Partial]:
        compute = self.compute
        result: dict[Point, Partial] = {}
        with self._points(compute.unroll) as points:
            accesses = resolve(self.context, compute.body, points, self.padding)
            in_bounds = bounds_check(accesses.values())
            items = items_evaluator(self.context, self.budget, compute.body, accesses, points)
            for point in points:
                if not in_bounds(point):
                    raise ScheduleError("a load outside of its tensor, and no reduction to skip")
                result[point] = items(point)
        return result

    # ---- stores

    def _finish(self, results: Mapping[Point, Partial]) -> None:
        with self._points(self.spatial) as points:
            if self.compute.store_vector is not None:
                self._transposed(results, points)
                return
            prepared = [self._prepare(store, points) for store in self.compute.stores]
            held = Uint8Stores(self.context, self.compute.stores)
            # Sums leave no registers for values that several of their stores read.
            apart = self.compute.combiner is None and are_independent(self.compute.stores)
            waiting: dict[Point, list[Value]] = {}
            if self.compute.combiner is not None and may_be_delayed(
                self.context, self.compute.stores
            ):
                ((value_of, _),) = prepared
                waiting = {point: [value_of(point, results[point])] for point in points}
            for point in points:
                # A value that several stores read is loaded once if none of them writes it.
                known = waiting.get(point) or [
                    value_of(point, results[point]) for value_of, _ in prepared if apart
                ]
                for number, (value_of, target) in enumerate(prepared):
                    value = known[number] if known else value_of(point, results[point])
                    if isinstance(target, RegisterAccess):
                        self.context.registers[target.key(point)] = value
                    elif not held.hold(target, value, point, points.active(point)):
                        self._write(target, value, points, point)
            held.flush()

    def _prepare(self, store: Store, points: Points) -> tuple[Evaluator, Access | RegisterAccess]:
        """Return a function that emits the value of a store, and the access that is stored to.

        The function takes a point of the register tile (one index per unrolled axis), and the
        values of the accumulator there.
        """
        value = evaluator(
            self.context,
            self.budget,
            store.value,
            resolve(self.context, store.value, points),
            points,
        )
        if store.target.tensor.space is Space.REGISTER:
            return value, resolve_register(self.context, store.target, points)
        return value, resolve_target(self.context, store.target, points)

    def _write(self, target: Access, value: Value, points: Points, point: Point) -> None:
        lanes = 1 if self.reduces_lanes else points.lanes
        active = 1 if self.reduces_lanes else points.active(point)
        memory.store(self.context, target, self.emitter.splat(value, lanes), point, active)

    def _transposed(self, results: Mapping[Point, Partial], points: Points) -> None:
        """Emit stores with the lanes along another axis, by transposing vectors in registers.

        Before the transposition, there is one vector along `Compute.vector` for each index of
        `Compute.store_vector`. Afterwards, there is one vector along `Compute.store_vector` for
        each index of `Compute.vector`. A partly filled tile is stored lane by lane.
        """
        axis = self.compute.store_vector
        (store,) = self.compute.stores
        position = [t.axis for t in self.spatial].index(axis) if axis else 0
        width = points.lanes
        target = resolve_target(self.context, store.target, points)
        accesses = resolve(self.context, store.value, points)
        value_of = evaluator(self.context, self.budget, store.value, accesses, points)
        groups: dict[Point, dict[int, Value]] = {}
        for point, partial in results.items():
            value = value_of(point, partial)
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
                memory.store(self.context, across, row, first, width)

    def _points(self, tiles: Sequence[Tile]) -> Points:
        # Lanes that are reduced are not stored.
        joined = self.reduces_lanes and tiles is self.spatial
        vector = None if joined else self.compute.vector
        return Points(self.context, tiles, vector, self.compute.dot, self.compute.group)


def _picker(positions: Sequence[int]) -> Callable[[Point], Point]:
    """Return a function that selects from a tile point, a tuple of indices, the indices at
    `positions`.

    For positions (0, 2), it maps (4, 5, 6) to (4, 6).
    """
    match positions:
        case []:
            return lambda point: ()
        case [one]:
            return lambda point: (point[one],)
        case _:
            return itemgetter(*positions)


def _equal(values: Partial, constants: Partial) -> bool:
    """Return whether each value is the constant at the same position in `constants`.

    Callers pass the neutral element of a reduction as `constants`. The result is then true for an
    accumulator to which no term was added yet.
    """
    for value, constant in zip(values, constants, strict=True):
        if value.const is None or value.const != constant.const:
            return False
    return True
