"""Import rule of AffineGrid, for sizes known at import.

For dynamic sizes, the importer uses the function body in ONNX's schema instead. That function body
is invalid for a batch of 1. With `align_corners`, it divides by zero if an extent is 1.
"""

from __future__ import annotations

import numpy as np

from tilewright.compiler.loops.semantics import to_memory
from tilewright.compiler.ops.moves import transposed
from tilewright.compiler.ops.onnx_node import OnnxNode
from tilewright.compiler.ops.registry import OnnxRule
from tilewright.compiler.ops.shapes import show
from tilewright.compiler.sizes import DynamicSizeError, is_dynamic


def _onnx_affine_grid(node: OnnxNode) -> str:
    """Import AffineGrid: multiply each point of a regular grid by the batch element's matrix theta.

    The grid covers -1 to 1 along each dimension. The result has the shape (N, *spatial extents,
    rank), where the rank is 2 or 3.

    Raises:
        UnsupportedOperatorError, DynamicSizeError: if the size (input 1) or the shape of theta is
            not fixed. It is a DynamicSizeError if `align_corners` is set and the grid may have a
            single point along a dimension.
    """
    theta, size = node.input(0), node.static_ints(1, "size")
    kind = node.type(theta)
    if size is None or any(map(is_dynamic, (*size, *kind.shape))):
        if node.integer("align_corners", 0) and not all(extent > 1 for extent in (size or ())[2:]):
            raise DynamicSizeError(
                f"whether the grid {show(size or ())} has two points or more along each "
                "dimension, which aligned corners need, is known at run time only"
            )
        raise node.unsupported(
            "the size (input 1) and the shape of theta (input 0) must be known when the model is "
            "compiled: give their dimensions one size each"
        )
    rank = len(size) - 2
    if rank not in (2, 3) or kind.shape != (size[0], rank, rank + 1):
        raise node.invalid(
            f"theta (input 0) is {show(kind.shape)}, expected (N, 2, 3) for a size of 4 numbers or "
            f"(N, 3, 4) for one of 5; the size (input 1) is {show(size)}"
        )
    spatial = size[2:]
    steps = np.indices(spatial).reshape(rank, -1)
    extents = np.array(spatial, np.float64)[:, None]
    if node.integer("align_corners", 0):
        grid = np.where(extents > 1, 2 * steps / np.maximum(extents - 1, 1) - 1, 1.0)
    else:
        grid = (2 * steps + 1) / extents - 1
    node.reserve(f"a grid {show(spatial)}", grid.size * 8)
    whole = np.concatenate([grid[::-1], np.ones((1, grid.shape[1]))])  # x comes first
    places = node.constant(to_memory(whole, kind.dtype), kind.dtype)
    turned = transposed(node, node.emit("matmul", [theta, places]), (0, 2, 1))
    return node.reshape(turned, (size[0], *spatial, rank))


RULES = (OnnxRule("AffineGrid", _onnx_affine_grid),)
