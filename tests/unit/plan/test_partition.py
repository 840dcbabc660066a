"""Graph plans: layouts, halos, relayouts, views, and that every plan computes its graph."""

from __future__ import annotations

import pytest

from tests.graphs import Maker
from tests.plan_reader import read_plan
from tests.plans import check_memory, planned
from tilewright.compiler.errors import ArtifactError
from tilewright.compiler.graph.ir import Graph
from tilewright.compiler.loops.layout import ROW_MAJOR, blocked
from tilewright.compiler.passes.pipeline import optimise
from tilewright.compiler.plan.memory import plan_memory
from tilewright.compiler.plan.placement import Placement, same_storage
from tilewright.compiler.plan.plan import GraphPlan, ViewStep

CONV = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "group": 1}
POINT = CONV | {"pads": (0, 0, 0, 0)}
NCHW8 = blocked(4, 1, 8)
HALO = ((0, 0), (0, 0), (1, 1), (1, 1))


def kernels(plan: GraphPlan) -> list[tuple[str, ...]]:
    return [step.workload.operators for step in plan.kernels]


def tower() -> Graph:
    g = Maker()
    x = g.input("x", 1, 3, 9, 9)
    y = g("relu", g("conv", x, g.weight("w0", 16, 3, 3, 3), name="stem", **CONV), name="a")
    z = g("relu", g("conv", y, g.weight("w1", 16, 16, 3, 3), **CONV), name="b")
    z = g("relu", g("add", g("conv", z, g.weight("w2", 16, 16, 1, 1), **POINT), y), name="c")
    z = g("reduce_mean", z, axes=(2, 3), keepdims=1, name="pooled")
    z = g("reshape", z, shape=(1, 16))
    return g.graph(g("matmul", z, g.weight("fc", 16, 10), name="out"))


def test_convolutions_are_blocked_with_halos_for_the_next_one() -> None:
    plan = planned(tower())
    assert kernels(plan) == [
        ("identity",),
        ("conv", "relu"),
        ("conv", "relu"),
        ("conv", "add", "relu"),
        ("reduce_mean",),
        ("matmul",),
    ]
    assert plan.placements["x.relayout"] == Placement(ROW_MAJOR, HALO)
    assert plan.placements["a"] == Placement(NCHW8, HALO)
    assert plan.placements["b"] == Placement(NCHW8)
    assert sum(isinstance(step, ViewStep) for step in plan.steps) == 1


def test_native_operators_read_dense_rows() -> None:
    """One convolution's result enters another with a halo, blocked, and is sorted as rows."""
    g = Maker()
    x = g.input("x", 1, 3, 9, 9)
    y = g("conv", x, g.weight("w0", 16, 3, 3, 3), name="stem", **CONV)
    z = g("conv", y, g.weight("w1", 16, 16, 3, 3), name="next", **CONV)
    best = g("top_k", y, axis=1, k=3, largest=1, name="best")
    shifted = g("top_k", x, axis=3, k=2, largest=0, name="shifted")
    plan = planned(g.graph(z, best, g("neg", shifted, name="out")))
    assert [(s.function, s.inputs, s.output) for s in plan.natives] == [
        ("top_k", ("stem.relayout",), "best"),
        ("top_k", ("x",), "shifted"),
    ]
    assert plan.natives[0].parameters == (2, 4, 1, 16, 81, 3, 1)
    assert plan.placements["stem"] == Placement(NCHW8, HALO)
    assert plan.placements["x.relayout"] == Placement(ROW_MAJOR, HALO)
    check_memory(plan, plan_memory(plan))


def test_equal_kernels_are_one_task() -> None:
    g = Maker()
    y = g.input("x", 1, 16, 6, 6)
    for layer in range(4):
        y = g("relu", g("conv", y, g.weight(f"w{layer}", 16, 16, 3, 3), **CONV))
    plan = planned(g.graph(y))
    counts = [count for workload, count in plan.tasks() if "conv" in workload.operators]
    assert counts == [1, 2, 1]  # the first one reads rows, the last one has no halo to write


def test_channels_that_do_not_divide_stay_row_major() -> None:
    g = Maker()
    x = g.input("x", 1, 5, 6, 6)
    plan = planned(g.graph(g("relu", g("conv", x, g.weight("w", 10, 5, 1, 1), **POINT))))
    assert kernels(plan) == [("conv", "relu")]
    assert all(place == Placement() for place in plan.placements.values())


def test_an_output_is_row_major_even_where_others_read_it_blocked() -> None:
    g = Maker()
    x = g.input("x", 1, 32, 9, 9)
    y = g("conv", x, g.weight("w0", 32, 32, 3, 3), name="y", **CONV)
    z = g("conv", y, g.weight("w1", 32, 32, 3, 3), name="z", **CONV)
    plan = planned(g.graph(y, z))
    assert plan.graph.outputs == ("y", "z")
    assert plan.placements["y.inner"] == Placement(NCHW8, HALO)


