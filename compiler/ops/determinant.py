"""Determinants by Gaussian elimination with partial pivoting."""

from __future__ import annotations

from math import prod

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.ops.moves import part
from tilewright.compiler.ops.onnx_node import OnnxNode
from tilewright.compiler.ops.registry import OnnxRule
from tilewright.compiler.ops.shapes import show
from tilewright.compiler.sizes import equal

SIZE_LIMIT = 64
"""Maximum number of rows of a matrix. The steps of the computation are unrolled, so that a larger
matrix would make a graph too large to compile."""


def square_matrices(node: OnnxNode) -> tuple[str, int, int]:
    """Return a node's first input (..., size, size), its number of matrices, and `size`.

    Raises:
        InvalidModelError: if the matrices are not square.
        UnsupportedOperatorError: if `size` exceeds SIZE_LIMIT.
    """
    x = node.input(0)
    shape = node.shape(x)
    if len(shape) < 2 or not equal(shape[-1], shape[-2]):
        raise node.invalid(f"the input {show(shape)} holds no square matrices")
    if shape[-1] > SIZE_LIMIT:
        raise node.unsupported(f"matrices of {shape[-1]} rows, the limit is {SIZE_LIMIT}")
    return x, prod(shape[:-2]), shape[-1]


def _onnx_det(node: OnnxNode) -> str:
    """Import Det: multiply the pivots of Gaussian elimination.

    Each exchange of rows negates the product.
    """
    x, batch, size = square_matrices(node)
    shape, dtype = node.shape(x), node.type(x).dtype
    one, nothing = node.scalar(1, dtype), node.scalar(0, dtype)
    rest, result = node.reshape(x, (batch, size, size)), ""
    for left in range(size, 0, -1):
        pivot_row = node.reshape(part(node, rest, 1, 0, 1), (batch, 1, left))
        if left > 1:
            size_of = node.emit("abs", [part(node, rest, 2, 0, 1)])
            chosen = first_largest(node, size_of, left)
            first, picked = pivot_row, node.emit("where", [chosen, rest, nothing])
            pivot_row = node.emit("reduce_sum", [picked], axes=(1,), keepdims=1)
            rest = node.emit("where", [chosen, first, rest])
            stays = node.reshape(part(node, chosen, 1, 0, 1), (batch,))
            sign = node.emit("where", [stays, one, node.scalar(-1, dtype)])
            result = node.emit("mul", [result, sign]) if result else sign
        pivot = part(node, pivot_row, 2, 0, 1)
        factor = node.reshape(pivot, (batch,))
        result = node.emit("mul", [result, factor]) if result else factor
        if left == 1:
            break
        below = part(node, rest, 1, 1, left - 1)
        singular = node.emit("equal", [pivot, nothing])  # then all elements below are 0 too
        divisor = node.emit("where", [singular, one, pivot])
        share = node.emit("div", [part(node, below, 2, 0, 1), divisor])
        taken = node.emit("mul", [share, part(node, pivot_row, 2, 1, left - 1)])
        rest = node.emit("sub", [part(node, below, 2, 1, left - 1), taken])
    return node.reshape(result, shape[:-2])


def first_largest(node: OnnxNode, size: str, count: int) -> str:
    """Emit a boolean mask that is true at the first maximum of `size` along dimension 1.

    `size` and the mask have the shape (batch, count, 1).
    """
    largest = node.emit("reduce_max", [size], axes=(1,), keepdims=1)
    numbers = node.constant(np.arange(count, dtype=np.int32).reshape(count, 1))
    equal = node.emit("equal", [size, largest])
    beyond = node.scalar(count, DType.INT32)
    candidates = node.emit("where", [equal, numbers, beyond])
    first = node.emit("reduce_min", [candidates], axes=(1,), keepdims=1)
    return node.emit("equal", [numbers, first])


RULES = (OnnxRule("Det", _onnx_det, limits="matrices of up to 64 rows"),)
