"""Pooling over sliding windows; global pooling is imported as a reduction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from math import prod

import numpy as np

from tilewright.compiler.errors import InvalidModelError
from tilewright.compiler.graph.ir import Attrs
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.loops.expr import Combiner, Const, Expr, Reduce
from tilewright.compiler.loops.index import Affine, affine
from tilewright.compiler.ops.attributes import integer, ints
from tilewright.compiler.ops.computed import counting, is_computed, table
from tilewright.compiler.ops.gather import row_strides
from tilewright.compiler.ops.moves import window
from tilewright.compiler.ops.onnx_node import OnnxNode
from tilewright.compiler.ops.padding import ceil_pads, cut_pads, resolve_pads
from tilewright.compiler.ops.registry import Fresh, OnnxRule, Operator, OpKind, Source
from tilewright.compiler.ops.shapes import (
    Shape,
    Window,
    broadcast,
    broadcast_index,
    operand_count,
    same_dtype,
    show,
)
from tilewright.compiler.ops.wide_rules import in_wide_type
from tilewright.compiler.ops.windows import reduce_windows
from tilewright.compiler.sizes import same_extents


def _output(x: TensorType, attrs: Attrs) -> Shape:
    kernel = ints(attrs, "kernel")
    if len(x.shape) != len(kernel) + 2:
        raise InvalidModelError(
            f"the input is {show(x.shape)}, expected {len(kernel) + 2} dimensions for a kernel "
            f"{show(kernel)}"
        )
    return (*x.shape[:2], *Window.of(attrs, kernel).output(x.shape[2:]))


def _infer_max(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    operand_count(types, 1)
    return TensorType(types[0].dtype, _output(types[0], attrs))


def _infer_average(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    operand_count(types, 1, 2)
    shape = _output(types[0], attrs)
    if not same_dtype(types).is_float:
        raise InvalidModelError(f"element type {types[0].dtype} where a float is needed")
    if len(types) == 2 and not same_extents(broadcast(shape, types[1].shape), shape):
        raise InvalidModelError(
            f"the counts {show(types[1].shape)} do not broadcast to the result {show(shape)}"
        )
    return TensorType(types[0].dtype, shape)


def _max_reference(arrays: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    x = arrays[0]
    lowest = -np.inf if x.dtype.kind == "f" else float(np.iinfo(x.dtype).min)
    return reduce_windows(x, Window.of(attrs, ints(attrs, "kernel")), np.maximum, lowest)


def _average_reference(arrays: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    x = arrays[0]
    window = Window.of(attrs, ints(attrs, "kernel"))
    total = reduce_windows(x, window, np.add, 0.0)
    if len(arrays) == 2:
        np.multiply(total, arrays[1], out=total, casting="same_kind")
        return total
    divisors = np.asarray(prod(window.kernel), np.float64)
    if window.is_padded and not integer(attrs, "count_include_pad", 0):
        none = (0,) * len(window.kernel)
        divisors = np.maximum(_counts(np.arange, window, x.shape[2:], none, none), 1)
    np.divide(total, divisors, out=total, casting="same_kind")
    return total


def _counts(
    counting: Callable[[int], np.ndarray],
    window: Window,
    spatial: Shape,
    before: Shape,
    after: Shape,
) -> np.ndarray:
    """Return for each output of an average pool how many positions of its window are counted.

    A position is counted if it lies in the input, or in the given padding around the input.

    Args:
        counting: returns 0, ..., n - 1 for a number n, as an array or a `Computed` (a graph value).
        window: the window of the pool.
        spatial: the spatial extents of the input.
        before, after: the width of the counted padding before and after each dimension; 0 to count
            no padding.
    """
    counts: np.ndarray = np.ones((1, 1), np.float64)
    rank = len(spatial)
    for dim, outputs in enumerate(window.output(spatial)):
        starts = counting(outputs) * window.strides[dim] - window.before[dim]
        # Tap t reads at start + t * dilation. These taps lie before the edges, negated:
        outside = np.floor((starts + before[dim]) / window.dilations[dim])
        within = np.floor((starts - (spatial[dim] + after[dim])) / window.dilations[dim])
        inside = np.minimum(outside, 0.0) - np.maximum(within, -float(window.kernel[dim]))
        inside = np.maximum(inside, 0.0)
        counts = counts * inside.reshape((outputs, *(1,) * (rank - 1 - dim)))
    return counts


def _pool(
    combiner: Combiner, operand: Source, attrs: Attrs, index: tuple[Affine, ...], fresh: Fresh
) -> Expr:
    window = Window.of(attrs, ints(attrs, "kernel"))
    names = ("kd", "kh", "kw")[-len(window.kernel) :]
    taps = [fresh(name, extent) for name, extent in zip(names, window.kernel, strict=True)]
    positions = window.index(index[2:], [affine(tap) for tap in taps])
    return Reduce(combiner, tuple(taps), operand((*index[:2], *positions)))


def _max_expression(
    operands: Sequence[Source],
    types: Sequence[TensorType],
    attrs: Attrs,
    index: tuple[Affine, ...],
    fresh: Fresh,
) -> Expr:
    """Return the maximum over (kh, kw) of x[n, c, oh*s + kh*d - p, ...]; padding is ignored."""
    return _pool(Combiner.MAX, operands[0], attrs, index, fresh)


def _average_expression(
    operands: Sequence[Source],
    types: Sequence[TensorType],
    attrs: Attrs,
    index: tuple[Affine, ...],
    fresh: Fresh,
) -> Expr:
    """Return the mean over (kh, kw) of x[n, c, oh*s + kh*d - p, ...].

    The sum is multiplied by the second operand, which has the reciprocal of the number of averaged
    elements of each window. Without this operand, the sum is divided by the number of taps.
    """
    total = _pool(Combiner.SUM, operands[0], attrs, index, fresh)
    if len(operands) == 2:
        return total * operands[1](broadcast_index(index, types[1].shape))
    window = Window.of(attrs, ints(attrs, "kernel"))
    if window.is_padded and not integer(attrs, "count_include_pad", 0):
        raise InvalidModelError("average_pool: padding that does not count needs reciprocal counts")
    return total * Const(1.0 / prod(window.kernel), types[0].dtype)


def window_attrs(node: OnnxNode) -> tuple[dict[str, Shape], Shape, Shape]:
    """Read the window of an ONNX pooling node.

    Returns:
        attributes: `kernel`, `strides`, `dilations` and `pads` of the imported node.
        counted padding: the padding that averages count with `count_include_pad`. It excludes the
            padding that ceil_mode adds. If a window is longer than its dimension, the padding that
            makes room for it (`cut_pads`) is counted up to opset 18, and not counted from 19 on, as
            in ONNX Runtime.
        extents: the spatial extents of the input.
    """
    spatial = node.shape(node.input(0))[2:]
    kernel = node.ints("kernel_shape")
    if kernel is None:
        raise node.invalid("attribute 'kernel_shape' is missing")
    strides = node.ints("strides") or (1,) * len(kernel)
    dilations = node.ints("dilations") or (1,) * len(kernel)
    pads = resolve_pads(node, spatial, kernel, strides, dilations)
    if len(pads) != 2 * len(kernel) or any(pad < 0 for pad in pads):
        raise node.invalid(
            f"attribute 'pads' is {show(pads)}, expected {2 * len(kernel)} numbers of at least 0 "
            f"for the kernel {show(kernel)}"
        )
    full = pads
    if node.integer("ceil_mode", 0) and node.word("auto_pad", "NOTSET") == "NOTSET":
        full = ceil_pads(spatial, kernel, strides, dilations, pads)
    else:
        full = cut_pads(spatial, kernel, strides, dilations, pads)
        pads = full if node.opset < 19 else pads
    attrs = {"kernel": kernel, "strides": strides, "dilations": dilations, "pads": full}
    return attrs, pads, spatial


def _onnx_max(node: OnnxNode) -> list[str]:
    attrs, _, _ = window_attrs(node)
    result = node.emit("max_pool", [node.input(0)], **attrs)
    if len(node.outputs) < 2 or not node.outputs[1]:
        return [result]
    return [result, _first_place(node, result, attrs)]


def _first_place(node: OnnxNode, result: str, attrs: dict[str, Shape]) -> str:
    """Emit the index of each window's maximum in the flattened operand.

    If several elements of a window equal the maximum, the result is the index of the first.
    """
    x = node.input(0)
    shape, outputs = node.shape(x), node.shape(result)[2:]
    rank = len(outputs)
    kernel, strides, dilations = attrs["kernel"], attrs["strides"], attrs["dilations"]
    before = attrs["pads"][:rank]
    spatial = shape[2:]
    factors = row_strides(spatial)
    if node.integer("storage_order", 0):
        factors = row_strides(spatial[::-1])[::-1]
    planes = np.arange(prod(shape[:2]), dtype=np.int64).reshape(*shape[:2], *(1,) * rank)
    origin = node.constant(planes * prod(spatial))
    found = ""
    for tap in reversed(list(product(*map(range, kernel)))):
        kept, inside = {}, np.ones((1,) * rank, bool)
        place = np.zeros((1,) * rank, np.int64)
        for dim in range(rank):
            start = tap[dim] * dilations[dim] - before[dim]
            kept[dim + 2] = start, (outputs[dim] - 1) * strides[dim] + 1
            at = start + np.arange(outputs[dim]) * strides[dim]
            column = (-1, *(1,) * (rank - 1 - dim))
            inside = inside & ((at >= 0) & (at < spatial[dim])).reshape(column)
            place = place + (at * factors[dim]).reshape(column)
        read = window(node, x, kept)
        steps = (1, 1, *strides)
        if any(step != 1 for step in steps):
            sizes = (*shape[:2], *outputs)
            read = node.emit("slice", [read], starts=(0,) * (rank + 2), steps=steps, sizes=sizes)
        here = node.emit("add", [origin, node.constant(place)])
        if not found:
            found = node.emit("expand", [here], shape=(*shape[:2], *outputs))
            continue
        equal = node.emit("equal", [read, result])
        if not inside.all():
            equal = node.emit("logical_and", [equal, node.constant(inside)])
        found = node.emit("where", [equal, here, found])
    return found


def _onnx_average(node: OnnxNode) -> str:
    """Import AveragePool.

    If padding or ceil_mode makes the number of averaged elements differ between windows,
    `average_pool` gets a second operand with the reciprocals of these numbers. This operand is a
    constant if all extents are fixed.
    """
    attrs, pads, spatial = window_attrs(node)
    x = node.input(0)
    rank = len(spatial)
    include = node.integer("count_include_pad", 0)
    window = Window(
        attrs["kernel"],
        attrs["strides"],
        attrs["dilations"],
        attrs["pads"][:rank],
        attrs["pads"][rank:],
    )
    # Padding counts if the model asks for it, but not the padding that ceil_mode adds.
    counted = pads if include else (0,) * (2 * rank)
    try:
        numbers = partial(counting, node)
        counts = _counts(numbers, window, spatial, counted[:rank], counted[rank:])
    except InvalidModelError as error:
        raise node.invalid(str(error)) from error
    whole = counted == attrs["pads"]
    if whole or (not is_computed(counts) and (counts == prod(window.kernel)).all()):
        return node.emit("average_pool", [x], count_include_pad=1, **attrs)
    reciprocals = table(node, 1.0 / np.maximum(counts, 1), node.type(x).dtype)
    return node.emit("average_pool", [x, reciprocals], count_include_pad=include, **attrs)


OPERATORS = (
    Operator(
        "max_pool",
        OpKind.WINDOW,
        _infer_max,
        _max_reference,
        _max_expression,
        (OnnxRule("MaxPool", _onnx_max),),
    ),
    Operator(
        "average_pool",
        OpKind.WINDOW,
        _infer_average,
        _average_reference,
        _average_expression,
        (OnnxRule("AveragePool", in_wide_type(_onnx_average)),),
    ),
)
