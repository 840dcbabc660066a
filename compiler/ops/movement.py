"""Data movement, such as Transpose and Slice: each result element is one element of the operand."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np

from tilewright.compiler.errors import InvalidModelError
from tilewright.compiler.graph.ir import Attrs
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.loops.expr import Expr
from tilewright.compiler.loops.index import Affine
from tilewright.compiler.ops.attributes import ints
from tilewright.compiler.ops.index_bounds import check_single_dimension
from tilewright.compiler.ops.iota import counted
from tilewright.compiler.ops.onnx_node import OnnxNode
from tilewright.compiler.ops.refusals import at_most
from tilewright.compiler.ops.registry import ElementCost, Fresh, OnnxRule, Operator, OpKind, Source
from tilewright.compiler.ops.shapes import Shape, broadcast, broadcast_index, operand_count, show
from tilewright.compiler.sizes import bounds, equal, is_dynamic, larger, same_extents, smaller


def _perm(attrs: Attrs, rank: int) -> tuple[int, ...]:
    perm = ints(attrs, "perm", tuple(reversed(range(rank))))
    if sorted(perm) != list(range(rank)):
        raise InvalidModelError(f"perm {perm} is not a permutation of {rank} dimensions")
    return perm


def _infer_transpose(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    operand_count(types, 1)
    shape = types[0].shape
    return TensorType(types[0].dtype, tuple(shape[dim] for dim in _perm(attrs, len(shape))))


def _transpose_expression(
    operands: Sequence[Source],
    types: Sequence[TensorType],
    attrs: Attrs,
    index: tuple[Affine, ...],
    fresh: Fresh,
) -> Expr:
    perm = _perm(attrs, len(index))
    return operands[0](tuple(index[perm.index(dim)] for dim in range(len(index))))


def _onnx_transpose(node: OnnxNode) -> str:
    rank = len(node.shape(node.input(0)))
    perm = node.ints("perm", tuple(reversed(range(rank))))
    return node.emit("transpose", [node.input(0)], perm=perm)


def _slice_parts(attrs: Attrs, shape: Shape) -> tuple[Shape, Shape, Shape]:
    """Return the attributes `starts`, `steps` and `sizes` of a slice, one element per dimension.

    Raises:
        InvalidModelError: if the slice reads elements outside the operand.
    """
    rank = len(shape)
    starts, sizes = ints(attrs, "starts"), ints(attrs, "sizes")
    steps = ints(attrs, "steps", (1,) * rank)
    if not len(starts) == len(sizes) == len(steps) == rank:
        raise InvalidModelError(f"starts, steps and sizes must have {rank} entries each")
    for extent, start, step, size in zip(shape, starts, steps, sizes, strict=True):
        if not _lies_within(extent, start, step, size):
            raise InvalidModelError(
                f"start {start}, step {step} and size {size} read outside the {extent} elements"
            )
    return starts, steps, sizes


def _lies_within(extent: int, start: int, step: int, size: int) -> bool:
    """Whether a slice along one dimension reads only elements in [0, extent).

    A slice of size 0 reads none.
    """
    if step == 0 or size < 0:
        return False
    if step == 1 and (is_dynamic(size) or is_dynamic(start)):  # the size may be 0 in some runs
        return start >= 0 and start + size <= extent
    last = start + (size - 1) * step
    return not size or (0 <= start < extent and 0 <= last < extent)


def _infer_slice(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    operand_count(types, 1)
    return TensorType(types[0].dtype, _slice_parts(attrs, types[0].shape)[2])


def _slice_reference(arrays: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    x = arrays[0]
    parts = []
    for start, step, size in zip(*_slice_parts(attrs, x.shape), strict=True):
        stop = start + size * step
        # A negative stop would count from the end.
        parts.append(slice(start, stop if stop >= 0 else None, step) if size else slice(0, 0))
    return x[tuple(parts)]


def _slice_expression(
    operands: Sequence[Source],
    types: Sequence[TensorType],
    attrs: Attrs,
    index: tuple[Affine, ...],
    fresh: Fresh,
) -> Expr:
    starts, steps, _ = _slice_parts(attrs, types[0].shape)
    moved = tuple(i * step + start for i, start, step in zip(index, starts, steps, strict=True))
    return operands[0](moved)


def _onnx_slice(node: OnnxNode) -> str:
    """Import Slice: convert ONNX's starts and ends to starts and sizes.

    Negative positions count from the end; positions outside the dimension are clamped.
    """
    x = node.input(0)
    shape = node.shape(x)
    rank = len(shape)
    starts = node.ints_or_input("starts", 1)
    ends = node.ints_or_input("ends", 2)
    if starts is None or ends is None:
        raise node.invalid("starts or ends are missing")
    axes = node.ints_or_input("axes", 3) or tuple(range(len(starts)))
    steps = node.static_ints(4, "steps") or (1,) * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise node.invalid(
            f"starts, ends, axes and steps have {len(starts)}, {len(ends)}, {len(axes)} and "
            f"{len(steps)} entries, expected as many in each"
        )
    full_starts, full_steps, sizes = [0] * rank, [1] * rank, list(shape)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if step == 0 or not -rank <= axis < rank:
            raise node.invalid(
                f"axis is {axis} and step {step}, expected a step other than 0 and an axis of the "
                f"input {show(shape)}"
            )
        dim = axis % rank
        beyond = step == 1 and _may_end_beyond(shape[dim], start, end)
        if beyond and not node.builder.inputs_of(x):
            x, sizes[dim] = _guarded_part(node, x, dim, start, end), end - start
            full_starts[dim] = 0
            continue
        if is_dynamic(start) or is_dynamic(end) or is_dynamic(shape[dim]):
            full_steps[dim] = step
            full_starts[dim], sizes[dim] = _open_part(shape[dim], start, end, step)
            continue
        # a start before the first element becomes the first, backwards too
        first = max(start, -shape[dim])
        picked = range(*slice(first, end, step).indices(shape[dim]))
        full_starts[dim] = picked.start if picked else 0
        full_steps[dim], sizes[dim] = (step if picked else 1), len(picked)
    if tuple(sizes) == node.shape(x) and all(step == 1 for step in full_steps):
        return x
    return node.emit(
        "slice", [x], starts=tuple(full_starts), steps=tuple(full_steps), sizes=tuple(sizes)
    )


def _may_end_beyond(extent: int, start: int, end: int) -> bool:
    """Whether a slice may end beyond the extent, depending on the dynamic sizes.

    `extent`, `start` and `end` are integers, or formulas over dynamic sizes (`compiler.sizes`). The
    result is True if the slice ends beyond the extent for some of these sizes, and within the
    extent for others. It is False if `end - extent` has no upper limit, or if the sizes do not
    guarantee 0 <= start <= end.
    """
    low, high = bounds(end - extent)
    return low <= 0 < high < inf and bounds(start)[0] >= 0 and bounds(end - start)[0] >= 0


def _guarded_part(node: OnnxNode, table: str, dim: int, start: int, end: int) -> str:
    """Emit a slice of a constant table, such as position embeddings, and return its name.

    `start` and `end` may be formulas over dynamic sizes, such as `past + tokens`. A run whose sizes
    make the slice end beyond the table fails with an error for invalid input.

    Raises:
        DynamicSizeError: if a single dimension can make the slice end beyond the table, while all
            others have their smallest sizes. The range of this dimension is then too large.
    """
    extent = node.shape(table)[dim]
    check_single_dimension(end - 1, extent)
    places = counted(node, end - start, start)
    places = at_most(node, places, end, extent, "elements of a table")
    return node.emit("gather", [table, places], axis=dim)


def _open_part(extent: int, start: int, end: int, step: int) -> tuple[int, int]:
    """Convert start and end of ONNX's Slice along a dynamic dimension to start and size.

    A very large position, which exporters write for "to the end", becomes the end of the dimension.

    Raises:
        DynamicSizeError: if a position is in the dimension for some values of the dynamic sizes
            only.
    """
    low, high = (0, extent) if step > 0 else (-1, extent - 1)

    def place(position: int) -> int:
        if not is_dynamic(position) and abs(position) >= _ENDLESS:
            return high if position > 0 else low
        if position < 0:
            position = position + extent
        return larger(low, smaller(position, high))

    # A start before the first element becomes the first, backwards too.
    first, last = larger(0, place(start)), place(end)
    distance = (last - first) * (1 if step > 0 else -1)
    return first, larger(0, -(-distance // abs(step)))


_ENDLESS = (1 << 31) - 1
"""Minimum magnitude of a position in Slice that stands for the first or last element. Exporters
write the largest number of an integer type."""


def _onnx_split(node: OnnxNode) -> list[str]:
    """Import Split as one slice per output."""
    x = node.input(0)
    shape = node.shape(x)
    axis = node.integer("axis", 0)
    if not -len(shape) <= axis < len(shape):
        raise node.invalid(f"axis {axis} is out of range for rank {len(shape)}")
    dim = axis % len(shape)
    extent, count = shape[dim], len(node.outputs)
    parts = node.ints_or_input("split", 1)
    if parts is None:
        count = node.integer("num_outputs", count)
        size = -(-extent // max(count, 1))
        parts = tuple(min(size, extent - size * i) for i in range(count))
    if (
        not equal(sum(parts), extent)
        or any(p < 0 for p in parts)
        or len(parts) != len(node.outputs)
    ):
        raise node.invalid(
            f"split is {show(parts)}, expected {len(node.outputs)} parts, one for each output, "
            f"that add up to the {extent} elements of axis {axis}"
        )
    results, start = [], 0
    for part in parts:
        starts = tuple(start if d == dim else 0 for d in range(len(shape)))
        sizes = tuple(part if d == dim else e for d, e in enumerate(shape))
        results.append(
            x
            if sizes == shape
            else node.emit("slice", [x], starts=starts, steps=(1,) * len(shape), sizes=sizes)
        )
        start += part
    return results


def _infer_expand(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    operand_count(types, 1)
    shape = ints(attrs, "shape")
    if any(extent < 0 for extent in shape) or not same_extents(
        broadcast(shape, types[0].shape), shape
    ):
        raise InvalidModelError(
            f"the input {show(types[0].shape)} does not broadcast to {show(shape)}"
        )
    return TensorType(types[0].dtype, shape)


def _expand_expression(
    operands: Sequence[Source],
    types: Sequence[TensorType],
    attrs: Attrs,
    index: tuple[Affine, ...],
    fresh: Fresh,
) -> Expr:
    return operands[0](broadcast_index(index, types[0].shape))


def _onnx_expand(node: OnnxNode) -> str:
    x = node.input(0)
    wanted = node.static_ints(1, "shape")
    if wanted is None:
        raise node.invalid("shape (input 1) is missing")
    try:
        shape = broadcast(node.shape(x), wanted)  # both may have extents of 1
    except InvalidModelError as error:
        raise node.invalid(str(error)) from error
    return x if shape == node.shape(x) else node.emit("expand", [x], shape=shape)


def _onnx_tile(node: OnnxNode) -> str:
    """Import Tile: reshape (a, b) to (1, a, 1, b), expand it to (m, a, n, b), merge the pairs."""
    x = node.input(0)
    shape = node.shape(x)
    repeats = node.static_ints(1, "repeats")
    if repeats is None or len(repeats) != len(shape) or any(r < 0 for r in repeats):
        raise node.invalid(
            f"repeats (input 1) is {repeats}, expected {len(shape)} numbers of at least 0 for the "
            f"input {show(shape)}"
        )
    if all(r == 1 for r in repeats):
        return x
    result = tuple(r * extent for r, extent in zip(repeats, shape, strict=True))
    if any(extent == 0 for extent in result):
        return node.emit("expand", [node.scalar(0, node.type(x).dtype)], shape=result)
    split = tuple(part for extent in shape for part in (1, extent))
    full = tuple(part for pair in zip(repeats, shape, strict=True) for part in pair)
    expanded = node.emit("expand", [node.reshape(x, split)], shape=full)
    return node.reshape(expanded, result)


def _onnx_depth_to_space(node: OnnxNode) -> str:
    x, block = node.input(0), node.integer("blocksize")
    shape = node.shape(x)
    if len(shape) != 4 or block < 1 or not equal(shape[1] % (block * block), 0):
        raise node.invalid(
            f"attribute 'blocksize' is {block}, expected at least 1 and an input of four "
            f"dimensions whose channels its square divides; the input is {show(shape)}"
        )
    n, c, h, w = shape
    channels = c // (block * block)
    if node.word("mode", "DCR") == "CRD":
        split, perm = (n, channels, block, block, h, w), (0, 1, 4, 2, 5, 3)
    else:
        split, perm = (n, block, block, channels, h, w), (0, 3, 4, 1, 5, 2)
    moved = node.emit("transpose", [node.reshape(x, split)], perm=perm)
    return node.reshape(moved, (n, channels, h * block, w * block))


def _onnx_space_to_depth(node: OnnxNode) -> str:
    x, block = node.input(0), node.integer("blocksize")
    shape = node.shape(x)
    if len(shape) != 4 or block < 1 or not same_extents([e % block for e in shape[2:]], (0, 0)):
        raise node.invalid(
            f"attribute 'blocksize' is {block}, expected at least 1 and an input of four "
            f"dimensions whose height and width it divides; the input is {show(shape)}"
        )
    n, c, h, w = shape
    split = (n, c, h // block, block, w // block, block)
    perm = (0, 1, 3, 5, 2, 4) if node.word("mode", "DCR") == "CRD" else (0, 3, 5, 1, 2, 4)
    moved = node.emit("transpose", [node.reshape(x, split)], perm=perm)
    return node.reshape(moved, (n, c * block * block, h // block, w // block))


OPERATORS = (
    Operator(
        "transpose",
        OpKind.MOVEMENT,
        _infer_transpose,
        lambda arrays, attrs: arrays[0].transpose(_perm(attrs, arrays[0].ndim)),
        _transpose_expression,
        (OnnxRule("Transpose", _onnx_transpose),),
        cost=ElementCost.CHEAP,
    ),
    Operator(
        "slice",
        OpKind.MOVEMENT,
        _infer_slice,
        _slice_reference,
        _slice_expression,
        (OnnxRule("Slice", _onnx_slice), OnnxRule("Split", _onnx_split)),
        cost=ElementCost.CHEAP,
    ),
    Operator(
        "expand",
        OpKind.MOVEMENT,
        _infer_expand,
        lambda arrays, attrs: np.broadcast_to(arrays[0], ints(attrs, "shape")),
        _expand_expression,
        (OnnxRule("Expand", _onnx_expand), OnnxRule("Tile", _onnx_tile)),
        cost=ElementCost.CHEAP,
    ),
)

RULES = (
    OnnxRule("DepthToSpace", _onnx_depth_to_space),
    OnnxRule("SpaceToDepth", _onnx_space_to_depth),
)
