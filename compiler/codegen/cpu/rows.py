"""Analysis of loops over rows: whether tiles may start at any row, and be computed twice."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.compiler.loops.expr import IndexValue, Load, Space, Tee, walk
from tilewright.compiler.loops.index import Axis
from tilewright.compiler.loops.nest import Compute, For, Node


def may_start_at_any_index(loop: For) -> bool:
    """Return whether the tiles of a loop may start at any index of its axis.

    This holds if each step along the axis moves every access by a whole slice of its tensor, such
    as one row. A step within a vector or a block of the layout would require aligned tiles.
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
    """Yield every access to a tensor element that a `Compute` reads or writes."""
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
    """Return whether a step along the axis moves the load by a whole slice of its tensor.

    This holds if the layout does not split the dimensions in whose indices the axis occurs.
    """
    factors = load.tensor.layout.resolved(len(load.tensor.shape))
    moved = [f for f in factors if axis in load.index[f.dim].axes()]
    return all(f.div == 1 and f.mod is None for f in moved)


def may_recompute(compute: Compute, axis: Axis) -> bool:
    """Return whether several threads may each compute the same row along an axis.

    This holds for a reduction in which each index along the axis is computed independently. The
    reduction must not read a tensor that it writes. Its operands then stay unchanged while several
    threads compute the row, and all threads store the same values.
    """
    if compute.combiner is None or compute.store_vector is not None:
        return False
    if axis in (compute.vector, compute.dot, compute.rows) or any(
        t.axis == axis for t in compute.reduce
    ):
        return False
    if any(t.axis == axis and t.step != 1 for t in compute.unroll):
        return False
    values = [compute.body, *(store.value for store in compute.stores)]
    values += [compute.init] if compute.init is not None else []
    parts = [part for value in values for part in walk(value)]
    if any(isinstance(part, Tee) for part in parts):
        return False
    if any(isinstance(part, IndexValue) and axis in part.index.axes() for part in parts):
        return False
    written = [store.target for store in compute.stores]
    read = [part for part in parts if isinstance(part, Load)]
    if {load.tensor.name for load in read} & {load.tensor.name for load in written}:
        return False
    moved = [a for a in (*read, *written) if any(axis in i.axes() for i in a.index)]
    return all(a.tensor.space is Space.MEMORY and _moves_by_slices(a, axis) for a in moved)
