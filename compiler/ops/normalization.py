"""Normalisation layers, such as BatchNormalization and LayerNormalization."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from tilewright.compiler.errors import InvalidModelError
from tilewright.compiler.graph.ir import Attrs
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.loops import maths
from tilewright.compiler.loops.expr import Combiner, Const, Expr, Reduce, constant
from tilewright.compiler.loops.index import Affine, Axis, affine
from tilewright.compiler.ops.attributes import axis_of, integer, number
from tilewright.compiler.ops.cast import cast_to
from tilewright.compiler.ops.elementwise import floats_only
from tilewright.compiler.ops.onnx_node import OnnxNode
from tilewright.compiler.ops.registry import Fresh, OnnxRule, Operator, OpKind, Source
from tilewright.compiler.ops.shapes import (
    broadcast,
    broadcast_index,
    operand_count,
    same_dtype,
    show,
)
from tilewright.compiler.ops.wide_rules import in_wide_type, stash_type
from tilewright.compiler.sizes import is_dynamic, same_extents


def _infer_batch_norm(types: Sequence[TensorType], _attrs: Attrs) -> TensorType:
    operand_count(types, 5)
    floats_only(types)
    same_dtype(types)
    shape = types[0].shape
    if len(shape) < 2:
        raise InvalidModelError(f"the input is {show(shape)}, expected (N, channels, ...)")
    for kind in types[1:]:
        if not same_extents(kind.shape, shape[1:2]):
            raise InvalidModelError(
                f"a parameter is {show(kind.shape)}, expected one number for each of the "
                f"{shape[1]} channels"
            )
    return types[0]


def _batch_norm_reference(arrays: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    x = arrays[0]
    column = (-1,) + (1,) * (x.ndim - 2)
    scale, bias, mean, variance = (a.reshape(column) for a in arrays[1:])
    deviation = np.sqrt(variance + x.dtype.type(number(attrs, "epsilon", 1e-5)))
    return np.asarray((x - mean) / deviation * scale + bias, x.dtype)


def _batch_norm_expression(
    operands: Sequence[Source],
    types: Sequence[TensorType],
    attrs: Attrs,
    index: tuple[Affine, ...],
    fresh: Fresh,
) -> Expr:
    """Return the expression (x - mean) * (scale / sqrt(variance + epsilon)) + bias."""
    x = operands[0](index)
    scale, bias, mean, variance = (operand((index[1],)) for operand in operands[1:])
    deviation = maths.sqrt(variance + number(attrs, "epsilon", 1e-5))
    return (x - mean) * (scale / deviation) + bias


def _trained_batch_norm(node: OnnxNode) -> list[str]:
    """Import BatchNormalization in training mode, with the mean and variance of the batch.

    The outputs are the normalised values and the updated running mean and variance. Before opset
    14, the mean and variance of the batch are further outputs.
    """
    x, scale, bias, mean, variance = (node.input(i) for i in range(5))
    kind, momentum = node.type(x), node.number("momentum", 0.9)
    axes = tuple(dim for dim in range(len(kind.shape)) if dim != 1)
    found = node.emit("reduce_mean", [x], axes=axes, keepdims=1)
    centred = node.emit("sub", [x, found])
    square = node.emit("mul", [centred, centred])
    spread = node.emit("reduce_mean", [square], axes=axes, keepdims=1)
    inverse = node.emit("add", [spread, node.scalar(node.number("epsilon", 1e-5), kind.dtype)])
    factor, offset = (
        node.reshape(cast_to(node, value, kind.dtype), node.shape(found)) for value in (scale, bias)
    )
    normal = node.emit("div", [centred, node.emit("sqrt", [inverse])])
    results = [node.emit("add", [node.emit("mul", [normal, factor]), offset])]
    of_batch = []
    for running, now in ((mean, found), (variance, spread)):
        dtype = node.type(running).dtype
        flat = cast_to(node, node.reshape(now, node.shape(running)), dtype)
        of_batch.append(flat)
        kept = node.emit("mul", [running, node.scalar(momentum, dtype)])
        added = node.emit("mul", [flat, node.scalar(1 - momentum, dtype)])
        results.append(node.emit("add", [kept, added]))
    return [*results, *of_batch][: len(node.outputs)]


def _elementwise_batch_norm(node: OnnxNode, x: str, parameters: Sequence[str]) -> str:
    """Import BatchNormalization with `spatial=0` (up to opset 8): parameters differ by element.

    The result is (x - mean) * (scale / sqrt(variance + epsilon)) + bias. Parameters have the shape
    of `x` without the batch.
    """
    shape = node.shape(x)[1:]
    for parameter in parameters:
        if node.shape(parameter) != shape:
            found = show(node.shape(parameter))
            raise node.invalid(f"a parameter is {found}, expected {show(shape)} with spatial=0")
    scale, bias, mean, variance = parameters
    epsilon = node.scalar(node.number("epsilon", 1e-5), node.type(variance).dtype)
    deviation = node.emit("sqrt", [node.emit("add", [variance, epsilon])])
    factor = node.emit("div", [scale, deviation])
    normal = node.emit("mul", [node.emit("sub", [x, mean]), factor])
    return node.emit("add", [normal, bias])


def _onnx_batch_norm(node: OnnxNode) -> str | list[str]:
    x, parameters = node.input(0), [node.input(i) for i in range(1, 5)]
    # MXNet's exporter writes spatial=0 also for parameters of channels, which are unambiguous
    channels = node.shape(x)[1:2]
    each = node.integer("spatial", 1) == 0 and node.shape(parameters[0]) != channels
    if each and not any(node.outputs[1:]):
        return _elementwise_batch_norm(node, x, parameters)
    if each:
        raise node.unsupported("spatial=0 with training outputs")
    if node.integer("training_mode", 0) or (node.opset < 14 and any(node.outputs[1:])):
        return _trained_batch_norm(node)
    if any(node.outputs[1:]):
        raise node.unsupported("training outputs without training_mode=1")
    return node.emit("batch_norm", [x, *parameters], epsilon=node.number("epsilon", 1e-5))


def _infer_layer_norm(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    operand_count(types, 1, 3)
    floats_only(types)
    same_dtype(types)
    shape = types[0].shape
    axis_of(attrs, len(shape), -1)
    for kind in types[1:]:
        if not same_extents(broadcast(shape, kind.shape), shape):
            raise InvalidModelError(
                f"an operand {show(kind.shape)} does not broadcast to the input {show(shape)}"
            )
    return types[0]


def _layer_norm_reference(arrays: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    x = arrays[0]
    axes = tuple(range(axis_of(attrs, x.ndim, -1), x.ndim))
    centred = x - x.mean(axis=axes, keepdims=True)
    variance = (centred * centred).mean(axis=axes, keepdims=True)
    result = centred / np.sqrt(variance + x.dtype.type(number(attrs, "epsilon", 1e-5)))
    if len(arrays) > 1:
        result = result * arrays[1]
    if len(arrays) > 2:
        result = result + arrays[2]
    return np.asarray(result, x.dtype)


def _layer_norm_expression(
    operands: Sequence[Source],
    types: Sequence[TensorType],
    attrs: Attrs,
    index: tuple[Affine, ...],
    fresh: Fresh,
) -> Expr:
    """Return the expression (x - mean(x)) / sqrt(mean((x - mean(x))**2) + epsilon) * scale + bias.

    Scale and bias are omitted if the node has no such operands.
    """
    shape = types[0].shape
    first = axis_of(attrs, len(shape), -1)
    dtype = types[0].dtype
    count = prod(shape[first:])
    one = Const(1.0, dtype)
    share = one / constant(count, dtype) if is_dynamic(count) else Const(1.0 / count, dtype)

    def row() -> tuple[tuple[Axis, ...], Expr]:
        """Create reduction axes over a row; return them and the element at their position."""
        axes = tuple(fresh("k", extent) for extent in shape[first:])
        return axes, operands[0]((*index[:first], *map(affine, axes)))

    axes, element = row()
    mean = Reduce(Combiner.SUM, axes, element) * share
    axes, element = row()
    centred = element - mean
    variance = Reduce(Combiner.SUM, axes, centred * centred) * share
    inverse = Const(1.0, dtype) / maths.sqrt(variance + number(attrs, "epsilon", 1e-5))
    result = (operands[0](index) - mean) * inverse
    if len(operands) > 1:
        result = result * operands[1](broadcast_index(index, types[1].shape))
    if len(operands) > 2:
        result = result + operands[2](broadcast_index(index, types[2].shape))
    return result


def _onnx_layer_norm(node: OnnxNode) -> list[str]:
    """Import LayerNormalization.

    Returns the normalised rows and, if requested, their means and inverse standard deviations.
    """
    operands = [node.input(0), node.input(1)]
    bias = node.optional(2)
    if bias is not None:
        operands.append(bias)
    axis, rank = node.integer("axis", -1), len(node.shape(operands[0]))
    if not -rank <= axis < rank:
        raise node.invalid(f"axis {axis} is out of range for rank {rank}")
    epsilon = node.number("epsilon", 1e-5)
    made = [node.emit("layer_norm", operands, axis=axis % rank, epsilon=epsilon)]
    if any(node.outputs[1:]):
        axes = tuple(range(axis % rank, rank))
        mean, variance = _moments(node, operands[0], axes)
        deviation = node.emit("sqrt", [_shifted(node, variance, epsilon)])
        inverse = node.emit("reciprocal", [deviation])
        made += [cast_to(node, value, stash_type(node)) for value in (mean, inverse)]
    return made[: max(len(node.outputs), 1)]


def _moments(node: OnnxNode, x: str, axes: tuple[int, ...]) -> tuple[str, str]:
    """Emit mean and variance of x over the axes.

    The variance is computed as the mean of squared deviations. The formula mean(x**2) - mean(x)**2
    would be inexact if the mean is far from zero.
    """
    mean = node.emit("reduce_mean", [x], axes=axes, keepdims=1)
    centred = node.emit("sub", [x, mean])
    square = node.emit("mul", [centred, centred])
    return mean, node.emit("reduce_mean", [square], axes=axes, keepdims=1)


def _shifted(node: OnnxNode, value: str, by: float) -> str:
    return node.emit("add", [value, node.scalar(by, node.type(value).dtype)])


def _onnx_mean_variance(node: OnnxNode) -> str:
    """Import MeanVarianceNormalization: (x - mean) / (standard deviation + 1e-9)."""
    x = node.input(0)
    rank = len(node.shape(x))
    axes = node.ints("axes", (0, 2, 3)) or ()
    for axis in axes:
        if not -rank <= axis < rank:
            raise node.invalid(f"axis {axis} is out of range for rank {rank}")
    mean, variance = _moments(node, x, tuple(sorted({axis % rank for axis in axes})))
    deviation = _shifted(node, node.emit("sqrt", [variance]), 1e-9)
    return node.emit("div", [node.emit("sub", [x, mean]), deviation])


def _onnx_instance_norm(node: OnnxNode) -> str:
    """Import InstanceNormalization as layer normalisation over the pixels of each channel.

    Scale and bias have one element per channel.
    """
    x = node.input(0)
    shape = node.shape(x)
    if len(shape) < 3:
        raise node.invalid(f"the input has rank {len(shape)}, not 3 or more")
    column = (shape[1],) + (1,) * (len(shape) - 2)
    scale, bias = (node.reshape(node.input(i), column) for i in (1, 2))
    epsilon = node.number("epsilon", 1e-5)
    return node.emit("layer_norm", [x, scale, bias], axis=2, epsilon=epsilon)


def _onnx_group_norm(node: OnnxNode) -> str:
    """Import GroupNormalization as layer normalisation over each group of adjacent channels.

    Scale and bias have one element per channel from opset 21 on, and one per group before.
    """
    x = node.input(0)
    shape, groups = node.shape(x), node.integer("num_groups")
    if len(shape) < 3 or groups < 1 or shape[1] % groups:
        raise node.invalid(
            f"attribute 'num_groups' is {groups}, which does not divide the channels of the input "
            f"{show(shape)}, expected (N, channels, ...)"
        )
    split = (shape[0], groups, prod(shape[1:]) // groups)
    epsilon = node.number("epsilon", 1e-5)
    rows = node.emit("layer_norm", [node.reshape(x, split)], axis=2, epsilon=epsilon)
    operands = []
    for position in (1, 2):
        value = node.input(position)
        if node.opset < 21:
            repeated = node.emit(
                "expand", [node.reshape(value, (groups, 1))], shape=(groups, shape[1] // groups)
            )
            value = repeated
        operands.append(node.reshape(value, (shape[1],) + (1,) * (len(shape) - 2)))
    scaled = node.emit("mul", [node.reshape(rows, shape), operands[0]])
    return node.emit("add", [scaled, operands[1]])


def _onnx_rms_norm(node: OnnxNode) -> str:
    """Import RMSNormalization: x / sqrt(mean(x**2) + epsilon) * scale.

    The dimensions from `axis` on are averaged.
    """
    x, scale = node.input(0), node.input(1)
    rank = len(node.shape(x))
    axis = node.integer("axis", -1)
    if not -rank <= axis < rank:
        raise node.invalid(f"axis {axis} is out of range for rank {rank}")
    axes = tuple(range(axis % rank, rank))
    square = node.emit("mul", [x, x])
    mean = node.emit("reduce_mean", [square], axes=axes, keepdims=1)
    shifted = _shifted(node, mean, node.number("epsilon", 1e-5))
    return node.emit("mul", [node.emit("div", [x, node.emit("sqrt", [shifted])]), scale])


def _infer_lrn(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    operand_count(types, 1)
    floats_only(types)
    if len(types[0].shape) < 2:
        raise InvalidModelError(f"the input is {show(types[0].shape)}, expected (N, channels, ...)")
    if integer(attrs, "size") < 1:
        raise InvalidModelError(
            f"attribute 'size' is {integer(attrs, 'size')}, expected at least 1"
        )
    return types[0]


def _reach(size: int) -> tuple[int, int]:
    """Return the numbers of channels before and after the centre of a window of `size` channels."""
    return (size - 1) // 2, size // 2


def _lrn_reference(arrays: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    x = arrays[0]
    size, kind = integer(attrs, "size"), x.dtype.type
    before, after = _reach(size)
    channels = x.shape[1]
    pads = [(0, 0), (before, after), *[(0, 0)] * (x.ndim - 2)]
    squares = np.pad(x * x, pads)
    total = np.zeros_like(x)
    for offset in range(size):
        total += squares[:, offset : offset + channels]
    alpha, beta = number(attrs, "alpha", 1e-4), number(attrs, "beta", 0.75)
    base = kind(number(attrs, "bias", 1.0)) + kind(alpha / size) * total
    return np.asarray(x / base ** kind(beta), x.dtype)


def _lrn_expression(
    operands: Sequence[Source],
    types: Sequence[TensorType],
    attrs: Attrs,
    index: tuple[Affine, ...],
    fresh: Fresh,
) -> Expr:
    """Return x / (bias + alpha / size * sum of x**2 over `size` neighbouring channels) ** beta."""
    size = integer(attrs, "size")
    before, _ = _reach(size)
    axis = fresh("kc", size)
    neighbour = operands[0]((index[0], index[1] + axis - before, *index[2:]))
    total = Reduce(Combiner.SUM, (axis,), neighbour * neighbour)
    alpha, beta = number(attrs, "alpha", 1e-4), number(attrs, "beta", 0.75)
    base = total * (alpha / size) + number(attrs, "bias", 1.0)
    return operands[0](index) / _power(base, beta)


def _power(base: Expr, exponent: float) -> Expr:
    """Return base ** exponent; square roots replace the power for exponents 0.5 and 0.75.

    Square roots cost less, and are closer to the exact result.
    """
    root = maths.sqrt(base)
    match exponent:
        case 1.0:
            return base
        case 0.5:
            return root
        case 0.75:
            return root * maths.sqrt(root)
        case _:
            return maths.pow(base, Const(exponent, base.dtype))


def _onnx_lrn(node: OnnxNode) -> str:
    return node.emit(
        "lrn",
        [node.input(0)],
        size=node.integer("size"),
        alpha=node.number("alpha", 1e-4),
        beta=node.number("beta", 0.75),
        bias=node.number("bias", 1.0),
    )


OPERATORS = (
    Operator(
        # not elementwise: its parameters are per channel and do not broadcast
        "batch_norm",
        OpKind.ROW,
        _infer_batch_norm,
        _batch_norm_reference,
        _batch_norm_expression,
        (OnnxRule("BatchNormalization", _onnx_batch_norm),),
    ),
    Operator(
        "layer_norm",
        OpKind.ROW,
        _infer_layer_norm,
        _layer_norm_reference,
        _layer_norm_expression,
        (
            OnnxRule("LayerNormalization", in_wide_type(_onnx_layer_norm)),
            OnnxRule("InstanceNormalization", in_wide_type(_onnx_instance_norm)),
        ),
    ),
    Operator(
        "lrn",
        OpKind.WINDOW,
        _infer_lrn,
        _lrn_reference,
        _lrn_expression,
        (OnnxRule("LRN", _onnx_lrn),),
    ),
)

RULES = (
    OnnxRule("GroupNormalization", in_wide_type(_onnx_group_norm)),
    OnnxRule("MeanVarianceNormalization", in_wide_type(_onnx_mean_variance)),
    OnnxRule("RMSNormalization", in_wide_type(_onnx_rms_norm)),
)
