"""Helpers by which import rules emit slices, padding, reversals and transposes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.compiler.ops.onnx_node import OnnxNode
from tilewright.compiler.sizes import larger, smaller


def part(node: OnnxNode, value: str, dim: int, start: int, size: int) -> str:
    """Emit the slice of `value` with `size` positions of dimension `dim` from `start` on."""
    return window(node, value, {dim: (start, size)})


def window(node: OnnxNode, value: str, kept: Mapping[int, tuple[int, int]]) -> str:
    """Emit a slice of `value`, padded with zeros where it extends beyond the value.

    `kept` maps the index of each dimension that is sliced or padded to (start, size). The start may
    be negative.
    """
    shape = node.shape(value)
    rank = len(shape)
    starts, sizes, before, after = [0] * rank, list(shape), [0] * rank, [0] * rank
    for dim, (start, size) in kept.items():
        first, last = larger(start, 0), smaller(start + size, shape[dim])
        starts[dim], sizes[dim] = first, larger(last - first, 0)
        before[dim] = smaller(larger(-start, 0), size)
        after[dim] = size - sizes[dim] - before[dim]
    if tuple(sizes) != shape:
        attrs = {"starts": tuple(starts), "steps": (1,) * rank, "sizes": tuple(sizes)}
        value = node.emit("slice", [value], **attrs)
    if all(pad == 0 for pad in (*before, *after)):
        return value
    return node.emit("pad", [value], pads=(*before, *after), value=0.0)


def flip(node: OnnxNode, value: str, dims: Sequence[int]) -> str:
    """Emit `value` with the order of its elements reversed along `dims`."""
    shape = node.shape(value)
    turned = [dim for dim in dims if shape[dim] not in (0, 1)]
    if not turned:
        return value
    starts = tuple(extent - 1 if dim in turned else 0 for dim, extent in enumerate(shape))
    steps = tuple(-1 if dim in turned else 1 for dim in range(len(shape)))
    return node.emit("slice", [value], starts=starts, steps=steps, sizes=shape)


def spread(node: OnnxNode, value: str, first: int, distances: Sequence[int]) -> str:
    """Emit `value` with zeros inserted between neighbouring elements.

    Elements along dimension `first + i` are then `distances[i]` positions from each other. For
    example, a value (2, 3) with `first` 1 and distances (2,) becomes (2, 5), with zeros at
    positions 1 and 3.
    """
    for dim, distance in enumerate(distances, first):
        if distance == 1:
            continue
        shape = node.shape(value)
        column = node.reshape(value, (*shape[: dim + 1], 1, *shape[dim + 1 :]))
        wide = window(node, column, {dim + 1: (0, distance)})
        extent = shape[dim] * distance
        value = node.reshape(wide, (*shape[:dim], extent, *shape[dim + 1 :]))
        value = part(node, value, dim, 0, extent - distance + 1)
    return value


def transposed(node: OnnxNode, value: str, perm: Sequence[int]) -> str:
    """Transpose a value: dimension i of the result is dimension `perm[i]` of the value."""
    if tuple(perm) == tuple(range(len(perm))):
        return value
    return node.emit("transpose", [value], perm=tuple(perm))
