"""NonMaxSuppression, which keeps the box with the best score of each group of overlapping boxes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import InvalidModelError
from tilewright.compiler.graph.ir import Attrs
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.ops.attributes import integer
from tilewright.compiler.ops.cast import cast_to
from tilewright.compiler.ops.moves import part
from tilewright.compiler.ops.native import OUTPUT_ONLY, native, trimmed
from tilewright.compiler.ops.onnx_node import OnnxNode
from tilewright.compiler.ops.registry import OnnxRule
from tilewright.compiler.ops.shapes import operand_count, show
from tilewright.compiler.sizes import same_extents

_LIMITS = (DType.INT64, DType.FLOAT32, DType.FLOAT32)


def _infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    """Infer the type of the selected boxes, int64 (batches * classes * room, 3).

    The operands are boxes (batches, boxes, 4), scores (batches, classes, boxes), the maximum number
    of boxes per class, the overlap limit and the score limit. The attribute `room` is an upper
    bound of the number of boxes per class. Each row of the result is the index (batch, class, box)
    of a selected box; unused rows at the end are -1.
    """
    operand_count(types, 5)
    boxes, scores = types[0].shape, types[1].shape
    if len(boxes) != 3 or len(scores) != 3 or not same_extents(boxes, (scores[0], scores[2], 4)):
        raise InvalidModelError(
            f"the boxes are {show(boxes)} and the scores {show(scores)}, expected "
            "(batches, boxes, 4) and (batches, classes, boxes)"
        )
    if any(t.dtype is not DType.FLOAT32 for t in types[:2]):
        raise InvalidModelError(
            f"boxes and scores are {types[0].dtype} and {types[1].dtype}, expected float32"
        )
    for kind, dtype in zip(types[2:], _LIMITS, strict=True):
        if kind.dtype is not dtype or kind.elements != 1:
            raise InvalidModelError(f"a limit is {kind}, expected a single {dtype}")
    return TensorType(DType.INT64, (scores[0] * scores[1] * integer(attrs, "room"), 3))


def _reference(arrays: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    """Return the indices (batch, class, box) of the selected boxes, followed by rows of -1."""
    boxes, scores = arrays[:2]
    limit, most, least = (array.reshape(-1)[0] for array in arrays[2:])
    batches, classes, _ = scores.shape
    room = integer(attrs, "room")
    corners = _corners(boxes, bool(integer(attrs, "centred", 0)))
    chosen: list[tuple[int, int, int]] = []
    for batch in range(batches):
        for group in range(classes):
            row = scores[batch, group]
            order = np.argsort(-row, kind="stable")
            order = order[row[order] > least]
            mine = np.ascontiguousarray(corners[batch][order].T)
            left = np.ones(len(order), bool)
            kept = 0
            for place, box in enumerate(order):
                if kept >= min(limit, room):
                    break
                if left[place]:
                    kept += 1
                    left[place + 1 :] &= ~(
                        _overlaps(mine[:, place, None], mine[:, place + 1 :]) > most
                    )
                    chosen.append((batch, group, int(box)))
    found = np.full((batches * classes * room, 3), -1, np.int64)
    found[: len(chosen)] = np.array(chosen, np.int64).reshape(-1, 3)
    return found


def _corners(boxes: np.ndarray, centred: bool) -> np.ndarray:
    """Convert boxes (..., 4) to the minimum and maximum of one coordinate, then of the other.

    Boxes are two opposite corners, or centre and size if `centred`.
    """
    a, b, c, d = np.moveaxis(boxes, -1, 0)
    if centred:
        half = boxes.dtype.type(2)
        parts = [b - d / half, b + d / half, a - c / half, a + c / half]
    else:
        parts = [np.minimum(a, c), np.maximum(a, c), np.minimum(b, d), np.maximum(b, d)]
    return np.stack(parts, -1)


def _overlaps(box: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the intersection over union of `box` with each box in `others`.

    The result is minus infinity for boxes that do not overlap. The first dimension of both arrays
    has the minimum and maximum of one coordinate, then those of the other coordinate.
    """
    low, high = np.maximum(box, others), np.minimum(box, others)
    tall, wide = high[1] - low[0], high[3] - low[2]
    shared = np.where((tall > 0) & (wide > 0), tall * wide, 0)
    covered = _area(box) + _area(others) - shared
    return np.where((shared > 0) & (covered > 0), shared / covered, -np.inf)


def _area(boxes: np.ndarray) -> np.ndarray:
    sizes: np.ndarray = (boxes[1] - boxes[0]) * (boxes[3] - boxes[2])
    return sizes


def _work(types: Sequence[TensorType], attrs: Attrs) -> tuple[str, tuple[int, ...]]:
    rest = integer(attrs, "room"), int(bool(integer(attrs, "centred", 0)))
    return "non_max_suppression", (*types[1].shape, *rest)


def _onnx(node: OnnxNode) -> str:
    boxes, scores = node.input(0), node.input(1)
    limits = [
        node.optional(2) or node.scalar(0, DType.INT64),
        node.optional(3) or node.scalar(0.0, DType.FLOAT32),
        node.optional(4) or node.scalar(float("-inf"), DType.FLOAT32),
    ]
    shape = node.shape(scores)
    if len(shape) != 3:
        raise node.invalid(
            f"scores (input 1) are {show(shape)}, expected (batches, classes, boxes)"
        )
    known = node.builder.known(limits[0])
    room = shape[2]
    if known is not None and known.size == 1:
        room = max(0, min(room, int(known.reshape(-1)[0])))
    centred = node.integer("center_point_box", 0)
    if centred not in (0, 1):
        raise node.invalid(f"center_point_box is {centred}, not 0 or 1")
    limits[0] = cast_to(node, limits[0], DType.INT64)
    found = node.emit("non_max_suppression", [boxes, scores, *limits], room=room, centred=centred)
    rows = node.shape(found)[0]
    if rows == 0:
        return found
    first = node.reshape(part(node, found, 1, 0, 1), (rows,))
    chosen = node.emit("greater_or_equal", [first, node.scalar(0, DType.INT64)])
    return trimmed(node, found, chosen)


OPERATORS = (
    native(
        "non_max_suppression",
        _infer,
        _reference,
        _work,
        OnnxRule("NonMaxSuppression", _onnx, limits=OUTPUT_ONLY),
    ),
)
