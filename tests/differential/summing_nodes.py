"""Generators of nodes that sum: products, windows over images, normalisations."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from tests.differential.graphs import FLOAT, Generator, Grower, Rejected, Value


def _matmul(g: Grower) -> None:
    value = g.some(least=2)
    columns = g.pick([1, 3, 8, 17])
    batch = value.shape[:-2] if g.flag() else ()
    second = g.weight(*batch, value.shape[-1], columns)
    g.add("MatMul", [value, second], exact=True)


def _gemm(g: Grower) -> None:
    value = g.some(rank=2)
    turned, columns = g.integer(0, 1), g.pick([1, 4, 16])
    inner = value.shape[1 - g.integer(0, 0)]
    shape = (columns, inner) if turned else (inner, columns)
    bias = [g.weight(g.pick([1, columns]))] if g.flag() else []
    alpha, beta = g.pick([1.0, 0.5]), g.pick([1.0, 2.0])
    g.add(
        "Gemm", [value, g.weight(*shape), *bias], exact=True, transB=turned, alpha=alpha, beta=beta
    )


def _einsum(g: Grower) -> None:
    value = g.some(rank=2)
    rows, inner = value.shape
    equation, shape = g.pick(
        [("ij,jk->ik", (inner, 3)), ("ij,kj->ki", (2, inner)), ("ij,ij->i", (rows, inner))]
    )
    g.add("Einsum", [value, g.weight(*shape)], exact=True, equation=equation)


def _image(g: Grower) -> Value:
    """A value of rank 3 to 5 whose window dimensions are not 1."""
    return g.pick([v for v in g.values if v.array.dtype == FLOAT and 3 <= v.rank <= 5])


def _window(g: Grower, value: Value) -> tuple[list[int], dict[str, Any]]:
    """A window that fits, with strides, dilations and padding less than itself."""
    space = value.shape[2:]
    kernel = [g.integer(1, min(3, extent)) for extent in space]
    rank = len(space)
    attributes: dict[str, Any] = {
        "kernel_shape": kernel,
        "strides": [g.pick([1, 1, 2]) for _ in range(rank)],
        "pads": [g.integer(0, k - 1) for k in (*kernel, *kernel)],
    }
    return kernel, attributes


def _conv(g: Grower) -> None:
    value = _image(g)
    kernel, attributes = _window(g, value)
    channels = value.shape[1]
    group = g.pick([d for d in (1, 1, 2, 3, channels) if channels % d == 0])
    filters = group * g.pick([1, 2, 8])
    operands = [value, g.weight(filters, channels // group, *kernel)]
    operands += [g.weight(filters)] if g.flag() else []
    g.add("Conv", operands, exact=True, group=group, **attributes)


def _conv_transpose(g: Grower) -> None:
    value = _image(g)
    kernel, attributes = _window(g, value)
    operands = [value, g.weight(value.shape[1], g.pick([1, 2, 5]), *kernel)]
    g.add("ConvTranspose", operands, exact=True, **attributes)


def _pool(operator: str, g: Grower) -> None:
    value = _image(g)
    _, attributes = _window(g, value)
    if operator == "AveragePool":
        attributes["count_include_pad"] = g.integer(0, 1)
    g.add(operator, [value], exact=operator == "MaxPool", **attributes)


def _batch_norm(g: Grower) -> None:
    value = g.some(least=2)
    channels = value.shape[1]
    scale, bias, mean = (g.constant(g.numbers((channels,))) for _ in range(3))
    variance = g.constant(np.abs(g.numbers((channels,))) + 0.5)
    g.add("BatchNormalization", [value, scale, bias, mean, variance])


def _layer_norm(operator: str, g: Grower) -> None:
    value = g.some(least=1)
    axis = g.integer(0, value.rank - 1)
    rows = value.shape[axis:]
    operands = [value, g.weight(*rows)]
    operands += [g.weight(*rows)] if operator == "LayerNormalization" and g.flag() else []
    # rows of equal elements would divide rounding by rounding
    g.add(operator, operands, axis=axis, epsilon=0.5)


def _channel_norm(operator: str, g: Grower) -> None:
    value = _image(g)
    channels = value.shape[1]
    groups = {"num_groups": g.pick([d for d in (1, 2, 3, channels) if channels % d == 0])}
    more: dict[str, Any] = groups if operator == "GroupNormalization" else {}
    g.add(operator, [value, g.weight(channels), g.weight(channels)], epsilon=0.5, **more)


def _mean_variance(g: Grower) -> None:
    value = g.some(rank=4)
    spread = g.add("Add", [value, g.constant(np.arange(value.shape[-1]))], keep=False)
    if value.array.std() < 0.5:
        raise Rejected
    g.add("MeanVarianceNormalization", [spread], axes=[0, 2, 3])


SUMS: dict[str, Generator] = {
    "MatMul": _matmul, "Gemm": _gemm, "Einsum": _einsum, "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "BatchNormalization": _batch_norm, "MeanVarianceNormalization": _mean_variance,
    **{name: partial(_pool, name) for name in ("AveragePool", "MaxPool")},
    **{name: partial(_layer_norm, name) for name in ("LayerNormalization", "RMSNormalization")},
    **{
        name: partial(_channel_norm, name)
        for name in ("InstanceNormalization", "GroupNormalization")
    },
}  # fmt: skip
