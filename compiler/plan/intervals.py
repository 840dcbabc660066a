"""Division of a workload's dynamic sizes into intervals, each tuned separately.

Products with one row, a dozen rows and hundreds of rows need different kernels. The range of a
dimension is therefore divided after 1, 16 and 128. The workload for one interval is called a piece,
and has its own key. The split points are the same for every model, so that models with different
ranges share pieces. A piece with a single size is the workload of a model with that fixed size.

Only workloads with a contraction (matrix product, convolution), a window (pool) or an attention are
divided; for others, one kernel is best at all sizes. If tuning selects the same schedule for
neighbouring pieces, `merged` combines them into one kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Generic, TypeVar

from tilewright.compiler import ops
from tilewright.compiler.memo import memo
from tilewright.compiler.ops.registry import OpKind
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.sizes import Dimension

LAST: tuple[int, ...] = (1, 16, 128)
"""The sizes after which the range of a dimension is divided. Each is the last size of an
interval."""

MOST = 8
"""Maximum number of pieces into which the size ranges of a workload are divided."""

_CUT = (OpKind.CONTRACTION, OpKind.WINDOW, OpKind.ATTENTION)

T = TypeVar("T")
U = TypeVar("U")

Box = tuple[Dimension, ...]
"""The sizes for one piece of a workload: a part of the range of each dynamic dimension, in the
workload's order."""


@dataclass(frozen=True, slots=True)
class RangePiece:
    """A piece of a workload: the workload for a part of its dynamic sizes, tuned separately.

    Attributes:
        box: for each dynamic dimension of the whole workload, the interval that the piece covers.
        workload: the workload for the sizes in `box` only.
        positions: for each dynamic dimension of `workload`, in order, its position in `box`.
    """

    box: Box
    workload: Workload
    positions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SizeSplit(Generic[T]):
    """A node of a binary decision tree that selects a subtree by one dynamic size.

    Attributes:
        position: the position of the tested dimension among the workload's dimensions.
        last: the largest size for which `below` is selected, in units of `Dimension.multiple`.
        below: the subtree for sizes up to `last`.
        above: the subtree for larger sizes.
    """

    position: int
    last: int
    below: T | SizeSplit[T]
    above: T | SizeSplit[T]


def leaves(tree: T | SizeSplit[T]) -> Iterator[T]:
    """Yield the leaves of a decision tree, smallest sizes first."""
    if isinstance(tree, SizeSplit):
        yield from leaves(tree.below)
        yield from leaves(tree.above)
    else:
        yield tree


def changed(tree: T | SizeSplit[T], change: Callable[[T], U]) -> U | SizeSplit[U]:
    """Return a decision tree with `change` applied to each leaf, smallest sizes first."""
    if not isinstance(tree, SizeSplit):
        return change(tree)
    below = changed(tree.below, change)
    return SizeSplit(tree.position, tree.last, below, changed(tree.above, change))


def intervals(dimension: Dimension, last: Sequence[int] = LAST) -> tuple[Dimension, ...]:
    """Divide the range of a dimension after each size of `last`; return the intervals in order.

    An unbounded dimension that may be 0 is not divided. Such a dimension is the number of unused
    rows in a buffer (slack capacity), which does not influence the work.
    """
    if dimension.high is None and not dimension.low:
        return (dimension,)
    high = inf if dimension.high is None else dimension.high
    ends = [size // dimension.multiple for size in last]
    least = max(dimension.low, 1)  # a piece never has only size 0
    starts = [dimension.low, *(end + 1 for end in ends if least <= end < high)]
    starts = list(dict.fromkeys(starts))
    highs = [*(start - 1 for start in starts[1:]), dimension.high]
    return tuple(
        replace(dimension, low=low, high=high) for low, high in zip(starts, highs, strict=True)
    )


def piece_of(workload: Workload, box: Box) -> RangePiece:
    """Restrict a workload to the sizes of a box, which has one interval per dimension."""
    narrowed = dict(zip(workload.dimensions, box, strict=True))
    positions = tuple(n for n, dimension in enumerate(box) if dimension.low != dimension.high)
    return RangePiece(box, workload.within(narrowed), positions)


def boxes(workload: Workload) -> tuple[Box, ...]:
    """Divide the sizes of a workload into boxes, smallest first.

    A box has one interval per dimension. The dimension with the largest ratio of its largest to its
    smallest size is divided at all split points, others only after size one. A dimension is not
    divided if there would be more than `MOST` boxes. A workload has a single box if it has no
    contraction, window or attention.
    """
    whole = workload.dimensions
    if not any(ops.get(node.op).kind in _CUT for node in workload.graph.nodes):
        return (whole,)
    cut: dict[Dimension, tuple[Dimension, ...]] = {each: (each,) for each in whole}
    count, last = 1, LAST
    for dimension in sorted(whole, key=_length, reverse=True):
        found = intervals(dimension, last)
        if len(found) > 1 and count * len(found) <= MOST:
            cut[dimension], count, last = found, count * len(found), LAST[:1]
    found_boxes: list[Box] = [()]
    for dimension in whole:
        found_boxes = [(*box, part) for box in found_boxes for part in cut[dimension]]
    return tuple(found_boxes)


def holds(box: Box, part: Box) -> bool:
    """Whether a box contains all sizes of another box, `part`."""
    return all(
        whole.low <= own.low and (whole.high is None or (own.high or inf) <= whole.high)
        for whole, own in zip(box, part, strict=True)
    )


@memo(1024)
def pieces(workload: Workload) -> tuple[RangePiece, ...]:
    """Return the workloads to tune for parts of a workload's sizes, one per box of `boxes`.

    A workload that is not divided is its only piece.
    """
    return tuple(piece_of(workload, box) for box in boxes(workload))


def merged(parts: Sequence[tuple[Box, T]], same: Callable[[T, T], bool]) -> _Tree[T]:
    """Build a decision tree that selects a box, and the value of that box, by sizes.

    `parts` has each box with its value (for example, a schedule), in the order of `boxes`.
    Neighbouring boxes become one leaf if `same` is true for their values.
    """
    return _merged(list(parts), 0, same)


_Tree = tuple[Box, T] | SizeSplit[tuple[Box, T]]


def _merged(
    parts: Sequence[tuple[Box, T]], position: int, same: Callable[[T, T], bool]
) -> _Tree[T]:
    if len(parts) == 1:
        return parts[0]
    rows: dict[Dimension, list[tuple[Box, T]]] = {}
    for box, value in parts:
        rows.setdefault(box[position], []).append((box, value))
    found: list[list[tuple[Box, T]]] = []
    for row in rows.values():
        before = found[-1] if found else []
        if before and all(same(a[1], b[1]) for a, b in zip(before, row, strict=True)):
            joined = replace(before[0][0][position], high=row[0][0][position].high)
            found[-1] = [
                ((*box[:position], joined, *box[position + 1 :]), value) for box, value in before
            ]
        else:
            found.append(row)
    tree = _merged(found[-1], position + 1, same)
    for row in reversed(found[:-1]):
        last = row[0][0][position].high
        assert last is not None
        tree = SizeSplit(position, last, _merged(row, position + 1, same), tree)
    return tree


def _length(dimension: Dimension) -> float:
    """The ratio of a dimension's largest to its smallest size."""
    high = inf if dimension.high is None else dimension.high
    return high / max(dimension.low, 1)
