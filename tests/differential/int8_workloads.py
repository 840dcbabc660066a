"""Random products of bytes, added up in int32."""

from __future__ import annotations

import numpy as np

from tests.differential.drawing import (
    Case,
    Places,
    Random,
    extent,
    named,
    pick,
    placed,
)
from tests.graphs import Maker
from tests.kernels import as_workload
from tilewright.compiler.dtypes import DType

BYTES = (DType.UINT8, DType.INT8)


def int8_matmul(random: Random, lanes: int) -> Case:
    """Bytes of either sign, added up in int32; depths that fill no whole groups."""
    make = Maker()
    m, n, k = pick(random, 1, extent(random, 2, 40)), extent(random, 1, 70), extent(random, 1, 70)
    batch = pick(random, (), (), (3,))
    constant = bool(random.integers(4))
    a = make.input("a", *batch, m, k, dtype=pick(random, *BYTES))
    b = make.input("b", *(() if constant else batch), k, n, dtype=pick(random, *BYTES))
    operands = [a, b]
    if random.integers(2):
        operands.append(make.input("bias", n, dtype=DType.INT32))
    value = _requantised(make, make("matmul", *operands, accumulator="int32"), random)
    return _whole_range(make, value, random, ("b", "bias") if constant else ("bias",), {})


def int8_convolution(random: Random, lanes: int) -> Case:
    rank, group = pick(random, 2, 2, 1), pick(random, 1, 1, 2)
    channels = group * pick(random, lanes, 2 * lanes, 4, extent(random, 1, 21))
    odd = extent(random, 1, 40) if group == 1 else lanes  # groups are whole vectors of filters
    filters = group * pick(random, lanes, 2 * lanes, odd)
    kernel = tuple(pick(random, 1, 2, 3) for _ in range(rank))
    return _convolve_bytes(random, lanes, channels, filters, kernel, group)


def int8_depthwise(random: Random, lanes: int) -> Case:
    """Windows of whole groups of four taps, and of less and more."""
    channels = pick(random, lanes, 2 * lanes, extent(random, 2, 21))
    kernel = pick(random, (3, 3), (5, 5), (3,), (1, 4), (2, 6), (3, 1))
    return _convolve_bytes(random, lanes, channels, channels, kernel, channels)


def _convolve_bytes(
    random: Random, lanes: int, channels: int, filters: int, kernel: tuple[int, ...], group: int
) -> Case:
    make, rank = Maker(), len(kernel)
    strides = tuple(pick(random, 1, 1, 2) for _ in range(rank))
    pads = tuple(int(random.integers(0, k)) for k in (*kernel, *kernel))
    size = tuple(extent(random, 5, 14) for _ in range(rank))
    x = make.input("x", pick(random, 1, 2), channels, *size, dtype=pick(random, *BYTES))
    w = make.input("w", filters, channels // group, *kernel, dtype=pick(random, *BYTES))
    value = make(
        "conv", x, w, make.input("b", filters, dtype=DType.INT32),
        strides=strides, pads=pads, dilations=(1,) * rank, group=group, accumulator="int32",
    )  # fmt: skip
    value = _requantised(make, value, random)
    weights = ["w", "b"]
    if make.types[value].dtype in BYTES and random.integers(2):
        weights.append(make.input("table", 256, dtype=pick(random, *BYTES)))
        value = make("lookup", value, "table")
    inner = channels // group if group < channels else channels
    outer = filters // group if group < channels else filters
    places = {"x": placed(random, lanes, inner, rank + 2, pads)}
    places["out"] = placed(random, lanes, outer, rank + 2, (1,) * len(pads))
    return _whole_range(make, value, random, tuple(weights), named(places, value))


def _requantised(make: Maker, value: str, random: Random) -> str:
    """Sometimes int32 as it is, sometimes scaled by a power of two, rounded and saturated."""
    if random.integers(3) == 0:
        return value
    scale = make.constant("scale", 2.0 ** -int(random.integers(4, 12)))
    value = make("round", make("mul", make("cast", value, to="float32"), scale))
    return make("cast", value, to=pick(random, "uint8", "int8"))


def _whole_range(
    make: Maker, output: str, random: Random, weights: tuple[str, ...], places: Places
) -> Case:
    """A case whose bytes may have any value; sums in int32 are exact."""
    graph = make.graph(output)
    arrays = []
    for name in graph.inputs:
        kind = graph.types[name]
        limits = np.iinfo(kind.dtype.numpy)
        low, high = max(limits.min, -(1 << 20)), min(limits.max, 1 << 20)
        arrays.append(random.integers(low, high + 1, kind.shape).astype(kind.dtype.numpy))
    return Case(as_workload(graph, weights, places), tuple(arrays), exact=True)
