"""Inverse, CDist and IsAllFinite of com.microsoft."""

from __future__ import annotations

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import unknown_choice
from tilewright.compiler.ops.contrib.microsoft.quantised import DOMAIN
from tilewright.compiler.ops.determinant import SIZE_LIMIT, first_largest, square_matrices
from tilewright.compiler.ops.moves import part
from tilewright.compiler.ops.onnx_node import OnnxNode
from tilewright.compiler.ops.registry import OnnxRule
from tilewright.compiler.ops.shapes import show


def _inverse(node: OnnxNode) -> str:
    """Import Inverse: invert matrices (..., size, size) by Gauss-Jordan elimination.

    Each step exchanges rows so that the pivot has the largest magnitude in its column.
    """
    x, batch, size = square_matrices(node)
    shape, dtype = node.shape(x), node.type(x).dtype
    unit = np.broadcast_to(np.eye(size, dtype=dtype.numpy), (batch, size, size))
    right = node.constant(np.ascontiguousarray(unit), dtype)
    whole = node.emit("concat", [node.reshape(x, (batch, size, size)), right], axis=2)
    rows = np.arange(size).reshape(size, 1)
    nothing, none = node.scalar(0, dtype), node.scalar(-1, dtype)
    for step in range(size):
        own = node.constant(rows == step)
        column = part(node, whole, 2, step, 1)
        left = node.emit("where", [node.constant(rows >= step), node.emit("abs", [column]), none])
        chosen = first_largest(node, left, size)
        picked = node.emit("where", [chosen, whole, nothing])
        pivot_row = node.emit("reduce_sum", [picked], axes=(1,), keepdims=1)
        whole = node.emit("where", [chosen, part(node, whole, 1, step, 1), whole])
        scaled = node.emit("div", [pivot_row, part(node, pivot_row, 2, step, 1)])
        taken = node.emit("mul", [part(node, whole, 2, step, 1), scaled])
        whole = node.emit("where", [own, scaled, node.emit("sub", [whole, taken])])
    return node.reshape(part(node, whole, 2, size, size), shape)


def _distances(node: OnnxNode) -> str:
    """Import CDist: the Euclidean distance, or its square, of each row of a to each row of b.

    The result is (rows of a, rows of b). The square is computed as |a|^2 + |b|^2 - 2 a b.
    """
    a, b = node.input(0), node.input(1)
    left, right = node.shape(a), node.shape(b)
    if len(left) != 2 or len(right) != 2 or left[1] != right[1]:
        raise node.invalid(
            f"the operands are {show(left)} and {show(right)}, expected two matrices with equally "
            "many columns"
        )
    metric = node.word("metric", "sqeuclidean")
    if metric not in ("euclidean", "sqeuclidean"):
        raise node.unsupported(
            unknown_choice("attribute 'metric'", metric, ("euclidean", "sqeuclidean"))
        )
    dtype = node.type(a).dtype

    def squares(value: str, shape: tuple[int, ...]) -> str:
        total = node.emit("reduce_sum", [node.emit("mul", [value, value])], axes=(1,), keepdims=0)
        return node.reshape(total, shape)

    both = node.emit("add", [squares(a, (left[0], 1)), squares(b, (1, right[0]))])
    product = node.emit("matmul", [a, node.call("Transpose", b, perm=(1, 0))])
    apart = node.emit("sub", [both, node.emit("mul", [product, node.scalar(2, dtype)])])
    apart = node.emit("max", [apart, node.scalar(0, dtype)])
    return apart if metric == "sqeuclidean" else node.emit("sqrt", [apart])


def _is_all_finite(node: OnnxNode) -> str:
    """Import IsAllFinite: a boolean scalar, true if no input has an infinity or a NaN.

    The attribute `isinf_only` or `isnan_only` restricts the test to infinities or to NaNs.
    """
    only_infinities, only_nans = (node.integer(k, 0) for k in ("isinf_only", "isnan_only"))
    if only_infinities and only_nans:
        raise node.invalid("attributes 'isinf_only' and 'isnan_only' exclude each other")
    found = ""
    for position in range(len(node.inputs)):
        value = node.input(position)
        parts = []
        if not only_nans:
            parts.append(node.call("IsInf", value))
        if not only_infinities:
            parts.append(node.call("IsNaN", value))
        for bad in parts:
            flat = node.reshape(bad, (node.type(value).elements,))
            numbers = node.emit("cast", [flat], to=DType.INT32.value)
            each = node.emit("reduce_max", [numbers], axes=(0,), keepdims=0)
            found = node.emit("max", [found, each]) if found else each
    if not found:
        raise node.invalid("it has no inputs, expected at least one")
    return node.emit("equal", [found, node.scalar(0, DType.INT32)])


RULES = (
    OnnxRule("Inverse", _inverse, DOMAIN, f"matrices of up to {SIZE_LIMIT} rows"),
    OnnxRule("CDist", _distances, DOMAIN),
    OnnxRule("IsAllFinite", _is_all_finite, DOMAIN),
)
