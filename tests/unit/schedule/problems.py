"""Workloads of every template, at the sizes of real networks: spaces are only looked at here."""

from __future__ import annotations

from collections.abc import Callable

from tests.graphs import Maker
from tests.kernels import as_workload
from tilewright.compiler.dtypes import DType
from tilewright.compiler.graph.ir import AttrValue
from tilewright.compiler.loops.layout import ROW_MAJOR, Layout, blocked
from tilewright.compiler.plan.workload import Halo, Workload

Place = tuple[Layout, Halo]
HALO: Halo = ((0, 0), (0, 0), (1, 1), (1, 1))


def conv(
    lanes: int,
    *,
    channels: int = 64,
    filters: int = 64,
    size: int = 28,
    kernel: int | tuple[int, int] = 3,
    stride: int = 1,
    group: int = 1,
    planar: bool = False,
    halo: bool = True,
    dilation: int = 1,
    batch: int = 1,
) -> Workload:
    make = Maker()
    kernel = kernel if isinstance(kernel, tuple) else (kernel, kernel)
    pads = tuple(dilation * (k // 2) for k in kernel)
    attrs: dict[str, AttrValue] = {
        "strides": (stride, stride), "pads": pads * 2, "dilations": (dilation,) * 2, "group": group,
    }  # fmt: skip
    x = make.input("x", batch, channels, size, size)
    w = make.input("w", filters, channels // group, *kernel)
    y = make("relu", make("conv", x, w, make.input("b", filters), **attrs))
    around: Halo = ((0, 0), (0, 0), *((p, p) for p in pads)) if halo and any(pads) else ()
    inside = ROW_MAJOR if planar or channels % lanes else blocked(4, 1, lanes)
    outside = ROW_MAJOR if filters % lanes else blocked(4, 1, lanes)
    places: dict[str, Place] = {x: (inside, around), y: (outside, HALO)}
    return as_workload(make.graph(y), ("w", "b"), places)


def matmul(m: int, n: int, k: int, *batch: int, constant: bool = True) -> Workload:
    make = Maker()
    a = make.input("a", *batch, m, k)
    b = make.input("b", *(() if constant else batch), k, n)
    y = make("gelu", make("matmul", a, b, make.input("bias", n)))
    return as_workload(make.graph(y), ("b", "bias") if constant else ("bias",))


def block_matmul(
    m: int,
    n: int,
    k: int,
    bits: int = 4,
    block: int = 32,
    *,
    zero: bool = False,
    quantised: bool = False,
) -> Workload:
    """Weights of a few bits; rows of float32, or bytes that a level of accuracy allows."""
    make, chunk = Maker(), min(block, 32)
    if quantised:
        x = [make.input("x", m, k // 4, dtype=DType.INT32)]
        x += [make.input(name, m, k // chunk) for name in ("x_scale", "x_sum")]
    else:
        x = [make.input("x", m, k)]
    weights = [make.input("w", n, k * bits // 32, dtype=DType.UINT32)]
    weights += [make.input("scale", n, k // block)]
    weights += [make.input("zero", n, k // block, dtype=DType.UINT8)] if zero else []
    y = make("block_matmul", *x, *weights, bits=bits, block=block)
    y = make("gelu", make("add", y, make.input("bias", n)))
    return as_workload(make.graph(y), (*weights, "bias"))


def requantised(make: Maker, total: str) -> str:
    """Sums of int32 as bytes: scaled, rounded to even, moved and saturated."""
    scaled = make("mul", make("cast", total, to="float32"), make.constant("scale", 0.001))
    moved = make("add", make("round", scaled), make.constant("zero", 7.0))
    return make("cast", moved, to="uint8")


def int8_matmul(m: int, n: int, k: int) -> Workload:
    make = Maker()
    a, b = make.input("a", m, k, dtype=DType.UINT8), make.input("b", k, n, dtype=DType.INT8)
    total = make("matmul", a, b, make.input("bias", n, dtype=DType.INT32), accumulator="int32")
    return as_workload(make.graph(requantised(make, total)), ("b", "bias"))


def byte_conv(lanes: int, *, group: int = 1) -> Workload:
    make = Maker()
    x = make.input("x", 1, 64, 28, 28, dtype=DType.UINT8)
    w = make.input("w", 64, 64 // group, 3, 3, dtype=DType.INT8)
    total = make(
        "conv", x, w, make.input("b", 64, dtype=DType.INT32), strides=(1, 1), pads=(1, 1, 1, 1),
        dilations=(1, 1), group=group, accumulator="int32",
    )  # fmt: skip
    y, layout = requantised(make, total), blocked(4, 1, lanes)
    return as_workload(make.graph(y), ("w", "b"), {x: (layout, HALO), y: (layout, HALO)})


def half_matmul(m: int, n: int, k: int, dtype: DType = DType.BFLOAT16) -> Workload:
    make = Maker()
    a, b = make.input("a", m, k, dtype=dtype), make.input("b", k, n, dtype=dtype)
    total = make("matmul", a, b, make.input("bias", n), accumulator="float32")
    return as_workload(make.graph(make("cast", make("gelu", total), to=dtype.value)), ("b", "bias"))


def half_conv(lanes: int, channels: int, size: int) -> Workload:
    """Also reads an addend, as a residual block does."""
    make, layout = Maker(), blocked(4, 1, lanes)
    x, other = (
        make.input(name, 1, channels, size, size, dtype=DType.BFLOAT16) for name in ("x", "other")
    )
    w = make.input("w", channels, channels, 3, 3, dtype=DType.BFLOAT16)
    total = make(
        "conv", x, w, make.input("b", channels), strides=(1, 1), pads=(1, 1, 1, 1),
        dilations=(1, 1), group=1, accumulator="float32",
    )  # fmt: skip
    y = make("cast", make("add", total, make("cast", other, to="float32")), to="bfloat16")
    places = {x: (layout, HALO), y: (layout, HALO), other: (layout, ())}
    return as_workload(make.graph(y), ("w", "b"), places)


def matmul_of_rows(m: int, n: int, k: int, *batch: int) -> Workload:
    """A product with a run-time matrix whose rows lie along the sum: a transposed one."""
    make, rank = Maker(), len(batch)
    a, b = make.input("a", *batch, m, k), make.input("b", *batch, n, k)
    turned = make("transpose", b, perm=(*range(rank), rank + 1, rank))
    return as_workload(make.graph(make("relu", make("matmul", a, turned))))


def unary(op: str, *shape: int, place: Place = (ROW_MAJOR, ()), **attrs: AttrValue) -> Workload:
    make = Maker()
    y = make(op, make.input("x", *shape), **attrs)
    return as_workload(make.graph(y), (), {"x": place, y: (place[0], ())})


def concat(lanes: int) -> Workload:
    make = Maker()
    y = make("concat", make.input("x", 1, 64, 14, 14), make.input("z", 1, 32, 14, 14), axis=1)
    place = (blocked(4, 1, lanes), ())
    return as_workload(make.graph(y), (), {"x": place, "z": place, y: place})


def max_pool(lanes: int) -> Workload:
    return unary(
        "max_pool", 1, 64, 56, 56, place=(blocked(4, 1, lanes), HALO),
        kernel=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1), dilations=(1, 1),
    )  # fmt: skip


def attention(queries: int, keys: int, heads: int, size: int, *, causal: bool = False) -> Workload:
    """Queries in rows of all heads; keys and values as a cache keeps them, or (as many keys as
    queries) side by side with the queries."""
    make = Maker()
    hidden, joined = heads * size, queries == keys
    source = make.input("x", 1, queries, hidden * (3 if joined else 1))

    def part(number: int) -> str:
        box = make(
            "slice", source, starts=(0, 0, number * hidden), steps=(1, 1, 1),
            sizes=(1, queries, hidden),
        )  # fmt: skip
        split = make("reshape", box, shape=(1, queries, heads, size))
        return make("transpose", split, perm=(0, 2, 1, 3))

    cached = [] if joined else [make.input(name, 1, heads, keys, size) for name in "kv"]
    operands = [part(0), *(cached or [part(1), part(2)])]
    mixed = make("attention", *operands, scale=size**-0.5, causal=int(causal))
    return as_workload(make.graph(make("transpose", mixed, perm=(0, 2, 1, 3))))


PROBLEMS: dict[str, Callable[[int], Workload]] = {
    "3x3": conv,
    "3x3 deep and small": lambda lanes: conv(lanes, channels=512, filters=512, size=7),
    "3x3 without halo": lambda lanes: conv(lanes, halo=False),
    "3x3 stride 2": lambda lanes: conv(lanes, stride=2, filters=128),
    "1x7": lambda lanes: conv(lanes, kernel=(1, 7), size=17),
    "1x1": lambda lanes: conv(lanes, kernel=1, size=14, channels=256, filters=1024),
    "stem": lambda lanes: conv(lanes, channels=3, kernel=7, stride=2, size=112, planar=True),
    "groups": lambda lanes: conv(lanes, group=2),
    "depthwise": lambda lanes: conv(lanes, channels=96, filters=96, group=96),
    "depthwise 5x5 planar": lambda lanes: conv(
        lanes, channels=20, filters=20, group=20, kernel=5, halo=False
    ),
    "depthwise planar stride 2": lambda lanes: conv(
        lanes, channels=22, filters=22, group=22, size=56, stride=2
    ),
    "groups planar stride 2": lambda lanes: conv(
        lanes, channels=12, filters=18, group=2, size=56, stride=2, planar=True
    ),
    "24 filters": lambda lanes: conv(lanes, channels=40, filters=24, size=14, kernel=1),
    "matmul": lambda lanes: matmul(128, 768, 768),
    "matmul of odd sizes": lambda lanes: matmul(19, 37, 50),
    "matmul of activations": lambda lanes: matmul(128, 64, 128, 12, constant=False),
    "gemv": lambda lanes: matmul(1, 1000, 2048),
    "gemv of rows": lambda lanes: matmul_of_rows(1, 1024, 64, 12),
    "bytes": lambda lanes: int8_matmul(128, 768, 768),
    "bytes of odd sizes": lambda lanes: int8_matmul(19, 37, 50),
    "bytes 3x3": byte_conv,
    "bytes depthwise": lambda lanes: byte_conv(lanes, group=64),
    "halves": lambda lanes: half_matmul(128, 768, 768),
    "halves of odd sizes": lambda lanes: half_matmul(19, 37, 51, DType.FLOAT16),
    "halves 3x3": lambda lanes: half_conv(lanes, 64, 56),
    "halves 3x3 of few pixels": lambda lanes: half_conv(lanes, 512, 7),
    "nibbles": lambda lanes: block_matmul(64, 768, 768),
    "nibbles with one row": lambda lanes: block_matmul(1, 768, 3072, zero=True),
    "nibbles and bytes": lambda lanes: block_matmul(64, 768, 768, quantised=True),
    "bytes in blocks": lambda lanes: block_matmul(1, 50, 256, 8, 128, quantised=True),
    "max_pool": max_pool,
    "max_pool planar": lambda lanes: unary(
        "max_pool", 1, 20, 13, 13, kernel=(3, 3), strides=(2, 2), pads=(1,) * 4, dilations=(1, 1)
    ),
    "global mean": lambda lanes: unary("reduce_mean", 1, 64, 7, 7, axes=(2, 3), keepdims=1),
    "lrn": lambda lanes: unary("lrn", 1, 96, 27, 27, size=5, alpha=1e-4, beta=0.75, bias=1.0),
    "softmax": lambda lanes: unary("softmax", 12, 128, 128, axis=2),
    "log_softmax over columns": lambda lanes: unary("log_softmax", 7, 40, 3, axis=1),
    "arg_max": lambda lanes: unary("arg_max", 128, 1000, axis=1, keepdims=0),
    "attention": lambda lanes: attention(128, 128, 12, 64),
    "causal attention": lambda lanes: attention(64, 64, 12, 64, causal=True),
    "attention of one query": lambda lanes: attention(1, 65, 12, 64),
    "softmax of short rows": lambda lanes: unary("softmax", 50, 2 * lanes, 3, axis=2),
    "transpose": lambda lanes: unary("transpose", 1, 128, 12, 64, perm=(0, 2, 1, 3)),
    "matrix transpose": lambda lanes: unary("transpose", 100, 200, perm=(1, 0)),
    "relu": lambda lanes: unary("relu", 1, 64, 56, 56),
    "concat": concat,
}
