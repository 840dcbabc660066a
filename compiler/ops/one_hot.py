"""OneHot, Hardmax and EyeLike: tensors in which one element per row differs from the others."""

from __future__ import annotations

from math import prod

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.loops.semantics import to_memory
from tilewright.compiler.ops.cast import ONNX_TYPES, cast_to, onnx_type_name
from tilewright.compiler.ops.computed import counting, grid, table
from tilewright.compiler.ops.onnx_node import OnnxNode
from tilewright.compiler.ops.registry import OnnxRule
from tilewright.compiler.ops.shapes import show
from tilewright.compiler.sizes import is_dynamic, same_extents


def _onnx_one_hot(node: OnnxNode) -> str:
    """Import OneHot: along a new axis, the "on" value is at the position that the index states.

    All other elements have the "off" value. Input 2 holds the two values, "off" first.
    """
    indices, values = node.input(0), node.input(2)
    depths = node.static(1, "depth")
    if depths is None or depths.size != 1 or depths.item() < 1:
        raise node.invalid("depth (input 1) is not a positive number")
    if not same_extents(node.shape(values), (2,)):
        raise node.invalid(f"values (input 2) have the shape {show(node.shape(values))}, not (2)")
    # ONNX allows a float depth, too; a dynamic one cannot be converted to a number
    depth = depths.item() if is_dynamic(depths.item()) else int(depths.item())
    shape = node.shape(indices)
    rank = len(shape) + 1
    axis = node.integer("axis", -1)
    if not -rank <= axis < rank:
        raise node.invalid(f"axis {axis} is out of range for rank {rank}")
    dim = axis % rank
    whole = cast_to(node, indices, DType.INT64)
    count = node.scalar(depth, DType.INT64)
    negative = node.emit("less", [whole, node.scalar(0, DType.INT64)])
    wrapped = node.emit("where", [negative, node.emit("add", [whole, count]), whole])
    column = node.reshape(wrapped, (*shape[:dim], 1, *shape[dim:]))
    if not is_dynamic(depth):
        node.reserve(f"depth {depth}", depth * DType.INT64.bytes)
    behind = (1,) * (rank - 1 - dim)
    positions = table(node, counting(node, depth).reshape((depth, *behind)), DType.INT64)
    off, on = (
        node.reshape(node.emit("slice", [values], starts=(i,), steps=(1,), sizes=(1,)), ())
        for i in range(2)
    )
    return node.emit("where", [node.emit("equal", [column, positions]), on, off])


def _onnx_hardmax(node: OnnxNode) -> str:
    """Import Hardmax: 1 at the first of the largest elements along an axis, else 0."""
    x = node.input(0)
    shape, dtype = node.shape(x), node.type(x).dtype
    rank = len(shape)
    axis = node.integer("axis", -1 if node.opset >= 13 else 1)
    if not -rank <= axis < rank:
        raise node.invalid(f"axis {axis} is out of range for rank {rank}")
    dim = axis % rank
    value = x
    if node.opset < 13:  # a row is everything from the axis on
        value = node.reshape(x, (prod(shape[:dim]), prod(shape[dim:])))
        dim = 1
    extent = node.shape(value)[dim]
    column = (extent, *(1,) * (len(node.shape(value)) - 1 - dim))
    largest = node.emit("reduce_max", [value], axes=(dim,), keepdims=1)
    positions = table(node, counting(node, extent).reshape(column), DType.INT32)
    beyond = node.scalar(extent, DType.INT32)
    candidates = node.emit("where", [node.emit("equal", [value, largest]), positions, beyond])
    first = node.emit("reduce_min", [candidates], axes=(dim,), keepdims=1)
    found = node.emit("cast", [node.emit("equal", [positions, first])], to=dtype)
    return node.reshape(found, shape)


def _onnx_eye_like(node: OnnxNode) -> str:
    """Import EyeLike: a matrix of the operand's shape with ones on a diagonal, else zeros."""
    x = node.input(0)
    shape = node.shape(x)
    if len(shape) != 2:
        raise node.invalid(f"the input has rank {len(shape)}, not 2")
    dtype = node.type(x).dtype
    if "dtype" in node.attrs:
        wanted = ONNX_TYPES.get(node.integer("dtype"))
        if wanted is None:
            name = onnx_type_name(node.integer("dtype"))
            raise node.unsupported(f"attribute 'dtype' is the element type {name}")
        dtype = wanted
    if any(map(is_dynamic, shape)):
        rows, columns = (grid(node, {dim: 1}, shape) for dim in range(2))
        diagonal = columns - rows == node.integer("k", 0)
        return table(node, diagonal, dtype)
    node.reserve(f"shape {show(shape)}", shape[0] * shape[1] * dtype.bytes)
    return node.constant(to_memory(np.eye(*shape, node.integer("k", 0)), dtype), dtype)


RULES = (
    OnnxRule("OneHot", _onnx_one_hot),
    OnnxRule("Hardmax", _onnx_hardmax),
    OnnxRule("EyeLike", _onnx_eye_like),
)
