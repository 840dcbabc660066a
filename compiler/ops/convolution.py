"""Convolution in one, two and three spatial dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import InvalidModelError
from tilewright.compiler.graph.ir import Attrs
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.loops.expr import Combiner, Expr, Reduce, widened
from tilewright.compiler.loops.index import Affine, affine
from tilewright.compiler.ops.attributes import integer
from tilewright.compiler.ops.onnx_node import OnnxNode
from tilewright.compiler.ops.padding import resolve_pads
from tilewright.compiler.ops.products import accumulated, computed_type, exactly
from tilewright.compiler.ops.registry import Fresh, OnnxRule, Operator, OpKind, Source
from tilewright.compiler.ops.shapes import Window, operand_count, pad, show
from tilewright.compiler.ops.windows import lines, reads
from tilewright.compiler.sizes import equal, same_extents

_IM2COL_CHANNELS = 16
"""Number of channels below which the reference unfolds all windows (im2col) into one matrix
product."""


def _infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    operand_count(types, 2, 3)
    dtype = computed_type(types, attrs)
    x, w = types[0].shape, types[1].shape
    if len(x) != len(w) or not 3 <= len(x) <= 5:
        raise InvalidModelError(
            f"the input is {show(x)} and the weight {show(w)}, expected as many dimensions, "
            "from 3 to 5"
        )
    group = integer(attrs, "group", 1)
    if group < 1 or not equal(x[1], w[1] * group) or not equal(w[0] % group, 0):
        raise InvalidModelError(
            f"channels differ: input {show(x)}, weight {show(w)}, {group} groups"
        )
    if len(types) == 3 and not same_extents(types[2].shape, w[:1]):
        raise InvalidModelError(f"the bias is {show(types[2].shape)}, expected ({w[0]})")
    return TensorType(dtype, (x[0], w[0], *Window.of(attrs, w[2:]).output(x[2:])))


def _reference(arrays: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    x, w, *bias = exactly(arrays, attrs)
    group = integer(attrs, "group", 1)
    window = Window.of(attrs, w.shape[2:])
    spatial = window.output(x.shape[2:])
    batch, channels, filters = x.shape[0], w.shape[1], w.shape[0]
    result = np.zeros((batch, filters, *spatial), x.dtype)
    space = x.size + w.size + result.size
    row = batch * channels * prod(window.kernel) * prod(spatial[1:])
    padded = prod(n + b + a for n, (b, a) in zip(x.shape, window.pads(), strict=True))
    if channels < _IM2COL_CHANNELS and group == 1 and max(row, padded) <= space:
        _unfolded(x, w, window, space // row, result)
    else:
        _tap_by_tap(x, w, window, group, result)
    if bias:
        result += bias[0].reshape(-1, *(1,) * len(spatial))
    return accumulated(result, attrs, arrays[0].dtype)


def _unfolded(x: np.ndarray, w: np.ndarray, window: Window, rows: int, result: np.ndarray) -> None:
    """Add the convolution of x and w to `result`, by one matrix product per `rows` output rows.

    The factors are the weights and the unfolded image (im2col).
    """
    padded = pad(x, window.pads())
    reach = [d * (k - 1) + 1 for k, d in zip(window.kernel, window.dilations, strict=True)]
    rank = len(reach)
    windows = sliding_window_view(padded, reach, tuple(range(2, 2 + rank)))
    steps = [slice(None, None, s) for s in window.strides]
    taps = [slice(None, None, d) for d in window.dilations]
    picked: tuple[Any, ...] = (..., *steps, *taps)
    # (batch, channels, *output, *taps) -> (batch, channels, *taps, *output)
    order = (0, 1, *range(2 + rank, 2 + 2 * rank), *range(2, 2 + rank))
    windows = windows[picked].transpose(order)
    batch, filters = result.shape[:2]
    weights = w.reshape(filters, -1)
    for start in range(0, result.shape[2], rows):
        part = result[:, :, start : start + rows]
        columns = windows[(slice(None),) * (2 + rank) + (slice(start, start + rows),)]
        part += (weights @ columns.reshape(batch, weights.shape[1], -1)).reshape(part.shape)


def _tap_by_tap(
    x: np.ndarray, w: np.ndarray, window: Window, group: int, result: np.ndarray
) -> None:
    """Add the convolution of x and w to `result`, by one matrix product per tap of the kernel."""
    batch, channels, filters = x.shape[0], w.shape[1], w.shape[0]
    weights = w.reshape(group, filters // group, channels, *window.kernel)
    grouped = x.reshape(batch, group, channels, *x.shape[2:])
    sums = result.reshape(batch, group, filters // group, *result.shape[2:])
    for tap, places, elements in reads(lines(window, x.shape[2:])):
        at: list[tuple[Any, ...]] = [(..., *index) for index in (elements, places, tap)]
        image, part = grouped[at[0]], sums[at[1]]
        # otherwise the product copies it for each image
        factor = np.ascontiguousarray(weights[at[2]])
        points = image.reshape(batch, group, channels, -1)
        product = factor * points if channels == 1 else factor @ points
        part += product.reshape(part.shape)


def _expression(
    operands: Sequence[Source],
    types: Sequence[TensorType],
    attrs: Attrs,
    index: tuple[Affine, ...],
    fresh: Fresh,
) -> Expr:
    """Return the expression of a convolution.

    It is the sum over (ic, kh, kw) of x[n, g*ICg + ic, oh*s + kh*d - p, ...] * w[oc, ic, kh, kw],
    plus the bias if present. The group g is oc // OCg; ICg and OCg are the input and output
    channels per group. The channel axis is omitted if a group has one channel.
    """
    weight = types[1].shape
    group = integer(attrs, "group", 1)
    window = Window.of(attrs, weight[2:])
    filter_index = index[1]
    group_index = filter_index // (weight[0] // group) if group > 1 else Affine()
    axes = [fresh("ic", weight[1])] if weight[1] != 1 else []
    channel = affine(axes[0]) if axes else Affine()
    names = ("kd", "kh", "kw")[-len(window.kernel) :]
    taps = [fresh(name, extent) for name, extent in zip(names, window.kernel, strict=True)]
    positions = window.index(index[2:], [affine(tap) for tap in taps])
    image = operands[0]((index[0], group_index * weight[1] + channel, *positions))
    factor = operands[1]((filter_index, channel, *map(affine, taps)))
    dtype = computed_type(types, attrs)
    body = widened(image, dtype) * widened(factor, dtype)
    result: Expr = Reduce(Combiner.SUM, (*axes, *taps), body)
    return result if len(operands) == 2 else result + operands[2]((filter_index,))


def _onnx(node: OnnxNode) -> str:
    bias = node.optional(2)
    operands = [node.input(0), node.input(1)]
    return convolve(node, operands if bias is None else [*operands, bias])


def convolve(node: OnnxNode, operands: Sequence[str], accumulator: DType | None = None) -> str:
    """Emit a convolution of `operands`: an image, a weight and optionally a bias.

    The node's attributes define strides, dilations, padding and groups. `accumulator` is the type
    of products and sums, if it differs from the operands' type.
    """
    x, w = operands[:2]
    kernel = node.shape(w)[2:]
    stated = node.ints("kernel_shape")
    if stated is not None and not same_extents(stated, kernel):
        raise node.invalid(
            f"attribute 'kernel_shape' is {show(stated)}, the weight has the kernel {show(kernel)}"
        )
    rank = len(kernel)
    strides = node.ints("strides") or (1,) * rank
    dilations = node.ints("dilations") or (1,) * rank
    pads = resolve_pads(node, node.shape(x)[2:], kernel, strides, dilations)
    return node.emit(
        "conv",
        operands,
        strides=strides,
        pads=pads,
        dilations=dilations,
        group=node.integer("group", 1),
        accumulator=accumulator and accumulator.value,
    )


OPERATORS = (
    Operator(
        "conv",
        OpKind.CONTRACTION,
        _infer,
        _reference,
        _expression,
        (OnnxRule("Conv", _onnx),),
        terms=lambda types, _attrs: prod(types[1].shape[1:]),
    ),
)
