"""Checks that a loop nest is well-formed. Each names its violation.

They do not judge speed, and they do not prove that the lowering supports a nest: the lowering
itself checks whether tiles align with a layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import ScheduleError
from tilewright.compiler.loops.expr import (
    Accumulator,
    Cast,
    Combiner,
    Const,
    Expr,
    Fold,
    Incoming,
    IndexValue,
    Item,
    Items,
    Load,
    Op,
    Operation,
    Reduce,
    Role,
    Space,
    Tee,
    walk,
)
from tilewright.compiler.loops.index import Affine, Axis, affine
from tilewright.compiler.loops.nest import (
    Binding,
    Compute,
    For,
    LoopNest,
    Node,
    dot_operands,
    expressions,
)
from tilewright.compiler.loops.semantics import items_of
from tilewright.compiler.sizes import bounds, is_dynamic


def verify_nest(nest: LoopNest) -> None:
    """Run every check.

    Raises:
        ScheduleError: from the first check that fails, naming the violation.
    """
    for check in CHECKS:
        check(nest)


def check_names(nest: LoopNest) -> None:
    """Check that buffers and scratch have unique names, and every tensor of a nest is declared."""
    names = [tensor.name for tensor in (*nest.buffers, *nest.scratch)]
    for name in names:
        if names.count(name) > 1:
            raise ScheduleError(f"kernel '{nest.name}': two tensors are named '{name}'")
    for load, _ in _accesses(nest):
        tensor = load.tensor
        if tensor.space is Space.MEMORY and tensor.name not in names:
            raise ScheduleError(
                f"kernel '{nest.name}': tensor '{tensor.name}' is neither a buffer nor scratch"
            )


def check_roles(nest: LoopNest) -> None:
    """Check that inputs, weights and constants are only read, and that threads share at most one
    buffer, for which programs have one place."""
    for load, is_write in _accesses(nest):
        tensor = load.tensor
        if is_write and (
            tensor.space is Space.CONSTANT
            or (tensor.space is Space.MEMORY and tensor.role in (Role.INPUT, Role.WEIGHT))
        ):
            raise ScheduleError(f"kernel '{nest.name}': {tensor.role} '{tensor.name}' is written")
    for tensor in nest.scratch:
        if tensor.role is not Role.SCRATCH:
            raise ScheduleError(
                f"kernel '{nest.name}': scratch '{tensor.name}' has the role {tensor.role}"
            )
    shared = [tensor.name for tensor in nest.buffers if tensor.role is Role.SHARED]
    if len(shared) > 1:
        raise ScheduleError(f"kernel '{nest.name}': threads share {' and '.join(shared)}")


def check_bindings(nest: LoopNest) -> None:
    """Check that parallel loops are at the top of their stage, next to parallel loops only, or the
    only content of another parallel loop over another axis."""
    for stage in nest.stages:
        shared = {isinstance(n, For) and n.binding is not Binding.SERIAL for n in stage.body}
        allowed = list(stage.body) if len(shared) == 1 else []
        for node in allowed:  # grows
            if isinstance(node, For) and node.binding is not Binding.SERIAL:
                allowed += _other_loop(node)
        for node in stage.body:
            for inner, _ in _nodes(node, 0):
                if not isinstance(inner, For) or inner.binding is Binding.SERIAL:
                    continue
                if not any(inner is other for other in allowed):
                    raise ScheduleError(
                        f"stage '{stage.name}': {inner.binding} loop '{inner.axis.name}' "
                        f"is not at the top, or has others than parallel loops beside it"
                    )


def _other_loop(loop: For) -> tuple[For, ...]:
    """The loop over another axis that is the only content of a loop."""
    match loop.body:
        case (For() as inner,) if inner.axis != loop.axis:
            return (inner,)
        case _:
            return ()


def check_steps(nest: LoopNest) -> None:
    """Check that steps are positive."""
    for node in _all_nodes(nest):
        tiles = (
            ((node.axis, node.step),)
            if isinstance(node, For)
            else tuple((t.axis, t.step) for t in (*node.reduce, *node.unroll))
        )
        for axis, step in tiles:
            if step < 1:
                raise ScheduleError(f"kernel '{nest.name}': axis '{axis.name}' has step {step}")


def check_sizes(nest: LoopNest) -> None:
    """Check that a dynamic dimension has one range, and no extent is negative at any size."""
    names = [dimension.name for dimension in nest.sizes]
    for name in names:
        if names.count(name) > 1:
            raise ScheduleError(f"kernel '{nest.name}': dimension '{name}' has two ranges")
    for what, extent in (
        *((f"axis '{axis.name}'", axis.extent) for axis in nest.axes),
        *((f"tensor '{t.name}'", n) for t in (*nest.buffers, *nest.scratch) for n in t.shape),
    ):
        if is_dynamic(extent) and bounds(extent)[0] < 0:
            raise ScheduleError(f"kernel '{nest.name}': {what}: {extent} may be below 0")


def check_axes(nest: LoopNest) -> None:
    """Check that every axis of an index is opened by a surrounding loop, or by its Compute."""
    for stage in nest.stages:
        for node in stage.body:
            _check_axes(node, frozenset())


def _check_axes(node: Node, opened: frozenset[Axis]) -> None:
    match node:
        case For():
            inside = opened | {node.axis}
            for let in node.lets:
                _check_index(let.source, inside, f"let '{let.axis.name}'")
                inside |= {let.axis}
            for child in node.body:
                _check_axes(child, inside)
        case Compute():
            own = {tile.axis for tile in (*node.reduce, *node.unroll)}
            if node.vector is not None:
                own.add(node.vector)
            for expr in expressions(node):
                for index in _indices(expr):
                    _check_index(index, opened | own, f"compute of '{_target_name(node)}'")
            for tile in node.passes:
                _check_index(affine(tile.axis), opened, f"passes of '{_target_name(node)}'")


def _check_index(index: Affine, opened: frozenset[Axis] | set[Axis], where: str) -> None:
    for axis in index.axes():
        if axis.moves and axis not in opened:
            raise ScheduleError(f"{where}: axis '{axis.name}' is used outside of its loop")


def check_ranks(nest: LoopNest) -> None:
    """Check that a load has one index for each axis of its tensor, and indirect dimensions
    exist."""
    for load, _ in _accesses(nest):
        rank = len(load.tensor.shape)
        if len(load.index) != rank:
            raise ScheduleError(
                f"'{load.tensor.name}' has {rank} dimensions, a load gives {len(load.index)}"
            )
        for dim, position in load.indirect:
            if not 0 <= dim < rank or position.dtype.is_float:
                raise ScheduleError(f"'{load.tensor.name}': bad indirect index in dimension {dim}")


def check_expressions(nest: LoopNest) -> None:
    """Check that expressions have no reductions, operand counts and types fit, and stores keep
    their type."""
    for node in _all_nodes(nest):
        if not isinstance(node, Compute):
            continue
        _check_tuple(node)
        tuples = (node.body, node.init) if isinstance(node.combiner, Fold) else ()
        for expr in expressions(node):
            for part in walk(expr):
                if isinstance(part, Items) and part not in tuples:
                    raise ScheduleError(
                        f"compute of '{_target_name(node)}': items where no fold takes them"
                    )
                _check_node(part)
        for store in node.stores:
            if store.value.dtype is not store.target.dtype:
                raise ScheduleError(
                    f"a {store.value.dtype} is stored to '{store.target.tensor.name}', "
                    f"a tensor of {store.target.dtype}"
                )
        parts = (node.body,) if node.init is None else (node.body, node.init)
        for expr in parts:
            if any(isinstance(part, Accumulator | Incoming) for part in walk(expr)):
                raise ScheduleError(
                    f"compute of '{_target_name(node)}': its body reads the accumulator"
                )


def _check_tuple(compute: Compute) -> None:
    """Check that a fold's parts have one type for each item, and match everything that reads
    items."""
    name, combiner = _target_name(compute), compute.combiner
    types: tuple[DType, ...] = (compute.body.dtype,)
    if isinstance(combiner, Fold):
        types = tuple(c.type for c in combiner.neutral)
        parts = [("joins to", combiner.joined), ("reduces", items_of(compute.body))]
        if compute.init is not None:
            parts.append(("starts from", items_of(compute.init)))
        for what, items in parts:
            found = tuple(item.dtype for item in items)
            if found != types:
                raise ScheduleError(
                    f"compute of '{name}': a fold of {_listed(types)} {what} {_listed(found)}"
                )
        for part in (part for expr in combiner.joined for part in walk(expr)):
            if not isinstance(part, Accumulator | Incoming | Const | Op | Cast):
                raise ScheduleError(
                    f"compute of '{name}': a fold joins by {type(part).__name__.lower()}"
                )
            _check_node(part)
            _check_item(part, types, name)
    for store in compute.stores:
        for part in walk(store.value):
            if isinstance(part, Incoming):
                raise ScheduleError(f"compute of '{name}': a store reads what a fold takes in")
            _check_item(part, types, name)


def _check_item(part: Expr, types: tuple[DType, ...], name: str) -> None:
    match part:
        case Accumulator(type=dtype, number=number) | Incoming(type=dtype, number=number):
            if not 0 <= number < len(types) or types[number] is not dtype:
                raise ScheduleError(
                    f"compute of '{name}': item {number} of {dtype} in a reduction of "
                    f"{_listed(types)}"
                )


def _listed(types: tuple[DType, ...]) -> str:
    return f"({', '.join(types)})"


def _check_node(expr: Expr) -> None:
    match expr:
        case Reduce() | Item():
            raise ScheduleError("a reduction is left inside an expression")
        case Tee(value=value, target=target) if value.dtype is not target.dtype:
            raise ScheduleError(f"a {value.dtype} is stored to '{target.tensor.name}'")
        case Op(operation=operation, args=args):
            if len(args) != arity(operation):
                raise ScheduleError(
                    f"{operation} has {len(args)} operands, it takes {arity(operation)}"
                )
            typed = args[1:] if operation is Operation.SELECT else args
            if len({a.dtype for a in typed}) > 1:
                raise ScheduleError(f"{operation}: operand types differ")
            if operation is Operation.SELECT and args[0].dtype is not DType.BOOL:
                raise ScheduleError(f"select: its condition is a {args[0].dtype}")


def arity(operation: Operation) -> int:
    """Number of operands."""
    match operation:
        case Operation.FMA | Operation.DOT | Operation.SELECT:
            return 3
        case (
            Operation.NEG
            | Operation.ABS
            | Operation.SQRT
            | Operation.FLOOR
            | Operation.CEIL
            | Operation.RINT
            | Operation.EXPONENT
            | Operation.MANTISSA
            | Operation.NOT
        ):
            return 1
        case _:
            return 2


def check_computes(nest: LoopNest) -> None:
    """Check that partial axes are unrolled reduction axes, a map has no reduction, and there is a
    store."""
    for node in _all_nodes(nest):
        if not isinstance(node, Compute):
            continue
        name = _target_name(node)
        if not node.stores and not any(isinstance(e, Tee) for e in walk(node.body)):
            raise ScheduleError("a compute stores nothing")
        unrolled = {tile.axis for tile in node.unroll}
        written = {a for s in node.stores for i in s.target.index for a in i.axes()}
        for axis in node.partial:
            if axis not in unrolled or axis in written:
                raise ScheduleError(
                    f"compute of '{name}': partial axis '{axis.name}' is no unrolled reduction axis"
                )
        if node.passes and not node.prefetch:
            raise ScheduleError(f"compute of '{name}': its passes ask for nothing ahead")
        if node.dot is not None:
            _check_dot(node, node.dot, node.dot in unrolled, node.dot in written)
        if node.rows is not None:
            _check_matrices(node, node.rows, {node.rows, node.vector} <= written)
        if node.combiner is None and (node.reduce or node.init is not None):
            raise ScheduleError(f"compute of '{name}': a reduction without a combiner")
        if node.combiner is not None and not node.stores:
            raise ScheduleError("a reduction stores nothing")


def _check_dot(compute: Compute, axis: Axis, unrolled: bool, written: bool) -> None:
    """Check the tiles of `dot`: of an unrolled reduction axis, they fill 32 or 64 bits with
    products of two loads; of an axis of a map, they fill them with elements of one load.

    Only the last tile of the axis may be narrower.
    """
    name, operands = _target_name(compute), dot_operands(compute.body)
    if compute.combiner is None:
        _check_moved_groups(compute, axis, unrolled and written)
    elif operands is None or compute.combiner is not Combiner.SUM or written or not unrolled:
        raise ScheduleError(
            f"compute of '{name}': dot axis '{axis.name}' is not one that a sum of products of two "
            f"narrow loads unrolls and reduces"
        )
    if compute.vector == axis:
        raise ScheduleError(f"compute of '{name}': dot axis '{axis.name}' has another use")
    size = operands[0].dtype.bytes if operands else compute.body.dtype.bytes
    groups = [bytes_ // size for bytes_ in (4, 8)]
    steps = [tile.step for tile in (*compute.reduce, *compute.unroll) if tile.axis == axis]
    group = steps[-1]
    if axis.extent == 1 or group not in groups or any(step % group for step in steps):
        raise ScheduleError(
            f"compute of '{name}': dot axis '{axis.name}' is not cut into tiles of "
            f"{' or '.join(map(str, groups))}"
        )


def _check_matrices(compute: Compute, rows: Axis, written: bool) -> None:
    """Check that only rows, lanes and the sum are unrolled, and sums start at zero."""
    name = _target_name(compute)
    unrolled = {tile.axis: tile.step for tile in compute.unroll}
    depths = [tile.step for tile in compute.reduce if tile.axis == compute.dot]
    if compute.combiner is None or not depths or len({rows, compute.dot, compute.vector}) < 3:
        raise ScheduleError(f"compute of '{name}': rows '{rows.name}' of no product of matrices")
    if not written or unrolled.keys() != {rows, compute.dot, compute.vector} or unrolled[rows] > 1:
        raise ScheduleError(
            f"compute of '{name}': rows '{rows.name}', lanes and the sum are not what is unrolled"
        )
    if compute.init is not None or compute.partial or compute.skip_padding or compute.prefetch:
        raise ScheduleError(f"compute of '{name}': sums of matrices start at zero, and are whole")


def _check_moved_groups(compute: Compute, axis: Axis, moved: bool) -> None:
    """Check that groups are moved unchanged, from one load to elements of its type, contiguous per
    lane."""
    body = compute.body
    narrow = isinstance(body, Load) and body.dtype.bytes < 4
    same = all(store.value == Accumulator(body.dtype) for store in compute.stores)
    if not (moved and narrow and same) or compute.store_vector is not None:
        raise ScheduleError(
            f"compute of '{_target_name(compute)}': dot axis '{axis.name}' is not one along which "
            f"a narrow load is moved"
        )


CHECKS: tuple[Callable[[LoopNest], None], ...] = (
    check_names,
    check_ranks,
    check_roles,
    check_bindings,
    check_steps,
    check_sizes,
    check_axes,
    check_expressions,
    check_computes,
)
"""In the order in which `verify_nest` runs them."""


def _nodes(node: Node, depth: int) -> Iterator[tuple[Node, int]]:
    yield node, depth
    if isinstance(node, For):
        for child in node.body:
            yield from _nodes(child, depth + 1)


def _all_nodes(nest: LoopNest) -> Iterator[Node]:
    for stage in nest.stages:
        for node in stage.body:
            yield from (inner for inner, _ in _nodes(node, 0))


def _accesses(nest: LoopNest) -> Iterator[tuple[Load, bool]]:
    """Every element that a nest accesses, and whether it writes it."""
    for node in _all_nodes(nest):
        if not isinstance(node, Compute):
            continue
        targets = {store.target for store in node.stores}
        for target in targets:
            yield target, True
        read = (node.body, *(() if node.init is None else (node.init,)))
        for expr in (*read, *(store.value for store in node.stores)):
            for part in walk(expr):
                if isinstance(part, Load):
                    yield part, False
                elif isinstance(part, Tee):
                    yield part.target, True


def _indices(expr: Expr) -> Iterator[Affine]:
    for part in walk(expr):
        match part:
            case Load(index=index) | Tee(target=Load(index=index)):
                yield from index
            case IndexValue(index=position):
                yield position
            case Op() | Cast() | _:
                pass


def _target_name(compute: Compute) -> str:
    return compute.stores[0].target.tensor.name if compute.stores else "?"
