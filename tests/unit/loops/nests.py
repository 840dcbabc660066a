"""Loop nests that several tests use, and Hypothesis strategies for arbitrary ones."""

from __future__ import annotations

import math

from hypothesis import strategies as st

from compiler.dtypes import DType
from compiler.loops.expr import (
    Accumulator,
    Cast,
    Combiner,
    Const,
    Expr,
    IndexValue,
    Load,
    Op,
    Operation,
    Reduce,
    Role,
    Space,
    Tee,
    Tensor,
)
from compiler.loops.index import Affine, Axis, FloorDiv
from compiler.loops.layout import ROW_MAJOR, Factor, Layout, blocked
from compiler.loops.nest import (
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
    """3x3 windows, stride 2, padding 1: what lies outside takes no part."""
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


NAMES = st.one_of(
    st.sampled_from(["m", "acc", "inf", "for", "x~2", "%0", "a b", '"', "", "max", "é", "row"]),
    st.text(max_size=4),
)
SMALL = st.integers(1, 40)
DTYPES = st.sampled_from(list(DType))
AXES = st.builds(Axis, NAMES, SMALL)
TERMS = st.one_of(AXES, st.builds(FloorDiv, AXES, st.integers(2, 9)))
COEFFICIENTS = st.integers(-20, 20).filter(bool)
INDICES = st.builds(
    Affine,
    st.lists(st.tuples(TERMS, COEFFICIENTS), max_size=3).map(tuple),
    st.integers(-99, 99),
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
    st.lists(SMALL, max_size=4).map(tuple),
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
    st.builds(Accumulator, DTYPES),
    st.builds(Load, TENSORS, st.lists(INDICES, max_size=3).map(tuple)),
)


def _larger(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    operands = st.lists(inner, min_size=1, max_size=3).map(tuple)
    positions = st.lists(st.tuples(st.integers(0, 3), inner), max_size=2).map(tuple)
    loads = st.builds(Load, TENSORS, st.lists(INDICES, max_size=2).map(tuple), positions)
    twice = inner.map(lambda e: Op(Operation.MUL, (Op(Operation.NEG, (e,)),) * 2))
    return st.one_of(
        st.builds(Op, st.sampled_from(list(Operation)), operands),
        st.builds(Cast, inner, DTYPES),
        st.builds(
            Reduce,
            st.sampled_from(list(Combiner)),
            st.lists(AXES, max_size=2).map(tuple),
            inner,
        ),
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
    combiner=st.one_of(st.none(), st.sampled_from(list(Combiner))),
    init=st.one_of(st.none(), EXPRESSIONS),
    reduce=TILES,
    unroll=TILES,
    vector=MAYBE_AXIS,
    partial=st.lists(AXES, max_size=2).map(tuple),
    order=st.sampled_from(list(Order)),
    skip_padding=st.booleans(),
    store_vector=MAYBE_AXIS,
    prefetch=st.sampled_from([0, 64, 2048]),
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
        st.lists(st.builds(Let, AXES, INDICES, st.integers(-9, 99)), max_size=2).map(tuple),
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
    st.booleans(),
)
