"""Matrix products and convolution: sums of products."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product as points

import numpy as np

from compiler.graph.ir import Attrs
from compiler.graph.types import TensorType
from compiler.loops.expr import Combiner, Expr, Reduce
from compiler.loops.index import affine
from compiler.ops.attributes import (
    broadcast_index,
    broadcast_shapes,
    integer,
    ints,
    number,
    require,
)
from compiler.ops.registry import (
    Array,
    Fresh,
    Index,
    OnnxNode,
    OnnxRule,
    Operator,
    OpKind,
    Source,
)

# ---- matmul


def _matmul_infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    a, b = types[0].shape, types[1].shape
    require(len(a) >= 2 and len(b) >= 2, "MatMul: operands have at least two dimensions")
    require(a[-1] == b[-2], f"MatMul: K differs, {a[-1]} against {b[-2]}")
    batch = broadcast_shapes([a[:-2], b[:-2]], "MatMul") if len(a) + len(b) > 4 else ()
    shape = (*batch, a[-2], b[-1])
    if len(types) > 2:
        whole = broadcast_shapes([shape, types[2].shape], "MatMul")
        require(whole == shape, f"MatMul: a bias of shape {list(types[2].shape)} does not fit")
    return TensorType(types[0].dtype, shape)


def _matmul_reference(arrays: Sequence[Array], attrs: Attrs) -> Array:
    result = np.matmul(arrays[0], arrays[1])
    return result + arrays[2] if len(arrays) > 2 else result


def _matmul(
    operands: Sequence[Source],
    types: Sequence[TensorType],
    attrs: Attrs,
    index: Index,
    fresh: Fresh,
) -> Expr:
    axis = fresh("k", types[0].shape[-1])
    k = affine(axis)
    batch = index[:-2]
    a = operands[0]((*broadcast_index(batch, types[0].shape[:-2]), index[-2], k))
    b = operands[1]((*broadcast_index(batch, types[1].shape[:-2]), k, index[-1]))
    result: Expr = Reduce(Combiner.SUM, (axis,), a * b)
    if len(operands) > 2:
        result = result + operands[2](broadcast_index(index, types[2].shape))
    return result


def _import_matmul(node: OnnxNode) -> str:
    a, b = node.input(0), node.input(1)
    ranks = [len(node.type(v).shape) for v in (a, b)]
    if min(ranks) == 0:
        raise node.invalid("an operand is a scalar")
    if ranks[0] == 1:
        a = node.emit("reshape", [a], shape=(1, *node.type(a).shape))
    if ranks[1] == 1:
        b = node.emit("reshape", [b], shape=(*node.type(b).shape, 1))
    result = node.emit("matmul", [a, b])
    if 1 in ranks:
        shape = list(node.type(result).shape)
        if ranks[1] == 1:
            del shape[-1]
        if ranks[0] == 1:
            del shape[-1 if ranks[1] == 1 else -2]
        result = node.emit("reshape", [result], shape=tuple(shape))
    return result


# ---- gemm


def _gemm_shapes(types: Sequence[TensorType], attrs: Attrs) -> tuple[int, int, int, int]:
    a, b = types[0].shape, types[1].shape
    require(len(a) == 2 and len(b) == 2, "Gemm: operands are matrices")
    m, k = reversed(a) if integer(attrs, "trans_a", 0) else a
    kb, n = reversed(b) if integer(attrs, "trans_b", 0) else b
    return m, k, kb, n


def _gemm_infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    m, k, kb, n = _gemm_shapes(types, attrs)
    require(k == kb, f"Gemm: K differs, {k} against {kb}")
    if len(types) > 2:
        whole = broadcast_shapes([(m, n), types[2].shape], "Gemm")
        require(whole == (m, n), f"Gemm: C of shape {list(types[2].shape)} does not fit")
    return TensorType(types[0].dtype, (m, n))


def _gemm_reference(arrays: Sequence[Array], attrs: Attrs) -> Array:
    a = arrays[0].T if integer(attrs, "trans_a", 0) else arrays[0]
    b = arrays[1].T if integer(attrs, "trans_b", 0) else arrays[1]
    result = a @ b * a.dtype.type(number(attrs, "alpha", 1.0))
    if len(arrays) > 2:
        result = result + arrays[2] * a.dtype.type(number(attrs, "beta", 1.0))
    return result


def _gemm(
    operands: Sequence[Source],
    types: Sequence[TensorType],
    attrs: Attrs,
    index: Index,
    fresh: Fresh,
) -> Expr:
    m, k_extent, _, n = _gemm_shapes(types, attrs)
    axis = fresh("k", k_extent)
    k, (row, column) = affine(axis), index
    a = operands[0]((k, row) if integer(attrs, "trans_a", 0) else (row, k))
    b = operands[1]((column, k) if integer(attrs, "trans_b", 0) else (k, column))
    result: Expr = Reduce(Combiner.SUM, (axis,), a * b)
    if number(attrs, "alpha", 1.0) != 1:
        result = result * number(attrs, "alpha", 1.0)
    if len(operands) > 2:
        c = operands[2](broadcast_index(index, types[2].shape))
        beta = number(attrs, "beta", 1.0)
        result = result + (c if beta == 1 else c * beta)
    return result


def _import_gemm(node: OnnxNode) -> str:
    inputs = [node.input(0), node.input(1)]
    c = node.optional(2)
    return node.emit(
        "gemm",
        inputs if c is None else [*inputs, c],
        alpha=float(node.attr("alpha", 1.0)),
        beta=float(node.attr("beta", 1.0)),
        trans_a=int(node.attr("transA", 0)),
        trans_b=int(node.attr("transB", 0)),
    )


# ---- conv


def _conv_infer(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    x, w = types[0].shape, types[1].shape
    rank = len(x) - 2
    require(rank >= 1, f"Conv: an input of shape {list(x)} has no spatial dimension")
    require(len(w) == len(x), f"Conv: weights of rank {len(w)} for an input of rank {len(x)}")
    group = integer(attrs, "group", 1)
    require(group >= 1 and w[0] % group == 0, f"Conv: {w[0]} filters in {group} groups")
    require(
        x[1] == w[1] * group,
        f"Conv: the input has {x[1]} channels, the weights want {w[1] * group}",
    )
    if len(types) > 2:
        require(types[2].shape == (w[0],), f"Conv: a bias of shape {list(types[2].shape)}")
    spatial = window_shape(
        x[2:],
        w[2:],
        ints(attrs, "strides", (1,) * rank),
        ints(attrs, "pads", (0,) * 2 * rank),
        ints(attrs, "dilations", (1,) * rank),
        "Conv",
    )
    return TensorType(types[0].dtype, (x[0], w[0], *spatial))


def window_shape(
    sizes: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
    what: str,
) -> tuple[int, ...]:
    """Output positions of a window along each spatial dimension.

    Raises:
        InvalidModelError: if the window does not fit, or an attribute has another rank.
    """
    rank = len(sizes)
    lengths = (len(kernel), len(strides), len(pads) // 2, len(dilations))
    require(all(n == rank for n in lengths), f"{what}: attributes do not have rank {rank}")
    require(
        min((*kernel, *strides, *dilations)) >= 1 and min(pads) >= 0,
        f"{what}: kernel, strides, dilations must be positive and pads not negative",
    )
    result = []
    for d in range(rank):
        padded = sizes[d] + pads[d] + pads[rank + d]
        extent = dilations[d] * (kernel[d] - 1) + 1
        require(padded >= extent, f"{what}: a window of {extent} in a padded size of {padded}")
        result.append((padded - extent) // strides[d] + 1)
    return tuple(result)


def _conv_reference(arrays: Sequence[Array], attrs: Attrs) -> Array:
    x, w = arrays[:2]
    rank, group = x.ndim - 2, integer(attrs, "group", 1)
    strides = ints(attrs, "strides", (1,) * rank)
    dilations = ints(attrs, "dilations", (1,) * rank)
    pads = ints(attrs, "pads", (0,) * 2 * rank)
    padded = np.pad(
        x, [(0, 0), (0, 0), *[(pads[d], pads[rank + d]) for d in range(rank)]]
    )
    spatial = window_shape(x.shape[2:], w.shape[2:], strides, pads, dilations, "Conv")
    filters, channels = w.shape[0] // group, w.shape[1]
    result = np.zeros((x.shape[0], w.shape[0], *spatial), np.result_type(x, w))
    for tap in points(*map(range, w.shape[2:])):
        window = tuple(
            slice(t * d, t * d + s * (n - 1) + 1, s)
            for t, d, s, n in zip(tap, dilations, strides, spatial, strict=True)
        )
        part = padded[(slice(None), slice(None), *window)]
        if channels == 1 and filters == 1:
            scale = w[(slice(None), 0, *tap)].reshape(-1, *(1,) * rank)
            result += part * scale
            continue
        for g in range(group):
            rows = slice(g * filters, (g + 1) * filters)
            block = part[:, g * channels : (g + 1) * channels].reshape(x.shape[0], channels, -1)
            matrix = w[(rows, slice(None), *tap)]
            result[:, rows] += np.matmul(matrix, block).reshape(x.shape[0], filters, *spatial)
    if len(arrays) > 2:
        result += arrays[2].reshape(-1, *(1,) * rank)
    return result


def _conv(
    operands: Sequence[Source],
    types: Sequence[TensorType],
    attrs: Attrs,
    index: Index,
    fresh: Fresh,
) -> Expr:
    weights = types[1].shape
    rank, group = len(weights) - 2, integer(attrs, "group", 1)
    strides = ints(attrs, "strides", (1,) * rank)
    dilations = ints(attrs, "dilations", (1,) * rank)
    pads = ints(attrs, "pads", (0,) * 2 * rank)
    channel = fresh("ic", weights[1])
    taps = [fresh(f"k{'dhw'[3 - rank + d]}", weights[2 + d]) for d in range(rank)]
    filters = weights[0] // group
    if group == 1:
        position = affine(channel)
    elif filters == 1 and weights[1] == 1:
        position = index[1]
    else:
        position = (index[1] // filters) * weights[1] + channel
    spatial = tuple(
        index[2 + d] * strides[d] + affine(taps[d]) * dilations[d] - pads[d] for d in range(rank)
    )
    x = operands[0]((index[0], position, *spatial))
    w = operands[1]((index[1], affine(channel), *map(affine, taps)))
    result: Expr = Reduce(Combiner.SUM, (channel, *taps), x * w)
    return result + operands[2]((index[1],)) if len(operands) > 2 else result


def onnx_window(node: OnnxNode, kernel: Sequence[int], sizes: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """Strides, pads and dilations of an ONNX window, `auto_pad` and `ceil_mode` resolved to pads."""
    rank = len(kernel)
    strides = tuple(node.attr("strides", (1,) * rank))
    dilations = tuple(node.attr("dilations", (1,) * rank))
    pads = list(node.attr("pads", (0,) * 2 * rank))
    lengths = (len(strides), len(dilations), len(pads) // 2, len(sizes))
    if any(n != rank for n in lengths):
        raise node.invalid(f"window attributes do not have rank {rank}")
    if min((*kernel, *strides, *dilations), default=1) < 1:
        raise node.invalid("kernel, strides and dilations must be positive")
    mode = node.attr("auto_pad", "NOTSET")
    for d in range(rank):
        extent = dilations[d] * (kernel[d] - 1) + 1
        if mode in ("SAME_UPPER", "SAME_LOWER"):
            total = max(0, (-(-sizes[d] // strides[d]) - 1) * strides[d] + extent - sizes[d])
            small, large = total // 2, total - total // 2
            pads[d], pads[rank + d] = (
                (small, large) if mode == "SAME_UPPER" else (large, small)
            )
        elif mode == "VALID":
            pads[d] = pads[rank + d] = 0
        if node.attr("ceil_mode", 0):
            span = sizes[d] + pads[d] + pads[rank + d] - extent
            steps = -(-span // strides[d])
            # A window that starts in the padding at the end is left out.
            if steps * strides[d] >= sizes[d] + pads[d]:
                steps -= 1
            pads[rank + d] += max(0, steps * strides[d] - span)
    return {"strides": strides, "pads": tuple(pads), "dilations": dilations}


def _import_conv(node: OnnxNode) -> str:
    x, w, bias = node.input(0), node.input(1), node.optional(2)
    shape, weights = node.type(x).shape, node.type(w).shape
    if len(shape) < 3 or len(weights) != len(shape):
        raise node.invalid(f"input {list(shape)} and weights {list(weights)} do not fit")
    kernel = tuple(node.attr("kernel_shape", weights[2:]))
    if kernel != weights[2:]:
        raise node.invalid(f"kernel_shape {list(kernel)} against weights {list(weights)}")
    if len(shape) > 5:
        raise node.unsupported("more than three spatial dimensions")
    window = onnx_window(node, kernel, shape[2:])
    group = int(node.attr("group", 1))
    inputs = [x, w] if bias is None else [x, w, bias]
    if len(shape) == 3:
        return _as_two_dimensional(node, inputs, window, group)
    return node.emit("conv", inputs, group=group, **window)


def _as_two_dimensional(
    node: OnnxNode, inputs: list[str], window: dict[str, tuple[int, ...]], group: int
) -> str:
    """A 1-D convolution is a 2-D one of height 1."""
    (n, c, length), w = node.type(inputs[0]).shape, node.type(inputs[1]).shape
    x = node.emit("reshape", [inputs[0]], shape=(n, c, 1, length))
    weights = node.emit("reshape", [inputs[1]], shape=(w[0], w[1], 1, w[2]))
    begin, end = window["pads"]
    y = node.emit(
        "conv",
        [x, weights, *inputs[2:]],
        group=group,
        strides=(1, *window["strides"]),
        dilations=(1, *window["dilations"]),
        pads=(0, begin, 0, end),
    )
    shape = node.type(y).shape
    return node.emit("reshape", [y], shape=(shape[0], shape[1], shape[3]))


OPERATORS = (
    Operator("matmul", OpKind.CONTRACTION, _matmul_infer, _matmul_reference, _matmul),
    Operator("gemm", OpKind.CONTRACTION, _gemm_infer, _gemm_reference, _gemm),
    Operator("conv", OpKind.CONTRACTION, _conv_infer, _conv_reference, _conv),
)

ONNX = (
    OnnxRule("MatMul", _import_matmul),
    OnnxRule("Gemm", _import_gemm, since=7),
    OnnxRule("Conv", _import_conv),
)
