"""Loop nests that several tests use, and Hypothesis strategies for arbitrary ones."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import strategies as st

from tilewright.compiler.dtypes import DType
from tilewright.compiler.loops import maths
from tilewright.compiler.loops.expr import (
    Accumulator,
    Cast,
    Combiner,
    Const,
    Expr,
    Fold,
    Incoming,
    IndexValue,
    Item,
    Items,
    Load,
    Op,
    Operation,
    Reduce,
    Role,
    Space,
    Tee,
    Tensor,
)
from tilewright.compiler.loops.index import Affine, Axis, FloorDiv, affine
from tilewright.compiler.loops.layout import ROW_MAJOR, Factor, Layout, blocked
from tilewright.compiler.loops.nest import (
    Binding,
    Compute,
    For,
    Let,
    LoopNest,
    Order,
    Stage,
    Store,
    Tile,
)
from tilewright.compiler.sizes import Dimension, dynamic_size


def matmul(
    rows: int, columns: int, depth: int, tile: int = 4, vectors: int = 2, lanes: int = 8
) -> LoopNest:
    """C = max(A B + bias, 0), B in panels of `vectors * lanes` columns."""
    m, n, k = Axis("m", rows), Axis("n", columns), Axis("k", depth)
    width = vectors * lanes
    panels = Layout((Factor(1, width), Factor(0), Factor(1, 1, width)))
    a = Tensor("A", (rows, depth))
    b = Tensor("B", (depth, columns), layout=panels, role=Role.WEIGHT)
    bias = Tensor("bias", (columns,), role=Role.WEIGHT)
    c = Tensor("C", (rows, columns), role=Role.OUTPUT)
    compute = Compute(
        stores=(Store(c[m, n], Op(Operation.MAX, (Accumulator(), Const(0.0)))),),
        body=a[m, k] * b[k, n],
        combiner=Combiner.SUM,
        init=bias[n],
        reduce=(Tile(k),),
        unroll=(Tile(k), Tile(m), Tile(n, lanes)),
        vector=n,
    )
    inner = For(n, width, (compute,))
    loop = For(m, tile, (inner,), binding=Binding.PARALLEL)
    return LoopNest("matmul", (a, b, bias, c), (), (Stage("main", (loop,)),))


def max_pool(channels: int = 16, size: int = 9, lanes: int = 8) -> LoopNest:
    """3x3 windows, stride 2, padding 1: elements outside take no part."""
    out = (size + 1) // 2
    c, h, w = Axis("c", channels), Axis("h", out), Axis("w", out)
    i, j = Axis("i", 3), Axis("j", 3)
    layout = blocked(3, 0, lanes)
    x = Tensor("x", (channels, size, size), layout=layout)
    y = Tensor("y", (channels, out, out), layout=layout, role=Role.OUTPUT)
    compute = Compute(
        stores=(Store(y[c, h, w], Accumulator()),),
        body=x[c, h * 2 + i - 1, w * 2 + j - 1],
        combiner=Combiner.MAX,
        reduce=(Tile(i),),
        unroll=(Tile(j), Tile(w), Tile(c, lanes)),
        vector=c,
    )
    loop = For(c, lanes, (For(h, 1, (For(w, 2, (compute,), peel=True),)),))
    return LoopNest("max_pool", (x, y), (), (Stage("main", (loop,)),))


def argmax_fold() -> Fold:
    """(value, position): the largest value and the first position that has it."""
    value, position = Accumulator(), Accumulator(DType.INT32, 1)
    other, place = Incoming(), Incoming(DType.INT32, 1)
    nearer = Op(
        Operation.AND,
        (Op(Operation.EQ, (value, other)), Op(Operation.LT, (place, position))),
    )
    wins = Op(Operation.OR, (Op(Operation.LT, (value, other)), nearer))
    return Fold(
        (Const(-math.inf), Const(2**31 - 1, DType.INT32)),
        (maths.select(wins, other, value), maths.select(wins, place, position)),
    )


def softmax_fold() -> Fold:
    """(maximum, sum of e**(x - maximum)): Milakov and Gimelshein 2018."""
    top, total, other, more = Accumulator(), Accumulator(number=1), Incoming(), Incoming(number=1)
    largest = maths.maximum(top, other)
    return Fold(
        (Const(-1e30), Const(0.0)),
        (largest, total * maths.exp(top - largest) + more * maths.exp(other - largest)),
    )


def variance_fold() -> Fold:
    """(count, mean, sum of squared deviations): Chan, Golub and LeVeque 1979."""
    n, mean, square = Accumulator(), Accumulator(number=1), Accumulator(number=2)
    n2, mean2, square2 = Incoming(), Incoming(number=1), Incoming(number=2)
    total = n + n2
    share = n2 / maths.maximum(total, 1.0)
    change = mean2 - mean
    return Fold(
        (Const(0.0), Const(0.0), Const(0.0)),
        (total, mean + change * share, square + square2 + change * change * n * share),
    )


def folding(fold: Fold, items: Items, x: Tensor, **form: object) -> LoopNest:
    """A row of x[m, k] reduced by a fold; each item has an output (m,) of its own.

    `form` are the fields of the compute that define the order of k.
    """
    m, k = Axis("m", x.shape[0]), Axis("k", x.shape[1])
    outputs = tuple(
        Tensor(f"y{i}", x.shape[:1], c.type, role=Role.OUTPUT) for i, c in enumerate(fold.neutral)
    )
    stores = tuple(Store(y[m], Accumulator(y.dtype, number)) for number, y in enumerate(outputs))
    compute = replace(Compute(stores, items, fold, reduce=(Tile(k),)), **form)  # type: ignore[arg-type]
    step = next((t.step for t in compute.unroll if t.axis == m), 1)
    return LoopNest("fold", (x, *outputs), (), (Stage("main", (For(m, step, (compute,)),)),))


def fold_items(name: str, x: Tensor) -> tuple[Fold, Items]:
    """One of the folds, and the tuple that an element x[m, k] is to it."""
    m, k = Axis("m", x.shape[0]), Axis("k", x.shape[1])
    match name:
        case "argmax":
            return argmax_fold(), Items((x[m, k], IndexValue(affine(k), DType.INT32)))
        case "softmax":
            return softmax_fold(), Items((x[m, k], Const(1.0)))
        case _:
            return variance_fold(), Items((Const(1.0), x[m, k], Const(0.0)))


def fold_start(name: str) -> Items:
    """A tuple to start from, for a tile of x with small numbers."""
    match name:
        case "argmax":
            return Items((Const(2.0), Const(1000, DType.INT32)))
        case "softmax":
            return Items((Const(1.0), Const(3.0)))
        case _:
            return Items((Const(2.0), Const(0.5), Const(1.5)))


FOLDS = ("argmax", "softmax", "variance")

NAMES = st.one_of(
    st.sampled_from(["m", "acc", "inf", "for", "x~2", "%0", "a b", '"', "", "max", "é", "row"]),
    st.text(max_size=4),
)
SMALL = st.integers(1, 40)
N, BATCH = (
    dynamic_size(d) for d in (Dimension("n", 1, 512), Dimension("batch size", 0, multiple=32))
)
EXTENTS = st.one_of(SMALL, st.sampled_from([N, BATCH, N * BATCH - N + 3, (N + 2) // 4 * 7]))
DTYPES = st.sampled_from(list(DType))
AXES = st.builds(Axis, NAMES, EXTENTS)
TERMS = st.one_of(AXES, st.builds(FloorDiv, AXES, st.one_of(st.integers(2, 9), st.just(N))))
COEFFICIENTS = st.one_of(st.integers(-20, 20).filter(bool), st.sampled_from([N, 1 - N]))
INDICES = st.builds(
    Affine,
    st.lists(st.tuples(TERMS, COEFFICIENTS), max_size=3).map(tuple),
    st.one_of(st.integers(-99, 99), st.sampled_from([N, -N])),
)
FACTORS = st.builds(
    Factor, st.integers(0, 3), SMALL, st.one_of(st.none(), SMALL), st.integers(0, 9)
)
LAYOUTS = st.one_of(
    st.just(ROW_MAJOR), st.lists(FACTORS, min_size=1, max_size=4).map(lambda f: Layout(tuple(f)))
)
NUMBERS = st.one_of(
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False),
    st.sampled_from([math.inf, -math.inf, 1e-45, -0.0, 1e300]),
)
TENSORS = st.builds(
    Tensor,
    NAMES,
    st.lists(EXTENTS, max_size=4).map(tuple),
    DTYPES,
    LAYOUTS,
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=3).map(tuple),
    st.sampled_from(list(Space)),
    st.sampled_from(list(Role)),
    st.lists(st.floats(allow_nan=False), max_size=3).map(tuple),
)
LEAVES: st.SearchStrategy[Expr] = st.one_of(
    st.builds(Const, NUMBERS, DTYPES),
    st.builds(IndexValue, INDICES, DTYPES),
    st.builds(Accumulator, DTYPES, st.integers(0, 2)),
    st.builds(Load, TENSORS, st.lists(INDICES, max_size=3).map(tuple)),
)


PLACES = st.integers(0, 3)
JOINS = st.recursive(
    st.one_of(
        st.builds(Accumulator, DTYPES, PLACES),
        st.builds(Incoming, DTYPES, PLACES),
        st.builds(Const, NUMBERS, DTYPES),
    ),
    lambda inner: st.builds(
        Op, st.sampled_from(list(Operation)), st.lists(inner, min_size=1, max_size=3).map(tuple)
    ),
    max_leaves=4,
)
COMBINERS: st.SearchStrategy[Combiner | Fold] = st.one_of(
    st.sampled_from(list(Combiner)),
    st.builds(
        Fold,
        st.lists(st.builds(Const, NUMBERS, DTYPES), max_size=3).map(tuple),
        st.lists(JOINS, max_size=3).map(tuple),
    ),
)


def _larger(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    operands = st.lists(inner, min_size=1, max_size=3).map(tuple)
    positions = st.lists(st.tuples(st.integers(0, 3), inner), max_size=2).map(tuple)
    loads = st.builds(Load, TENSORS, st.lists(INDICES, max_size=2).map(tuple), positions)
    reductions = st.builds(Reduce, COMBINERS, st.lists(AXES, max_size=2).map(tuple), inner)
    twice = inner.map(lambda e: Op(Operation.MUL, (Op(Operation.NEG, (e,)),) * 2))
    return st.one_of(
        st.builds(Op, st.sampled_from(list(Operation)), operands),
        st.builds(Cast, inner, DTYPES),
        reductions,
        st.builds(Item, reductions, st.integers(0, 3)),
        st.builds(Items, operands),
        st.builds(Tee, inner, loads),
        loads,
        twice,
    )


EXPRESSIONS = st.recursive(LEAVES, _larger, max_leaves=6)
TARGETS = st.builds(Load, TENSORS, st.lists(INDICES, max_size=3).map(tuple))
TILES = st.lists(st.builds(Tile, AXES, SMALL, st.booleans()), max_size=3).map(tuple)
MAYBE_AXIS = st.one_of(st.none(), AXES)
COMPUTES = st.builds(
    Compute,
    stores=st.lists(st.builds(Store, TARGETS, EXPRESSIONS), max_size=2).map(tuple),
    body=EXPRESSIONS,
    combiner=st.one_of(st.none(), COMBINERS),
    init=st.one_of(st.none(), EXPRESSIONS),
    reduce=TILES,
    unroll=TILES,
    vector=MAYBE_AXIS,
    partial=st.lists(AXES, max_size=2).map(tuple),
    order=st.sampled_from(list(Order)),
    skip_padding=st.booleans(),
    store_vector=MAYBE_AXIS,
    prefetch=st.sampled_from([64, 2048]),
    passes=TILES,
    dot=MAYBE_AXIS,
)
NODES = st.recursive(
    COMPUTES,
    lambda inner: st.builds(
        For,
        AXES,
        SMALL,
        st.lists(inner, max_size=2).map(tuple),
        st.sampled_from(list(Binding)),
        st.booleans(),
        st.booleans(),
        st.lists(
            st.builds(Let, AXES, INDICES, st.one_of(st.integers(-9, 99), st.just(N))), max_size=2
        ).map(tuple),
    ),
    max_leaves=3,
)
NESTS = st.builds(
    LoopNest,
    NAMES,
    st.lists(TENSORS, max_size=3).map(tuple),
    st.lists(TENSORS, max_size=2).map(tuple),
    st.lists(st.builds(Stage, NAMES, st.lists(NODES, max_size=2).map(tuple)), max_size=2).map(
        tuple
    ),
)
