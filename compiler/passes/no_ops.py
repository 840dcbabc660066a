"""Removal and simplification of data movements.

Before -> after, where shapes allow:
    slice of the whole, expand to the same shape, pad by nothing, concat of one     x
    slice(slice(x))  (positive steps)                                               slice(x)
    add(expand(x), y) and other broadcasting elementwise operators                  add(x, y)
    gather(x, constant indices at equal distances)                                  slice(x)
    gather(x, a dynamic number of consecutive indices)                              slice(x)
    reduce over dimensions of extent 1                                              reshape(x)
    pad(x) by zeros before a convolution                                            pads of the conv
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.compiler import ops
from tilewright.compiler.graph.ir import Graph, Node
from tilewright.compiler.ops.attributes import integer, ints, number
from tilewright.compiler.ops.registry import OpKind
from tilewright.compiler.ops.shapes import broadcast
from tilewright.compiler.passes.causal_masks import counted
from tilewright.compiler.passes.rewrite import Rewriter, rewrite
from tilewright.compiler.sizes import always_at_most, is_dynamic


def no_ops(graph: Graph) -> Graph:
    """Remove data movements that change nothing, and replace others by cheaper operators."""
    return rewrite(graph, _rule)


def _rule(rewriter: Rewriter, node: Node) -> str | None:
    match node.op:
        case "slice":
            return _slice(rewriter, node)
        case "expand" | "concat":
            value = node.inputs[0]
            alone = len(node.inputs) == 1
            same = rewriter.shape(value) == rewriter.shape(node.outputs[0])
            return value if alone and same else None
        case "pad":
            return None if any(pad != 0 for pad in ints(node.attrs, "pads")) else node.inputs[0]
        case "gather":
            return _gather(rewriter, node)
        case "conv":
            return _padded_conv(rewriter, node)
        case "reduce_sum" | "reduce_mean" | "reduce_max" | "reduce_min" | "reduce_prod":
            return _reduce(rewriter, node)
    broadcasts = ops.get(node.op).kind is OpKind.ELEMENTWISE and node.op != "lookup"
    if broadcasts and len(node.inputs) > 1:
        return _without_expand(rewriter, node)
    return None


def _slice(rewriter: Rewriter, node: Node) -> str | None:
    value = node.inputs[0]
    starts, steps = ints(node.attrs, "starts"), ints(node.attrs, "steps")
    sizes = rewriter.shape(node.outputs[0])
    if sizes == rewriter.shape(value) and all(step == 1 for step in steps):
        return value
    inner = rewriter.producer(value, "slice")
    if inner is None:
        return None
    first, strides = ints(inner.attrs, "starts"), ints(inner.attrs, "steps")
    if any(step < 0 for step in (*steps, *strides)):
        return None
    merged = {
        "starts": tuple(a + b * s for a, b, s in zip(first, starts, strides, strict=True)),
        "steps": tuple(a * b for a, b in zip(steps, strides, strict=True)),
        "sizes": sizes,
    }
    return rewriter.emit("slice", [inner.inputs[0]], merged)


def _gather(rewriter: Rewriter, node: Node) -> str | None:
    """Replace a gather by a slice, if its indices are constants with equal positive distances.

    A reshape removes or adds dimensions if the indices do not have one dimension.
    """
    value = node.inputs[0]
    counted = _counted_indices(rewriter, node)
    if counted is not None:
        return counted
    indices = rewriter.array(node.inputs[1])
    shape = rewriter.shape(value)
    if indices is None or indices.size == 0 or rewriter.array(value) is not None:
        return None
    axis = integer(node.attrs, "axis", 0) % len(shape)
    if is_dynamic(shape[axis]):
        return _gathered_from_open(rewriter, node, axis, indices.reshape(-1).tolist())
    run = indices.reshape(-1).astype(np.int64)
    run = np.where(run < 0, run + shape[axis], run)
    step = int(run[1] - run[0]) if run.size > 1 else 1
    if step < 1 or run.min() < 0 or run.max() >= shape[axis] or np.any(np.diff(run) != step):
        return None
    return _run_of(rewriter, node, axis, int(run[0]), step, run.size)


def _counted_indices(rewriter: Rewriter, node: Node) -> str | None:
    """Replace a gather of consecutive indices `first, first + 1, ...` by a slice.

    The number of indices must be dynamic; `_gather` handles constant indices. Returns None for
    other gathers, and if the ranges of the sizes do not prove that all indices are in bounds.
    """
    shape, places = rewriter.shape(node.inputs[0]), rewriter.shape(node.inputs[1])
    long = [extent for extent in places if extent != 1]
    if len(long) != 1 or not is_dynamic(long[0]):
        return None
    found = counted(rewriter, node.inputs[1])
    axis = integer(node.attrs, "axis", 0) % len(shape)
    if found is None or not always_at_most(0, found.start):
        return None
    if not always_at_most(found.start + long[0], shape[axis]):
        return None
    return _run_of(rewriter, node, axis, found.start, 1, long[0])


def _gathered_from_open(
    rewriter: Rewriter, node: Node, axis: int, indices: Sequence[int]
) -> str | None:
    """Replace a gather of one position along a dynamic dimension by a slice.

    Returns None if the ranges of the sizes do not prove that the position exists.
    """
    extent = rewriter.shape(node.inputs[0])[axis]
    if len(indices) != 1:
        return None
    first = indices[0] + extent if indices[0] < 0 else indices[0]
    return _run_of(rewriter, node, axis, first, 1, 1) if 0 <= first < extent else None


def _run_of(
    rewriter: Rewriter, node: Node, axis: int, first: int, step: int, count: int
) -> str | None:
    value = node.inputs[0]
    shape = rewriter.shape(value)
    starts = tuple(first if dim == axis else 0 for dim in range(len(shape)))
    steps = tuple(step if dim == axis else 1 for dim in range(len(shape)))
    sizes = tuple(count if dim == axis else extent for dim, extent in enumerate(shape))
    part = rewriter.emit("slice", [value], {"starts": starts, "steps": steps, "sizes": sizes})
    return rewriter.emit("reshape", [part], {"shape": rewriter.shape(node.outputs[0])})


def _reduce(rewriter: Rewriter, node: Node) -> str | None:
    shape = rewriter.shape(node.inputs[0])
    axes = ints(node.attrs, "axes", tuple(range(len(shape))))
    if any(shape[axis] != 1 for axis in axes):
        return None
    return rewriter.emit("reshape", [node.inputs[0]], {"shape": rewriter.shape(node.outputs[0])})


def _without_expand(rewriter: Rewriter, node: Node) -> str | None:
    """Replace operands that an `expand` computes by the operand of the `expand`.

    This is done if broadcasting with the other operands gives a result of the same shape.
    """
    inputs = list(node.inputs)
    for position, value in enumerate(node.inputs):
        producer = rewriter.producer(value, "expand")
        if producer is None:
            continue
        trial = [*inputs[:position], producer.inputs[0], *inputs[position + 1 :]]
        if broadcast(*map(rewriter.shape, trial)) == rewriter.shape(node.outputs[0]):
            inputs = trial
    return rewriter.emit(node.op, inputs, node.attrs) if inputs != list(node.inputs) else None


def _padded_conv(rewriter: Rewriter, node: Node) -> str | None:
    pad = rewriter.producer(node.inputs[0], "pad")
    if pad is None or not rewriter.used_once(node.inputs[0]):
        return None
    if number(pad.attrs, "value", 0.0) != 0.0:
        return None
    pads = ints(pad.attrs, "pads")
    rank = len(rewriter.shape(node.inputs[0]))
    if any(pads[dim] or pads[dim + rank] for dim in (0, 1)):
        return None
    spatial = (*pads[2:rank], *pads[rank + 2 :])
    own = ints(node.attrs, "pads", (0,) * len(spatial))
    attrs = dict(node.attrs) | {"pads": tuple(a + b for a, b in zip(own, spatial, strict=True))}
    return rewriter.emit("conv", [pad.inputs[0], *node.inputs[1:]], attrs)