def test_concatenation_is_blocked_where_offsets_are_whole_blocks() -> None:
    for channels, layout in ((32, NCHW8), (28, ROW_MAJOR)):
        g = Maker()
        x = g.input("x", 1, 32, 9, 9)
        a = g("conv", x, g.weight("w0", channels, 32, 1, 1), **POINT)
        b = g("conv", x, g.weight("w1", 32, 32, 1, 1), **POINT)
        y = g("concat", a, b, axis=1, name="y")
        y = g("conv", y, g.weight("w2", 32, 32 + channels, 3, 3), **CONV)
        plan = planned(g.graph(g("reduce_mean", y, axes=(2, 3))))
        assert plan.placements["y"].layout == layout


def test_max_pools_ask_for_no_halo() -> None:
    g = Maker()
    x = g.input("x", 1, 8, 8, 8)
    y = g("conv", x, g.weight("w", 8, 8, 1, 1), name="y", **POINT)
    window = {"kernel": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
    plan = planned(g.graph(g("max_pool", y, name="p", **window)))
    assert plan.placements["y"] == Placement(NCHW8)
    assert plan.placements["p.inner"] == Placement(NCHW8)


def test_a_reshape_reads_dense_rows() -> None:
    g = Maker()
    x = g.input("x", 1, 8, 9, 9)
    y = g("conv", x, g.weight("w", 32, 8, 1, 1), name="y", **POINT)
    flat = g("matmul", g("reshape", y, shape=(1, 2592)), g.weight("fc", 2592, 3))
    plan = planned(g.graph(flat, g("conv", y, g.weight("v", 32, 32, 3, 3), **CONV)))
    relayouts = [step for step in plan.kernels if step.workload.operators == ("identity",)]
    assert len(relayouts) == 2  # `y` to rows, and so the second output
    assert plan.placements["y"] == Placement(NCHW8, HALO)
    assert plan.placements["y.relayout"] == Placement()


def test_outputs_that_nothing_computes() -> None:
    g = Maker()
    x = g.input("x", 2, 8)
    c = g.weight("c", 3)
    y = g("relu", x, name="y")
    graph = g.graph(x, c, y, y, g("reshape", x, shape=(16,)), g("reshape", y, shape=(4, 4)))
    plan = planned(graph)
    assert len(set(plan.graph.outputs)) == 6


def test_outputs_that_are_reshapes_of_each_other() -> None:
    for source in ("input", "kernel"):
        g = Maker()
        x = g.input("x", 2, 8)
        first = g("reshape", g("relu", x) if source == "kernel" else x, shape=(16,))
        second = g("reshape", g("reshape", first, shape=(4, 4)), shape=(8, 2))
        plan = planned(g.graph(first, second, g("softmax", second, axis=1)))
        check_memory(plan, plan_memory(plan))


def test_layers_of_attention() -> None:
    g = Maker()
    x = g.input("x", 1, 6, 16)
    heads = []
    for name, perm in (("q", (0, 2, 1, 3)), ("k", (0, 2, 3, 1)), ("v", (0, 2, 1, 3))):
        y = g("add", g("matmul", x, g.weight(f"w{name}", 16, 16)), g.weight(f"b{name}", 16))
        heads.append(g("transpose", g("reshape", y, shape=(1, 6, 2, 8)), perm=perm))
    scores = g("div", g("matmul", heads[0], heads[1]), g.constant("root", 8.0**0.5))
    mixed = g("matmul", g("softmax", scores, axis=3), heads[2])
    merged = g("reshape", g("transpose", mixed, perm=(0, 2, 1, 3)), shape=(1, 6, 16))
    out = g("add", g("matmul", merged, g.weight("wo", 16, 16)), x)
    plan = planned(optimise(g.graph(g("layer_norm", out, axis=2, epsilon=1e-5))))
    assert kernels(plan) == [
        ("matmul",),
        (*("slice", "reshape", "transpose") * 3, "attention", "transpose"),
        ("matmul", "add"),
        ("layer_norm",),
    ]


def test_a_block_may_be_partly_unused() -> None:
    g = Maker()
    x = g.input("x", 1, 16, 9, 9)
    y = g("conv", x, g.weight("w", 62, 16, 1, 1), name="y", **POINT)
    y = g("conv", y, g.weight("v", 64, 62, 3, 3), name="z", **CONV)
    plan = planned(g.graph(g("reduce_mean", y, axes=(2, 3), keepdims=1)), 16)
    assert plan.placements["y"] == Placement(blocked(4, 1, 16), HALO)


def test_same_bytes() -> None:
    one = (1, 16, 1, 1)
    assert same_storage(one, Placement(NCHW8), Placement())
    assert not same_storage((1, 16, 2, 1), Placement(NCHW8), Placement())
    assert not same_storage((1, 12, 1, 1), Placement(NCHW8), Placement())
    assert not same_storage(one, Placement(ROW_MAJOR, HALO), Placement())


def test_malformed_json() -> None:
    data = planned(tower()).to_json()
    with pytest.raises(ArtifactError):
        read_plan({**data, "schema": 99})
    with pytest.raises(ArtifactError):
        read_plan({"schema": data["schema"]})
