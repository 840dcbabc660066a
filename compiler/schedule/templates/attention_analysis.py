"""The structure of an attention: its loads, its reductions, and the meaning of each axis.

The module also divides the rows of a causal attention into segments, which skip masked keys.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from math import inf

from tilewright.compiler.errors import ScheduleError
from tilewright.compiler.loops.expr import (
    Combiner,
    Const,
    Expr,
    IndexValue,
    Load,
    Op,
    Operation,
    Reduce,
    walk,
    widened,
)
from tilewright.compiler.loops.index import Axis, affine
from tilewright.compiler.loops.rewriting import load_at, reindex, rewrite
from tilewright.compiler.memo import memo
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.schedule.problem import (
    Problem,
    axes_of,
    compose,
    is_one_expression,
    stored,
)
from tilewright.compiler.sizes import always_less, is_dynamic, typical


@dataclass(frozen=True, eq=False)
class Attention:
    """The structure of an attention. Instances are compared by identity; `analyse` memoises them.

    Attributes:
        problem: the workload as one expression.
        batch: the output axes other than `rows` and `lanes` (batch, heads).
        rows: the axis of the queries.
        lanes: the axis of the elements of a value.
        keys: the axis of the keys, which is reduced.
        size: the axis of the elements of a query and of a key, which is reduced.
        ahead: with a causal mask, row i attends to keys up to `i + ahead`; None without a mask.
        query: the load of a query's element in its stored type; `factor` converts it for
            multiplication.
        key: the load of a key's element, like `query`.
        value: the load of a value's element, like `query`.
        dot: the sum over `size` of products of queries and keys.
        largest: the maximum of each row of scores.
        total: the sum of the exponentials of each row.
        mixed: the sum of products of exponentials and values.
    """

    problem: Problem
    batch: tuple[Axis, ...]
    rows: Axis | None
    lanes: Axis | None
    keys: Axis
    size: Axis
    ahead: int | None
    query: Load
    key: Load
    value: Load
    dot: Reduce
    largest: Reduce
    total: Reduce
    mixed: Reduce

    def factor(self, load: Load) -> Expr:
        """Convert a load to the type in which products are computed."""
        return widened(load, self.dot.dtype)


@memo(256)
def analyse(workload: Workload) -> Attention | None:
    """Return the attention structure of a workload; None if it is not an attention."""
    if not is_one_expression(workload):
        return None
    problem = compose(workload)
    match problem.reductions:
        case (
            Reduce(Combiner.SUM, (size,), Op(Operation.MUL, factors)) as dot,
            Reduce(Combiner.MAX, (keys,)) as largest,
            Reduce(Combiner.SUM, summed, Op(Operation.MUL, (power, last))) as mixed,
            Reduce(Combiner.SUM, counted) as total,
        ) if summed == counted == (keys,) and total.body == power:
            query, key, value = map(stored, (*factors, last))
        case _:
            return None
    if not (isinstance(query, Load) and isinstance(key, Load) and isinstance(value, Load)):
        return None
    if dot not in set(walk(largest.body)) or largest not in set(walk(power)):
        return None
    outputs = [a for a in problem.axes if a.moves]
    own = [a for a in outputs if a in axes_of(query) - axes_of(key)]
    elements = [a for a in outputs if a in axes_of(value) - axes_of(query) - axes_of(key)]
    # Heads that share one key head are rows, too; tiles run along the longest of these axes.
    rows = max(own, key=lambda axis: typical(axis.extent), default=None)
    lanes = next(iter(elements), None)
    batch = tuple(a for a in outputs if a not in (rows, lanes))
    return Attention(
        problem, batch, rows, lanes, keys, size, _keys_ahead(largest.body, rows, keys),
        query, key, value, dot, largest, total, mixed,
    )  # fmt: skip


def _keys_ahead(score: Expr, rows: Axis | None, keys: Axis) -> int | None:
    """Return n if scores are masked by `select(j <= i + n, score, -inf)`; None without such a mask.

    Here i is the index of `rows` and j the index of `keys`.
    """
    for node in walk(score):
        match node:
            case Op(
                Operation.SELECT,
                (
                    Op(Operation.LE, (IndexValue(index=left), IndexValue(index=right))),
                    _,
                    Const(value=low),
                ),
            ) if rows is not None and left == affine(keys) and low == -inf:
                ahead = right - rows
                known = not ahead.terms and always_less(-1, ahead.constant)
                return ahead.constant if known else None
    return None


def extent(axis: Axis | None) -> int:
    """Return the extent of an axis; 1 for None."""
    return axis.extent if axis is not None else 1


@memo(1024)
def segments(found: Attention, count: int, tile: int) -> tuple[Attention, ...]:
    """Divide a causal attention into segments of rows, which skip the keys masked for all their
    rows.

    Before: rows 0..63 and keys 0..63. After, for 4: rows 0..15 and keys 0..15, rows 16..31 and keys
    0..31, and so on. This halves the work. Segments consist of whole tiles of `tile` rows. Without
    a causal mask, the result is the whole attention.

    For a dynamic number of rows, the sizes of segments differ by at most a tile. Some are empty if
    there are fewer tiles than segments.

    Raises:
        ScheduleError: if the number of rows is dynamic and `count` is not a power of two.
    """
    rows, ahead = found.rows, found.ahead
    if rows is None or ahead is None:
        return (found,)
    if is_dynamic(rows.extent) or is_dynamic(found.keys.extent):
        # Whether the last row sees no more keys than exist.
        if count == 1 or not always_less(rows.extent + ahead - 1, found.keys.extent):
            return (found,)
        ends = [0, *accumulate(_halved(rows.extent, count, tile))]
        return tuple(
            _restricted(found, rows, number, first, last - first, last + ahead)
            for number, (first, last) in enumerate(pairwise(ends))
            if first != last
        )
    share = -(-rows.extent // count)
    step = min(rows.extent, -(-share // tile) * tile)
    parts = []
    for first in range(0, rows.extent, step):
        size = min(step, rows.extent - first)
        keys = min(found.keys.extent, first + size + ahead)
        parts.append(_restricted(found, rows, first, first, size, keys))
    return tuple(parts)


def _halved(extent: int, count: int, tile: int) -> list[int]:
    """Divide a dynamic extent into `count` parts; all but the last consist of whole tiles.

    The extent is halved repeatedly, because the parts are then provably not negative.
    """
    if count == 1:
        return [extent]
    if count % 2:
        raise ScheduleError("a dynamic number of rows divides only into a power of two of segments")
    first = extent // (2 * tile) * tile
    return [part for half in (first, extent - first) for part in _halved(half, count // 2, tile)]


def _restricted(
    found: Attention, rows: Axis, name: int, first: int, size: int, keys: int
) -> Attention:
    """Return the attention of `size` rows from row `first` on, with the first `keys` keys.

    `name` is a number that makes the names of the new axes unique.
    """
    own, seen = Axis(f"{rows.name}s{name}", size), Axis(f"{found.keys.name}s{name}", keys)
    places = {rows: affine(own) + first, found.keys: affine(seen)}

    def over_seen(node: Expr) -> Expr | None:
        if not isinstance(node, Reduce):
            return None
        axes = tuple(seen if axis == found.keys else axis for axis in node.axes)
        return Reduce(node.combiner, axes, node.body)

    def load(node: Load) -> Load:
        return load_at(node, places)

    def restricted(node: Expr) -> Expr:
        return rewrite(reindex(node, places), over_seen)

    def reduce(node: Reduce) -> Reduce:
        new = restricted(node)
        assert isinstance(new, Reduce)
        return new

    problem = replace(
        found.problem, output=load(found.problem.output), expr=restricted(found.problem.expr)
    )
    return replace(
        found,
        problem=problem,
        rows=own,
        keys=seen,
        query=load(found.query),
        key=load(found.key),
        value=load(found.value),
        dot=reduce(found.dot),
        largest=reduce(found.largest),
        total=reduce(found.total),
        mixed=reduce(found.mixed),
    )
