"""Reshape, Flatten, Squeeze and other views, which change the shape and not the bytes."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilewright.compiler.errors import InvalidModelError
from tilewright.compiler.graph.ir import Attrs
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.loops.expr import Expr
from tilewright.compiler.loops.index import Affine
from tilewright.compiler.ops.attributes import ints
from tilewright.compiler.ops.onnx_node import OnnxNode
from tilewright.compiler.ops.registry import Fresh, OnnxRule, Operator, OpKind, Source
from tilewright.compiler.ops.shapes import operand_count, show
from tilewright.compiler.sizes import DynamicSizeError, bounds, equal, is_dynamic


def _infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    operand_count(types, 1)
    shape = ints(attrs, "shape")
    if any(extent < 0 for extent in shape) or not equal(prod(shape), types[0].elements):
        raise InvalidModelError(
            f"the input {show(types[0].shape)} has {types[0].elements} elements, the shape "
            f"{show(shape)} {prod(shape)}"
        )
    return TensorType(types[0].dtype, shape)


def _expression(
    operands: Sequence[Source],
    types: Sequence[TensorType],
    attrs: Attrs,
    index: tuple[Affine, ...],
    fresh: Fresh,
) -> Expr:
    """Return the element of the operand at the same row-major position.

    Raises:
        ValueError: if the operand's index is not an affine function of `index`.
    """
    position = Affine()
    for extent, i in zip(ints(attrs, "shape"), index, strict=True):
        position = position * extent + i
    shape, result = types[0].shape, []
    for extent in reversed(shape):
        result.append(Affine() if extent in (0, 1) else position % extent)
        position = position // extent
    return operands[0](tuple(reversed(result)))


def _onnx_reshape(node: OnnxNode) -> str:
    x = node.input(0)
    wanted = node.ints_or_input("shape", 1)
    if wanted is None:
        raise node.invalid("shape (input 1) is missing")
    old, shape = node.shape(x), list(wanted)
    if not node.integer("allowzero", 0):
        for dim, extent in enumerate(shape):
            if extent == 0:
                if dim >= len(old):
                    raise node.invalid(
                        f"the shape {show(wanted)} copies dimension {dim} by a 0, and the input is "
                        f"{show(old)}"
                    )
                shape[dim] = old[dim]
            elif is_dynamic(extent) and bounds(extent)[0] == 0 and old[dim : dim + 1] != (extent,):
                raise DynamicSizeError(
                    f"{extent} may be 0, which copies dimension {dim} of the input"
                )
    if shape.count(-1) > 1 or any(extent < -1 for extent in shape):
        raise node.invalid(
            f"the shape is {show(wanted)}, expected at most one -1 and else extents of at least 0"
        )
    if -1 in shape:
        rest = prod(extent for extent in shape if extent != -1)
        if rest == 0 or not equal(prod(old) % rest, 0):
            raise node.invalid(
                f"the input {show(old)} has {prod(old)} elements, which no extent in place of -1 "
                f"in the shape {show(wanted)} gives"
            )
        shape[shape.index(-1)] = prod(old) // rest
    return node.reshape(x, shape)


def _onnx_flatten(node: OnnxNode) -> str:
    x = node.input(0)
    shape = node.shape(x)
    axis = node.integer("axis", 1)
    if not -len(shape) <= axis <= len(shape):
        raise node.invalid(f"axis {axis} is out of range for rank {len(shape)}")
    start = axis if axis >= 0 else axis + len(shape)
    return node.reshape(x, (prod(shape[:start]), prod(shape[start:])))


def _onnx_squeeze(node: OnnxNode) -> str:
    x = node.input(0)
    shape = node.shape(x)
    axes = node.ints_or_input("axes", 1)
    if axes is None:
        axes = tuple(dim for dim, extent in enumerate(shape) if equal(extent, 1))
    for axis in axes:
        if not -len(shape) <= axis < len(shape) or not equal(shape[axis], 1):
            raise node.invalid(f"axis {axis} of the input {show(shape)} has no extent of 1")
    dropped = {axis % len(shape) for axis in axes}
    return node.reshape(x, [e for dim, e in enumerate(shape) if dim not in dropped])


def _onnx_unsqueeze(node: OnnxNode) -> str:
    x = node.input(0)
    shape = list(node.shape(x))
    axes = node.ints_or_input("axes", 1)
    if axes is None:
        raise node.invalid("axes (input 1) are missing")
    rank = len(shape) + len(axes)
    if len({axis % rank for axis in axes}) != len(axes) or any(
        not -rank <= axis < rank for axis in axes
    ):
        raise node.invalid(
            f"axes are {axes}, expected different axes of the output, which has {rank} dimensions"
        )
    for axis in sorted(axis % rank for axis in axes):
        shape.insert(axis, 1)
    return node.reshape(x, shape)


OPERATORS = (
    Operator(
        "reshape",
        OpKind.VIEW,
        _infer,
        lambda arrays, attrs: arrays[0].reshape(ints(attrs, "shape")),
        _expression,
        (
            OnnxRule("Reshape", _onnx_reshape),
            OnnxRule("Flatten", _onnx_flatten),
            OnnxRule("Squeeze", _onnx_squeeze),
            OnnxRule("Unsqueeze", _onnx_unsqueeze),
        ),
    ),
)
