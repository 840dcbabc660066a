"""Transpose elimination and sinking.

Before:                                     After:
    %1 = transpose(%0) {perm=(0, 2, 3, 1)}      %2 = relu(%0)
    %2 = relu(%1)
    %3 = transpose(%2) {perm=(0, 3, 1, 2)}

Transposes sink below elementwise operators. When two of them meet, they are merged, or removed if
they cancel. A transpose that moves only dimensions of extent 1 is a reshape. A reshape that joins
dimensions is moved after a transpose, and a reshape that splits dimensions before it. If a model
converts images to rows of channels and back, these conversions then cancel as well. Also called
layout propagation.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.compiler import ops
from tilewright.compiler.graph.ir import Graph, Node
from tilewright.compiler.ops.attributes import ints
from tilewright.compiler.ops.registry import OpKind
from tilewright.compiler.passes.rewrite import Rewriter, rewrite
from tilewright.compiler.passes.sink import movements, unmoved
from tilewright.compiler.sizes import always_less


def transposes(graph: Graph) -> Graph:
    """Merge and remove transposes, and move them after elementwise operators."""
    return rewrite(graph, _rule)


def _rule(rewriter: Rewriter, node: Node) -> str | None:
    if node.op == "transpose":
        return _merge(rewriter, node) or _join_later(rewriter, node)
    if node.op == "reshape":
        return _split_earlier(rewriter, node)
    if ops.get(node.op).kind is OpKind.ELEMENTWISE:
        return _sink(rewriter, node)
    return None


def _merge(rewriter: Rewriter, node: Node) -> str | None:
    value = node.inputs[0]
    shape = rewriter.shape(value)
    perm = permutation(node, len(shape))
    inner = rewriter.producer(value, "transpose")
    if inner is not None:
        first = permutation(inner, len(shape))
        perm = tuple(first[dim] for dim in perm)
        value = inner.inputs[0]
        shape = rewriter.shape(value)
    if perm == tuple(range(len(shape))):
        return value
    moved = [dim for dim in perm if shape[dim] != 1]
    if moved == sorted(moved):
        return rewriter.emit("reshape", [value], {"shape": tuple(shape[dim] for dim in perm)})
    return rewriter.emit("transpose", [value], {"perm": perm}) if inner is not None else None


def _join_later(rewriter: Rewriter, node: Node) -> str | None:
    """Rewrite `transpose(reshape(x))` as `reshape(transpose(x))`.

    Returns None unless the reshape only joins adjacent dimensions.
    """
    inner = rewriter.producer(node.inputs[0], "reshape")
    if inner is None or not rewriter.used_once(inner.output):
        return None
    joined, source = rewriter.shape(inner.output), rewriter.shape(inner.inputs[0])
    runs = _runs(joined, source)
    if runs is None or len(source) <= len(joined):
        return None
    perm = tuple(dim for part in permutation(node, len(joined)) for dim in runs[part])
    turned = rewriter.emit("transpose", [inner.inputs[0]], {"perm": perm})
    return rewriter.emit("reshape", [turned], {"shape": rewriter.shape(node.output)})


def _split_earlier(rewriter: Rewriter, node: Node) -> str | None:
    """Rewrite `reshape(transpose(x))` as `transpose(reshape(x))`.

    Returns None unless the reshape only splits dimensions.
    """
    inner = rewriter.producer(node.inputs[0], "transpose")
    if inner is None or not rewriter.used_once(inner.output):
        return None
    whole, parts = rewriter.shape(inner.output), rewriter.shape(node.output)
    runs = _runs(whole, parts)
    if runs is None or len(parts) <= len(whole):
        return None
    perm = permutation(inner, len(whole))
    order = [dim for place in np.argsort(perm) for dim in runs[place]]
    split = rewriter.emit(
        "reshape", [inner.inputs[0]], {"shape": tuple(parts[dim] for dim in order)}
    )
    return rewriter.emit(
        "transpose", [split], {"perm": tuple(order.index(dim) for dim in range(len(parts)))}
    )


def _runs(joined: Sequence[int], parts: Sequence[int]) -> list[list[int]] | None:
    """Group dimensions so that the product of each group is the extent of a joined dimension.

    `joined` has the extents of the joined dimensions, and `parts` the extents of the dimensions to
    group, in order. Returns the positions in `parts` of each group. For example, `joined` (6, 5)
    and `parts` (2, 3, 5) give [[0, 1], [2]], because 6 = 2 * 3.

    A part of extent 1 between two groups is added to the second one, and a part of extent 1 at the
    end to the last one. Returns None if there are no such groups, or if the ranges of dynamic sizes
    do not prove that the products are equal.
    """
    found: list[list[int]] = []
    place = 0
    for extent in joined:
        run: list[int] = []
        size = 1
        while place < len(parts) and (not run or always_less(size, extent)):
            run.append(place)
            size *= parts[place]
            place += 1
        if size != extent:
            return None
        found.append(run)
    if found:
        found[-1] += range(place, len(parts))
    return found if all(parts[dim] == 1 for dim in range(place, len(parts))) else None


def permutation(node: Node, rank: int) -> tuple[int, ...]:
    """Return the `perm` attribute of a transpose; by default, it reverses the dimensions."""
    return ints(node.attrs, "perm", tuple(reversed(range(rank))))


def _sink(rewriter: Rewriter, node: Node) -> str | None:
    """Rewrite `f(transpose(x), c)` as `transpose(f(x, c'))`, where c' is c transposed back."""
    moved = movements(rewriter, node, "transpose")
    perms = {permutation(each, len(rewriter.shape(node.output))) for each in moved}
    if len(perms) != 1 or not any(rewriter.used_once(each.output) for each in moved):
        return None
    (perm,) = perms

    def back(value: str, array: np.ndarray) -> str:
        return value if node.op == "lookup" else _transposed_back(rewriter, value, array, perm)

    result = unmoved(rewriter, node, "transpose", back)
    return None if result is None else rewriter.emit("transpose", [result], {"perm": perm})


def _transposed_back(rewriter: Rewriter, value: str, array: np.ndarray, perm: Sequence[int]) -> str:
    if array.size == 1 and array.ndim <= 1:
        return value
    padded = array.reshape((1,) * (len(perm) - array.ndim) + array.shape)
    back = np.argsort(np.asarray(perm))
    return rewriter.constant(np.ascontiguousarray(padded.transpose(back)), f"{value}.transposed")
