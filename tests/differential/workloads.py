"""Random workloads of every kind that the templates accept, with inputs.

Inputs of linear workloads are small integers. Their sums of products are exact in float32 (below
2**24 in any order), so that any other result is a bug and no tolerance is needed.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.differential.drawing import (
    Case,
    Places,
    Random,
    case,
    epilogue,
    extent,
    named,
    pick,
    placed,
)
from tests.differential.int8_workloads import int8_convolution, int8_depthwise, int8_matmul
from tests.graphs import Maker
from tilewright.compiler.dtypes import DType
from tilewright.compiler.graph.ir import AttrValue
from tilewright.compiler.loops.layout import ROW_MAJOR, Factor, Layout, blocked
from tilewright.compiler.plan.workload import Halo


def convolution(random: Random, lanes: int) -> Case:
    rank = pick(random, 2, 2, 2, 1, 3)
    group = pick(random, 1, 1, 1, 2)
    some = lanes * pick(random, 1, 2) if random.integers(3) else extent(random, 1, 21)
    channels = group * (extent(random, 1, 5) if random.integers(4) == 0 else some)
    filters = group * (
        lanes * pick(random, 1, 2, 3) if random.integers(3) else extent(random, 1, 40)
    )
    kernel = tuple(
        pick(random, 1, 2, 3, 3, 5) if rank < 3 else pick(random, 1, 3) for _ in range(rank)
    )
    if random.integers(3) == 0:
        kernel = (1,) * rank
    strides = tuple(pick(random, 1, 1, 2) for _ in range(rank))
    dilations = tuple(pick(random, 1, 1, 1, 2) for _ in range(rank))
    size = tuple(extent(random, 5 if rank < 3 else 4, 14 if rank < 3 else 6) for _ in range(rank))
    size = tuple(max(s, d * (k - 1) + 1) for s, d, k in zip(size, dilations, kernel, strict=True))
    pads = tuple(int(random.integers(0, k)) for k in (*kernel, *kernel))
    return _convolve(
        random, lanes, channels, filters, kernel, strides, dilations, size, pads, group
    )


def winograd(random: Random, lanes: int) -> Case:
    """A window in contiguous channels, with a halo: every algorithm applies."""
    make = Maker()
    kernel = pick(random, (3, 3), (3, 3), (5, 5), (1, 7), (3, 1), (2, 3), (3,), (5,), (1, 3, 3))
    rank = len(kernel)
    square = len(set(kernel)) == 1
    strides = tuple(2 if square and random.integers(3) == 0 else 1 for _ in kernel)
    channels = lanes * pick(random, 1, 2) if random.integers(3) else extent(random, 9, 24)
    filters = lanes * pick(random, 1, 2, 3) if random.integers(3) else extent(random, 9, 40)
    size = tuple(extent(random, max(k, 3), 15 if rank < 3 else 8) for k in kernel)
    pads = tuple(int(random.integers(0, k)) for k in (*kernel, *kernel))
    more = int(random.integers(2))
    x = make.input("x", pick(random, 1, 2), channels, *size)
    w = make.input("w", filters, channels, *kernel)
    attrs: dict[str, AttrValue] = {
        "strides": strides, "pads": pads, "dilations": (1,) * rank, "group": 1,
    }  # fmt: skip
    around = ((0, 0), (0, 0), *((pads[d] + more, pads[d + rank] + more) for d in range(rank)))
    last = Layout((*(Factor(d) for d in (0, *range(2, rank + 2))), Factor(1)))
    layout, written = (pick(random, blocked(rank + 2, 1, lanes), last) for _ in range(2))
    # Lanes that a layout rounds up are undefined, in a halo too: there would be nothing to compare.
    whole = filters % lanes == 0 or written == last
    halo: Halo = ((0, 0), (0, 0), *(((1, 1),) * rank)) if whole and random.integers(2) else ()
    places: Places = {"x": (layout, around), "out": (written, halo)}
    value = make("conv", x, w, make.input("b", filters), **attrs)
    value, weights = epilogue(make, value, random, places)
    return case(make, value, random, ("w", "b", *weights), named(places, value))


def depthwise(random: Random, lanes: int) -> Case:
    channels = lanes * pick(random, 1, 2) if random.integers(3) else extent(random, 2, 20)
    kernel = pick(random, (3, 3), (5, 5), (3, 1), (2, 3))
    strides = pick(random, (1, 1), (2, 2), (1, 2), (2, 3), (1, 4), (1, 5))
    size = (extent(random, 5, 13), extent(random, 5, 13))
    pads = tuple(int(random.integers(0, k)) for k in (*kernel, *kernel))
    return _convolve(
        random, lanes, channels, channels, kernel, strides, (1, 1), size, pads, channels
    )


def _convolve(
    random: Random,
    lanes: int,
    channels: int,
    filters: int,
    kernel: tuple[int, ...],
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
    size: tuple[int, ...],
    pads: tuple[int, ...],
    group: int,
) -> Case:
    make, batch, rank = Maker(), pick(random, 1, 1, 2), len(size) + 2
    x = make.input("x", batch, channels, *size)
    w = make.input("w", filters, channels // group, *kernel)
    operands = [x, w]
    if random.integers(2):
        operands.append(make.input("b", filters))
    value = make("conv", *operands, strides=strides, pads=pads, dilations=dilations, group=group)
    inner = channels // group if group < channels else channels
    outer = filters // group if group < channels else filters
    places = {"x": placed(random, lanes, inner, rank, pads)}
    places["out"] = placed(random, lanes, outer, rank, (1,) * len(pads))
    value, more = epilogue(make, value, random, places)
    return case(make, value, random, ("w", "b", *more), named(places, value))


def matmul(random: Random, lanes: int) -> Case:
    make = Maker()
    m = pick(random, 1, extent(random, 2, 40))
    n, k = extent(random, 1, 70), extent(random, 1, 40)
    batch = pick(random, (), (), (3,), (2, 3))
    constant = bool(random.integers(2))
    shape: tuple[int, ...] = (k, n) if constant else (*batch, k, n)
    turned = bool(random.integers(2))
    a = make.input("a", *batch, m, k)
    if turned:
        b = make.input("b", *shape[:-2], n, k)
        rank = len(shape)
        b = make("transpose", b, perm=(*range(rank - 2), rank - 1, rank - 2))
    else:
        b = make.input("b", *shape)
    operands = [a, b]
    if random.integers(2):
        operands.append(make.input("bias", n))
    value = make("matmul", *operands)
    value, more = epilogue(make, value, random, {})
    if random.integers(4) == 0:
        rank = len(make.types[value].shape)
        value = make("transpose", value, perm=(*range(rank - 2), rank - 1, rank - 2))
    weights = ("bias", *more, *(("b",) if constant else ()))
    return case(make, value, random, weights)


def pool(random: Random, lanes: int) -> Case:
    make = Maker()
    channels = lanes * pick(random, 1, 2) if random.integers(2) else extent(random, 1, 20)
    kernel = pick(random, (2, 2), (3, 3), (3, 2), (6, 6), (1, 3))
    size = tuple(extent(random, max(k, 5), 14) for k in kernel)
    pads = tuple(int(random.integers(0, k)) for k in (*kernel, *kernel))
    x = make.input("x", pick(random, 1, 2), channels, *size)
    kind = pick(random, "max_pool", "max_pool", "average_pool")
    attrs: dict[str, AttrValue] = {
        "kernel": kernel, "strides": pick(random, (1, 1), (2, 2), (2, 1)), "pads": pads,
        "dilations": (1, 1),
    }  # fmt: skip
    if kind == "average_pool":
        attrs["count_include_pad"] = 1
    value = make(kind, x, **attrs)
    places = {"x": placed(random, lanes, channels, 4, pads)}
    places["out"] = placed(random, lanes, channels, 4, (1,) * 4)
    return case(make, value, random, (), named(places, value), exact=kind == "max_pool")


def normalisation(random: Random, lanes: int) -> Case:
    make = Maker()
    shape = tuple(extent(random, 1, 40) for _ in range(pick(random, 1, 2, 3)))
    if random.integers(3) == 0:  # rows of less than a vector
        shape = (*shape[:-1], extent(random, 16, 40), extent(random, 2, 12))
    x = make.input("x", *shape)
    axis = int(random.integers(len(shape)))
    kind = pick(random, "softmax", "log_softmax", "layer_norm", "lrn")
    if kind == "layer_norm":
        value = make(
            "layer_norm", x, make.input("s", *shape[axis:]), make.input("t", *shape[axis:]),
            axis=axis, epsilon=1e-5,
        )  # fmt: skip
        return case(make, value, random, ("s", "t"), exact=False)
    if kind == "lrn":
        make = Maker()
        channels = lanes if random.integers(2) else extent(random, 3, 20)
        x = make.input("x", 1, channels, extent(random, 1, 6), extent(random, 1, 6))
        value = make("lrn", x, size=pick(random, 3, 5), alpha=0.5, beta=0.75, bias=1.5)
        blocks = channels % lanes == 0 and random.integers(2)
        place = (blocked(4, 1, lanes) if blocks else ROW_MAJOR, ())
        return case(make, value, random, (), {x: place, value: place}, exact=False)
    return case(make, make(kind, x, axis=axis), random, exact=False)


def attention(random: Random, lanes: int) -> Case:
    """Heads in rows of tokens, in a cache, or in one product of three; any mask."""
    make = Maker()
    batch, tokens, size = pick(random, 1, 1, 2), extent(random, 1, 20), extent(random, 1, 20)
    heads = pick(random, 1, 2, 3, 4)
    past = extent(random, 0, 12)
    keys = tokens + past
    if past == 0 and random.integers(2):
        operands = _joined(make, batch, tokens, heads, size)
    else:
        key_heads = heads // 2 if heads % 2 == 0 and random.integers(2) else heads
        value_size = pick(random, size, extent(random, 1, 20))
        q = make.input("q", batch, tokens, heads, size)
        operands = [make("transpose", q, perm=(0, 2, 1, 3))]
        if random.integers(2):
            k = make.input("k", batch, key_heads, size, keys)
            operands.append(make("transpose", k, perm=(0, 1, 3, 2)))
        else:
            operands.append(make.input("k", batch, key_heads, keys, size))
        operands.append(make.input("v", batch, key_heads, keys, value_size))
    if random.integers(2):
        full = (batch, heads, tokens, keys)
        operands.append(make.input("mask", *(pick(random, 1, e) for e in full)))
    causal = int(random.integers(2))
    value = make("attention", *operands, scale=0.3, causal=causal, past=past)
    if random.integers(3):
        value = make("transpose", value, perm=(0, 2, 1, 3))
    return case(make, value, random, exact=False)


def _joined(make: Maker, batch: int, tokens: int, heads: int, size: int) -> list[str]:
    hidden = heads * size
    x = make.input("x", batch, tokens, 3 * hidden)
    parts = []
    for number in range(3):
        starts, sizes = (0, 0, number * hidden), (batch, tokens, hidden)
        box = make("slice", x, starts=starts, steps=(1, 1, 1), sizes=sizes)
        split = make("reshape", box, shape=(batch, tokens, heads, size))
        parts.append(make("transpose", split, perm=(0, 2, 1, 3)))
    return parts


def reduction(random: Random, lanes: int) -> Case:
    make = Maker()
    rank = pick(random, 1, 2, 3, 4)
    shape = tuple(extent(random, 1, 40 if d == rank - 1 else 9) for d in range(rank))
    dtype = pick(random, DType.FLOAT32, DType.FLOAT32, DType.INT32, DType.INT64, DType.FLOAT64)
    x = make.input("x", *shape, dtype=dtype)
    count = extent(random, 1, rank)
    axes = tuple(sorted(int(a) for a in random.permutation(rank)[:count]))
    kind = pick(random, "reduce_sum", "reduce_max", "reduce_min", "arg_max", "arg_min")
    if random.integers(2):
        x = make("abs", x)
    if kind.startswith("arg"):
        keepdims, last = (int(random.integers(2)) for _ in range(2))
        value = make(kind, x, axis=axes[0], keepdims=keepdims, last=last)
        return case(make, value, random)
    value = make(kind, x, axes=axes, keepdims=int(random.integers(2)))
    if random.integers(2) and make.types[value].shape:
        value = make("neg", value)
    return case(make, value, random)


def elementwise(random: Random, lanes: int) -> Case:
    make = Maker()
    rank = pick(random, 1, 2, 3, 4)
    shape = tuple(extent(random, 1, 30 if d == rank - 1 else 9) for d in range(rank))
    dtype = pick(
        random, DType.FLOAT32, DType.FLOAT32, DType.FLOAT32, DType.INT32, DType.INT64,
        DType.FLOAT64, DType.INT8, DType.UINT8, DType.INT16,
    )  # fmt: skip
    value = make.input("x0", *shape, dtype=dtype)
    for number in range(1, extent(random, 2, 4)):
        kept = tuple(e if random.integers(3) else 1 for e in shape)
        other = make.input(f"x{number}", *kept[int(random.integers(rank)) :], dtype=dtype)
        # small numbers: products of four stay within every type but int8, which wraps alike
        value = make(pick(random, "add", "sub", "mul", "max", "min"), value, other)
    if random.integers(4) == 0:
        other = make.input("y", *make.types[value].shape, dtype=dtype)
        value = make("where", make(pick(random, "less", "equal"), value, other), value, other)
    if random.integers(4) == 0:
        value = make("cast", value, to=pick(random, "float32", "int32", "bool"))
    return case(make, value, random)


def movement(random: Random, lanes: int) -> Case:
    make = Maker()
    rank = pick(random, 2, 3, 4)
    shape = tuple(extent(random, 1, 23 if rank < 4 else 12) for _ in range(rank))
    value = make.input("x", *shape, dtype=pick(random, DType.FLOAT32, DType.FLOAT32, DType.INT64))
    if random.integers(2):
        steps = tuple(pick(random, 1, 1, 2, -1) for _ in shape)
        sizes = tuple(extent(random, 1, -(-e // abs(s))) for e, s in zip(shape, steps, strict=True))
        starts = []
        for e, s, n in zip(shape, steps, sizes, strict=True):
            reach = abs(s) * (n - 1)
            low = int(random.integers(0, e - reach))
            starts.append(low + reach if s < 0 else low)
        value = make("slice", value, starts=tuple(starts), sizes=sizes, steps=steps)
    if random.integers(4):
        value = make("transpose", value, perm=tuple(map(int, random.permutation(rank))))
    if random.integers(3) == 0 or not make.nodes:
        value = make("neg", value)
    return case(make, value, random)


def relayout(random: Random, lanes: int) -> Case:
    make = Maker()
    channels = lanes * pick(random, 1, 2, 3)
    x = make.input("x", pick(random, 1, 2), channels, extent(random, 1, 14), extent(random, 1, 14))
    value = make("identity", x)
    if random.integers(3) == 0:
        value = make("relu", value)
    pads = tuple(int(p) for p in random.integers(0, 3, 4))
    places = {x: placed(random, lanes, channels, 4, (1, 1, 1, 1))}
    places[value] = placed(random, lanes, channels, 4, pads)
    return case(make, value, random, (), places)


def pieces(random: Random, lanes: int) -> Case:
    make = Maker()
    rank = pick(random, 2, 3, 4)
    shape = [extent(random, 1, 12) for _ in range(rank)]
    if random.integers(2):
        axis = int(random.integers(rank))
        parts = []
        for number in range(extent(random, 2, 4)):
            shape[axis] = extent(random, 1, 12)
            parts.append(make.input(f"x{number}", *shape))
        return case(make, make("concat", *parts, axis=axis), random)
    pads = tuple(int(p) for p in random.integers(0, 4, 2 * rank))
    mode, x = pick(random, "constant", "edge", "reflect", "wrap"), make.input("x", *shape)
    if mode == "constant":
        value = make("pad", x, pads=pads, value=pick(random, 0.0, -1.5))
    else:  # two dimensions: three would be too many boxes where a reflection is reflected
        pads = tuple(p if dim % rank < 2 else 0 for dim, p in enumerate(pads))
        value = make("extend", x, pads=pads, mode=mode)
    return case(make, value, random)


def blocked_pieces(random: Random, lanes: int) -> Case:
    make = Maker()
    size = (extent(random, 1, 9), extent(random, 1, 9))
    place = (blocked(4, 1, lanes), ())
    names = [
        make.input(f"x{n}", 1, lanes * pick(random, 1, 2), *size) for n in range(pick(random, 2, 3))
    ]
    value = make("concat", *names, axis=1)
    halo = pick(random, (), ((0, 0), (0, 0), (1, 1), (2, 1)))
    places: Places = {**dict.fromkeys(names, place), value: (place[0], halo)}
    return case(make, value, random, (), places)


def gather(random: Random, lanes: int) -> Case:
    make = Maker()
    rank = pick(random, 1, 2, 3)
    shape = tuple(extent(random, 1, 20) for _ in range(rank))
    data = make.input("data", *shape)
    index = make.input(
        "index", *(extent(random, 1, 9) for _ in range(pick(random, 1, 2))),
        dtype=pick(random, DType.INT64, DType.INT32),
    )  # fmt: skip
    value = make("gather", data, index, axis=int(random.integers(rank)))
    if random.integers(3) == 0:
        value = make("relu", value)
    return case(make, value, random)


FAMILIES: dict[str, Callable[[Random, int], Case]] = {
    f.__name__: f
    for f in (
        convolution, winograd, depthwise, matmul, pool, normalisation, attention, reduction,
        elementwise, movement, relayout, pieces, blocked_pieces, gather,
        int8_matmul, int8_convolution, int8_depthwise,
    )
}  # fmt: skip
