from __future__ import annotations

from dataclasses import replace

import pytest

from tests.nests.verify import CHECKS, verify_nest
from tests.unit.loops import nests
from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import ScheduleError
from tilewright.compiler.loops.expr import (
    Accumulator,
    Cast,
    Combiner,
    Const,
    Fold,
    Incoming,
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
from tilewright.compiler.loops.index import Axis, affine
from tilewright.compiler.loops.nest import (
    Binding,
    Compute,
    For,
    Let,
    LoopNest,
    Node,
    Stage,
    Store,
    Tile,
)
from tilewright.compiler.sizes import Dimension, dynamic_size

I = Axis("i", 8)  # noqa: E741 an axis is written as a capital where it is a constant
X = Tensor("x", (8,))
Y = Tensor("y", (8,), role=Role.OUTPUT)
COPY = Compute((Store(Y[I], Accumulator()),), X[I], unroll=(Tile(I),))
SUM = Compute(
    (Store(Y[0], Accumulator()),), X[I], Combiner.SUM, reduce=(Tile(I, 4),), unroll=(Tile(I),)
)
OTHER = Axis("j", 3)
N = dynamic_size(Dimension("n", 1, 512))


def nest(*body: Node, buffers: tuple[Tensor, ...] = (X, Y), **changes: object) -> LoopNest:
    whole = LoopNest("k", buffers, (), (Stage("main", body),))
    return replace(whole, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("good", [nests.matmul(10, 20, 5), nests.max_pool(), nest(COPY), nest(SUM)])
def test_well_formed_nests_pass(good: LoopNest) -> None:
    verify_nest(good)


def test_parallel_loops_may_be_right_inside_each_other() -> None:
    verify_nest(nest(parallel(OTHER, parallel(I, COPY))))


def test_well_formed_folds_and_dots_pass() -> None:
    verify_nest(nest(PAIRS))
    verify_nest(nest(DOT, buffers=DOT_BUFFERS))
    verify_nest(nest(MOVED, buffers=MOVED_BUFFERS))


def parallel(axis: Axis, *body: Node) -> For:
    return For(axis, 1, body, binding=Binding.PARALLEL)


PAIR = Items((X[I], Const(1, DType.INT32)))
SECOND = Accumulator(DType.INT32, 1)
FOLD = Fold((Const(0.0), Const(0, DType.INT32)), (Accumulator() + Incoming(), SECOND))
PAIRS = replace(SUM, body=PAIR, combiner=FOLD)

ONE = Axis("one", 1)
NARROW = Tensor("a", (8,), DType.INT8)
FOURS = Cast(NARROW[I], DType.INT32) * Cast(NARROW[I], DType.INT32)
DOT = replace(
    SUM,
    stores=(Store(Tensor("t", (1,), DType.INT32, role=Role.OUTPUT)[0], Accumulator(DType.INT32)),),
    body=FOURS,
    unroll=(Tile(I, 4),),
    dot=I,
)
MOVED_BUFFERS = (NARROW, Tensor("b", (8,), DType.INT8, role=Role.OUTPUT))
MOVED = Compute(
    (Store(MOVED_BUFFERS[1][I], Accumulator(DType.INT8)),), NARROW[I], unroll=(Tile(I, 4),), dot=I
)
DOT_BUFFERS = (NARROW, DOT.stores[0].target.tensor)

BAD = {
    "dot axis 'i' is not one that a sum": nest(replace(SUM, dot=I)),
    "dot axis 'i' is not cut into tiles of 4": nest(
        replace(DOT, unroll=(Tile(I, 2),)), buffers=DOT_BUFFERS
    ),
    "dot axis 'one' is not cut into tiles of 4": nest(
        replace(DOT, unroll=(Tile(ONE, 4),), dot=ONE), buffers=DOT_BUFFERS
    ),
    "dot axis 'i' is not one along which": nest(replace(COPY, dot=I, unroll=(Tile(I, 4),))),
    "dot axis 'i' is not one along which a narrow": nest(
        replace(MOVED, store_vector=I), buffers=MOVED_BUFFERS
    ),
    "dot axis 'i' is not one along which a narrow load": nest(
        replace(MOVED, body=NARROW[I] + NARROW[I]), buffers=MOVED_BUFFERS
    ),
    "compute of 'b': dot axis 'i' is not cut into tiles of 4": nest(
        replace(MOVED, unroll=(Tile(I, 2),)), buffers=MOVED_BUFFERS
    ),
    "dot axis 'i' has another use": nest(replace(DOT, vector=I), buffers=DOT_BUFFERS),
    "two tensors are named 'x'": nest(COPY, buffers=(X, X, Y)),
    "tensor 'y' is neither a buffer nor scratch": nest(COPY, buffers=(X,)),
    "input 'x' is written": nest(replace(COPY, stores=(Store(X[I], Accumulator()),))),
    "weight 'w' is written": nest(
        replace(COPY, body=Tee(X[I], Tensor("w", (8,), role=Role.WEIGHT)[I])),
        buffers=(X, Y, Tensor("w", (8,), role=Role.WEIGHT)),
    ),
    "output 'c' is written": nest(
        replace(
            COPY,
            stores=(
                Store(Tensor("c", (8,), space=Space.CONSTANT, role=Role.OUTPUT)[I], Accumulator()),
            ),
        )
    ),
    "threads share p and q": nest(
        COPY, buffers=(X, Y, *(Tensor(name, (8,), role=Role.SHARED) for name in "pq"))
    ),
    "scratch 'x' has the role input": nest(COPY, buffers=(Y,), scratch=(X,)),
    "parallel loop 'j' is not at the top, or has others": nest(COPY, parallel(OTHER, COPY)),
    "parallel loop 'i' is not at the top": nest(For(OTHER, 1, (parallel(I, COPY),))),
    "parallel loop 'i' is not at the top, or has others": nest(
        parallel(OTHER, parallel(I, COPY), COPY)
    ),
    "stage 'main': parallel loop 'i' is not at": nest(parallel(I, parallel(I, COPY))),
    "axis 'i' has step 0": nest(replace(COPY, unroll=(Tile(I, 0),))),
    "axis 'j' has step -1": nest(For(OTHER, -1, (COPY,))),
    "compute of 'y': axis 'j' is used outside": nest(
        replace(COPY, stores=(Store(Y[I], X[affine(OTHER)]),))
    ),
    "let 's': axis 'j' is used outside": nest(
        For(I, 1, (COPY,), lets=(Let(Axis("s", 4), affine(OTHER), 3),))
    ),
    "'x' has 1 dimensions, a load gives 2": nest(
        replace(COPY, body=Load(X, (affine(I), affine(0))))
    ),
    "'x': bad indirect index in dimension 1": nest(
        replace(COPY, body=Load(X, (affine(I),), ((1, Const(0, DType.INT64)),)))
    ),
    "'x': bad indirect index in dimension 0": nest(
        replace(COPY, body=Load(X, (affine(I),), ((0, Const(0.0)),)))
    ),
    "a reduction is left": nest(replace(COPY, body=Reduce(Combiner.SUM, (OTHER,), X[I]))),
    "a int32 is stored to 'y', a tensor of float32": nest(
        replace(COPY, stores=(Store(Y[I], Cast(X[I], DType.INT32)),))
    ),
    "fma has 2 operands, it takes 3": nest(
        replace(COPY, body=Op(Operation.FMA, (X[I], Const(1.0))))
    ),
    "add: operand types differ": nest(
        replace(COPY, body=Op(Operation.ADD, (Const(1, DType.INT8), X[I])))
    ),
    "select: its condition is a float32": nest(
        replace(COPY, body=Op(Operation.SELECT, (X[I], X[I], X[I])))
    ),
    "its body reads the accumulator": nest(replace(SUM, body=Accumulator())),
    "items where no fold takes them": nest(replace(SUM, body=PAIR)),
    "a fold of (float32, int32) reduces (float32)": nest(replace(PAIRS, body=X[I])),
    "a fold of (float32, int32) starts from (float32)": nest(replace(PAIRS, init=Const(1.0))),
    "a fold of (float32, int32) joins to (float32)": nest(
        replace(PAIRS, combiner=replace(FOLD, joined=(Accumulator(),)))
    ),
    "a fold joins by load": nest(replace(PAIRS, combiner=replace(FOLD, joined=(X[I], SECOND)))),
    "item 2 of float32 in a reduction of (float32, int32)": nest(
        replace(PAIRS, stores=(Store(Y[0], Accumulator(number=2)),))
    ),
    "item 1 of float32 in a reduction of (float32, int32)": nest(
        replace(PAIRS, stores=(Store(Y[0], Accumulator(number=1)),))
    ),
    "a store reads what a fold takes in": nest(replace(PAIRS, stores=(Store(Y[0], Incoming()),))),
    "a compute stores nothing": nest(replace(COPY, stores=())),
    "partial axis 'j' is no unrolled": nest(replace(SUM, partial=(OTHER,))),
    "partial axis 'i' is no unrolled": nest(replace(COPY, partial=(I,))),
    "its passes ask for nothing ahead": nest(For(OTHER, 1, (replace(SUM, passes=(Tile(OTHER),)),))),
    "passes of 'y': axis 'j' is used outside": nest(
        replace(COPY, prefetch=64, passes=(Tile(OTHER),))
    ),
    "a reduction without a combiner": nest(replace(COPY, init=Const(1.0))),
    "dimension 'n' has two ranges": nest(
        For(Axis("i", N), 1, (For(Axis("j", dynamic_size(Dimension("n", 1, 8))), 1, (COPY,)),))
    ),
    "axis 'j': n-2 may be below 0": nest(For(Axis("j", N - 2), 1, (COPY,))),
    "tensor 'x': n-2 may be below 0": nest(COPY, buffers=(replace(X, shape=(N - 2,)), Y)),
    "axis 'j' is used outside of its loop": nest(replace(COPY, body=X[Axis("j", N)])),
    "a reduction stores nothing": nest(replace(SUM, stores=(), body=Tee(X[I], Y[I]))),
}


@pytest.mark.parametrize("complaint", sorted(BAD))
def test_each_check_names_its_offender(complaint: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        verify_nest(BAD[complaint])
    assert complaint in str(caught.value)


def test_every_check_refuses_something() -> None:
    refusing = set()
    for bad in BAD.values():
        for check in CHECKS:
            try:
                check(bad)
            except ScheduleError:
                refusing.add(check.__name__)
                break
    assert refusing == {check.__name__ for check in CHECKS}
