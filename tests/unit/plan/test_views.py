"""Concatenations and slices in place: which become views, which are copied, and their results."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.graphs import Maker, random_inputs
from tests.plans import check_memory, planned
from tilewright.compiler.driver import compile_plan
from tilewright.compiler.dtypes import DType
from tilewright.compiler.graph.ir import Graph
from tilewright.compiler.loops.layout import ROW_MAJOR, blocked
from tilewright.compiler.mode import Mode
from tilewright.compiler.ops.interpret import run_graph
from tilewright.compiler.plan.layouts.options import channels_last
from tilewright.compiler.plan.memory import plan_memory
from tilewright.compiler.plan.partition import plan_graph
from tilewright.compiler.plan.placement import Placement
from tilewright.compiler.plan.plan import GraphPlan, ViewStep
from tilewright.compiler.targets.host import resolve_target

CONV = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "group": 1}
POINT = CONV | {"pads": (0, 0, 0, 0)}
LANES = 16
NCHW16, NHWC = blocked(4, 1, LANES), channels_last(4)
HALO = ((0, 0), (0, 0), (1, 1), (1, 1))


def checked(graph: Graph) -> GraphPlan:
    plan = planned(graph, LANES)
    check_memory(plan, plan_memory(plan))
    return plan


def views(plan: GraphPlan) -> dict[str, tuple[int, ...]]:
    """Offsets of the views that are not reshapes, in bytes."""
    return {s.output: s.offsets for s in plan.steps if isinstance(s, ViewStep) and any(s.offsets)}


def copies(plan: GraphPlan) -> int:
    """Kernels that only move data."""
    moves = {("identity",), ("concat",), ("slice",)}
    return sum(step.workload.operators in moves for step in plan.kernels)


def point(g: Maker, x: str, filters: int, name: str = "") -> str:
    weight = g.weight(f"w{len(g.constants)}", filters, g.types[x].shape[1], 1, 1)
    return g("conv", x, weight, name=name, **POINT)


def dense_block(layers: int = 4) -> Graph:
    """Each layer reads all features before it; half of the concatenations name every piece, half
    the previous one and the new features."""
    g = Maker()
    x = point(g, g.input("x", 1, 16, 5, 5), 32, "x0")
    pieces, features = [x], x
    for layer in range(layers):
        scaled = g("mul", features, g.positive(f"s{layer}", g.types[features].shape[1], 1, 1))
        y = point(g, g("relu", scaled), 32)
        y = g("conv", y, g.weight(f"v{layer}", 16, 32, 3, 3), name=f"f{layer}", **CONV)
        pieces.append(y)
        operands = pieces if layer % 2 else [features, y]
        features = g("concat", *operands, axis=1, name=f"c{layer}")
    return g.graph(g("reduce_mean", features, axes=(2, 3), keepdims=1))


def test_a_dense_block_is_one_buffer() -> None:
    plan = checked(dense_block())
    block = 16 * 5 * 5 * 4
    assert views(plan) == {
        "c0": (0, 2 * block),
        "c1": (0, 2 * block, 3 * block),
        "c2": (0, 4 * block),
        "c3": (0, 2 * block, 3 * block, 4 * block, 5 * block),
    }
    memory = plan_memory(plan)
    pieces = ("x0", "f0", "f1", "f2", "f3")
    assert len({memory.roots[v] for v in (*pieces, "c0", "c1", "c2", "c3")}) == 1
    assert copies(plan) == 0


def branches(a: int, b: int, batch: int = 1, size: int = 6) -> tuple[Maker, str, str]:
    g = Maker()
    x = g.input("x", batch, 16, size, size)
    return g, point(g, x, a, "a"), point(g, x, b, "b")


def test_pieces_start_at_whole_blocks() -> None:
    g, a, b = branches(32, 24)
    plan = checked(g.graph(point(g, g("concat", a, b, axis=1, name="y"), 16)))
    assert views(plan) == {"y": (0, 2 * 16 * 36 * 4)}
    # neither at a whole block nor, in rows, at a multiple of 64 bytes
    g, a, b = branches(24, 32, size=5)
    plan = checked(g.graph(point(g, g("concat", a, b, axis=1, name="y"), 16)))
    assert not views(plan) and ("concat",) in [s.workload.operators for s in plan.kernels]


def test_images_of_a_batch_do_not_lie_together() -> None:
    g, a, b = branches(16, 16, batch=2)
    plan = checked(g.graph(point(g, g("concat", a, b, axis=1, name="y"), 16)))
    assert not views(plan)
    g, a, b = branches(16, 16, batch=2)
    plan = checked(g.graph(point(g, g("concat", a, b, axis=0, name="y"), 16)))
    assert views(plan) == {"y": (0, 2 * 16 * 36 * 4)}


def test_what_cannot_lie_in_place_is_copied_alone() -> None:
    g, a, b = branches(16, 16)
    given = g.input("given", 1, 16, 6, 6)
    fixed = g.weight("fixed", 1, 16, 6, 6)
    y = g("concat", given, a, fixed, a, b, axis=1, name="y")
    plan = checked(g.graph(point(g, y, 16)))
    block = 16 * 36 * 4
    assert views(plan) == {"y": (0, block, 2 * block, 3 * block, 4 * block)}
    assert [s.inputs for s in plan.steps if s.output == "y"] == [
        ("y.piece", "a", "y.piece.2", "y.piece.3", "b")
    ]
    assert copies(plan) == 4  # three pieces, the output to rows


def test_a_value_lies_in_one_place() -> None:
    g, a, b = branches(16, 16)
    first = point(g, g("concat", a, b, axis=1, name="ab"), 16)
    second = point(g, g("concat", b, a, axis=1, name="ba"), 16)
    plan = checked(g.graph(g("add", first, second)))
    # a, b and a copy of a lie side by side
    assert set(views(plan)) == {"ab", "ba"} and copies(plan) == 2
    assert plan_memory(plan).offsets["ba"] == plan_memory(plan).offsets["b"]


def test_overlapping_concatenations() -> None:
    g, a, b = branches(16, 16)
    c = point(g, "x", 16, "c")
    first = point(g, g("concat", a, b, axis=1, name="ab"), 16)
    second = point(g, g("concat", b, c, axis=1, name="bc"), 16)
    plan = checked(g.graph(g("add", first, second)))
    assert set(views(plan)) == {"ab", "bc"} and copies(plan) == 1


def test_outputs_and_inputs_are_the_callers() -> None:
    g = Maker()
    x = g.input("x", 4, 32)
    rows = [g("matmul", x, g.weight(f"w{i}", 32, 32)) for i in range(2)]
    part = g("slice", x, starts=(2, 0), steps=(1, 1), sizes=(2, 32))
    last = g("concat", *rows, axis=0)
    plan = checked(g.graph(last, g("matmul", part, g.weight("v", 32, 32))))
    assert not views(plan) and copies(plan) == 2


HALVES = [
    {"starts": (0, start, 0, 0), "steps": (1, 1, 1, 1), "sizes": (1, size, 6, 6)}
    for start, size in ((0, 16), (16, 16), (16, 8), (8, 16))
]


def test_channels_split_by_whole_blocks() -> None:
    """A unit of ShuffleNet V2 (Ma et al., 2018), whose second half goes through a branch."""
    g = Maker()
    x = point(g, g.input("x", 1, 16, 6, 6), 32, "x0")
    kept, used = (g("slice", x, name=f"half{i}", **HALVES[i]) for i in range(2))
    branch = g("conv", used, g.weight("v", 16, 16, 3, 3), name="branch", **CONV)
    y = g("concat", kept, branch, axis=1, name="y")
    plan = checked(g.graph(point(g, y, 16)))
    block = 16 * 36 * 4
    assert views(plan)["y"] == (0, block)
    assert copies(plan) == 2  # the kept half, and the used one with its halo
    part = checked(g.graph(point(g, g("slice", x, name="part", **HALVES[2]), 16)))
    assert part.placements["part"].layout == ROW_MAJOR  # 8 channels of 16 lanes
    part = checked(g.graph(point(g, g("slice", x, name="shifted", **HALVES[3]), 16)))
    assert views(part) == {"shifted": (-8 * 36 * 4,)}  # in rows, where 64 bytes are enough
    assert part.placements["shifted"].layout == ROW_MAJOR


def test_pieces_with_and_without_halos() -> None:
    g, a, b = branches(16, 16)
    padded = g("conv", a, g.weight("v", 16, 16, 3, 3), **CONV)
    y = g("concat", a, b, axis=1, name="y")
    plan = checked(g.graph(point(g, y, 16), padded))
    assert all(plan.placements[v] == Placement(NCHW16, HALO) for v in ("a", "b", "y"))
    assert views(plan) == {"y": (0, 16 * 64 * 4)}
    # zeros around 256 channels cost more than a copy of 16 of them
    g, a, b = branches(16, 240)
    padded = g("conv", a, g.weight("v", 16, 16, 3, 3), **CONV)
    y = g("concat", a, b, axis=1, name="y")
    plan = checked(g.graph(point(g, y, 16), padded))
    assert all(plan.placements[v] == Placement(NCHW16) for v in ("a", "b", "y"))
    assert plan.placements["a.relayout"] == Placement(NCHW16, HALO)


def test_rows_that_a_halo_would_tear_apart() -> None:
    g = Maker()
    x = g.input("x", 1, 1, 8, 16)
    tops = [g("relu", g("mul", x, g.constant(f"k{i}", float(i)))) for i in (1, 2)]
    y = g("concat", *tops, axis=2, name="y")
    plan = checked(g.graph(g("conv", y, g.weight("w", 1, 1, 3, 3), **CONV)))
    assert plan.placements["y"] == Placement() and views(plan) == {"y": (0, 512)}


def test_a_reshape_of_a_piece_lies_there_too() -> None:
    g = Maker()
    x = g.input("x", 4, 32)
    rows = [g("matmul", x, g.weight(f"w{i}", 32, 32)) for i in range(3)]
    y = g("concat", g("reshape", rows[0], shape=(8, 16)), g("reshape", rows[1], shape=(8, 16)),
          axis=0, name="y")  # fmt: skip
    z = g("concat", g("reshape", y, shape=(8, 32)), rows[2], axis=0, name="z")
    plan = checked(g.graph(g("matmul", z, g.weight("v", 32, 8))))
    assert views(plan) == {"y": (0, 512), "z": (0, 1024)} and copies(plan) == 0


def test_another_reshape_of_an_output() -> None:
    g = Maker()
    x = g.input("x", 4, 32)
    y = g("matmul", x, g.weight("w", 32, 32))
    other = g("matmul", x, g.weight("u", 32, 32))
    wide = g("concat", g("reshape", y, shape=(2, 64)), g("reshape", other, shape=(2, 64)), axis=0)
    plan = checked(g.graph(g("reshape", y, shape=(8, 16)), g("matmul", wide, g.weight("v", 64, 8))))
    assert views(plan)[wide] == (0, 512) and copies(plan) == 1


def grow(g: Maker, draw: st.DrawFn, values: list[str]) -> str:
    """One more value from channels that are there."""
    pick = st.sampled_from(values)
    x = draw(pick)
    channels = g.types[x].shape[1]
    number = f"k{len(g.constants)}"
    match draw(
        st.sampled_from(["point", "padded", "relu", "concat", "concat", "slice", "turn", "rows"])
    ):
        case "point":
            return point(g, x, draw(st.sampled_from([16, 24, 32])))
        case "padded":
            return g("conv", x, g.weight(number, 16, channels, 3, 3), **CONV)
        case "concat":
            operands = draw(st.lists(pick, min_size=2, max_size=4))
            return g("concat", *operands, axis=1)
        case "slice" if channels >= 32:
            start = draw(st.sampled_from([0, 16, channels - 16]))
            ones = (1, 1, 1, 1)
            return g("slice", x, starts=(0, start, 0, 0), steps=ones, sizes=(1, 16, 4, 4))
        case "turn":
            flat = g("reshape", x, shape=(1, channels, 16, 1))
            return g("reshape", flat, shape=(1, channels, 4, 4))
        case "rows":
            rows = g("transpose", x, perm=(0, 2, 3, 1))
            if draw(st.booleans()):
                scale, bias = g.weight(number, channels), g.weight(f"{number}.b", channels)
                rows = g("layer_norm", rows, scale, bias, axis=3, epsilon=1e-5)
            if draw(st.booleans()):
                rows = g("matmul", rows, g.weight(f"{number}.w", channels, channels))
            return g("transpose", rows, perm=(0, 3, 1, 2))
    return g("relu", x)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    g = Maker()
    values = [g.input("x", 1, 16, 4, 4)]
    for _ in range(draw(st.integers(2, 12))):
        values.append(grow(g, draw, values))
        if g.types[values[-1]].shape[1] > 256:
            values.pop()
    outputs = draw(st.lists(st.sampled_from(values[1:] or values), min_size=1, max_size=2))
    return g.graph(*dict.fromkeys(outputs), g("reduce_mean", values[-1], axes=(2, 3), keepdims=1))


@pytest.mark.parametrize("order", ["ab", "ba", "bar", "rba", "bba", "br"])
def test_outputs_that_are_reshapes_of_each_other(order: str) -> None:
    """In any order, and for each chain of reshapes between them."""
    g = Maker()
    r = g("relu", g.input("x", 1, 16, 4, 4))
    a = g("reshape", r, shape=(16, 16))
    values = {"r": r, "a": a, "b": g("reshape", a, shape=(256,))}
    plan = checked(g.graph(*(values[letter] for letter in order)))
    assert copies(plan) == len(order) - 1


ROWS, IMAGE = {"perm": (0, 2, 3, 1)}, {"perm": (0, 3, 1, 2)}


def depthwise(g: Maker, x: str, channels: int) -> str:
    weight = g.weight(f"w{len(g.constants)}", channels, 1, 3, 3)
    return g("conv", x, weight, **CONV | {"group": channels})


def normalised_rows(channels: int = 32) -> Graph:
    """A block of ConvNeXt: a window, a layer norm along channels and a product, then an image."""
    g = Maker()
    x = point(g, g.input("x", 1, 16, 4, 4), channels, "x0")
    rows = g("transpose", depthwise(g, x, channels), **ROWS, name="rows")
    scale, bias = g.positive("s", channels), g.weight("b", channels)
    rows = g("layer_norm", rows, scale, bias, axis=3, epsilon=1e-5)
    image = g("transpose", g("matmul", rows, g.weight("m", channels, channels)), **IMAGE, name="im")
    return g.graph(g("reduce_mean", depthwise(g, g("add", x, image), channels), axes=(2, 3)))


def test_rows_of_channels_are_the_bytes_of_an_image_that_lies_channels_last() -> None:
    plan = checked(normalised_rows())
    held = {step.output: step.inputs for step in plan.steps if isinstance(step, ViewStep)}
    assert held.keys() == {"rows", "im"}
    assert plan.placements["im"].layout == plan.placements[held["rows"][0]].layout == NHWC
    operators = [step.workload.operators for step in plan.kernels]
    assert ("layer_norm",) in operators and ("matmul",) in operators
    assert not any("transpose" in each for each in operators)


def test_rows_that_the_graph_is_given_or_returns_are_copied_where_they_must() -> None:
    """The caller's buffers have the caller's layout: rows lie in one as an image channels-last,
    but an image does not lie in rows, and a kernel writes each returned value."""
    g = Maker()
    x, y = g.input("x", 1, 16, 4, 4), g.input("y", 1, 4, 4, 16)
    rows = g("transpose", depthwise(g, x, 16), **ROWS)
    image = g("transpose", y, **IMAGE, name="image")
    given = g("exp", g("transpose", g("relu", x), **ROWS))
    plan = checked(g.graph(rows, g("reduce_mean", point(g, image, 16), axes=(2, 3)), given))
    assert [s.output for s in plan.steps if isinstance(s, ViewStep)] == ["image"]


def test_transposes_that_no_window_is_near_are_index_maps() -> None:
    g = Maker()
    x = g.input("x", 1, 16, 4, 4)
    rows = g("transpose", g("exp", x), **ROWS)
    plan = checked(g.graph(g("matmul", rows, g.weight("m", 16, 16))))
    assert [step.workload.operators for step in plan.kernels] == [("exp",), ("transpose", "matmul")]


@settings(max_examples=examples(120))
@given(graphs())
def test_random_graphs(graph: Graph) -> None:
    checked(graph)


def unit() -> Graph:
    """Slices, copies and pieces with halos, one in another's place."""
    g = Maker()
    x = point(g, g.input("x", 1, 16, 6, 6), 32, "x0")
    kept, used = (g("slice", x, **HALVES[i]) for i in range(2))
    branch = g("relu", g("conv", used, g.weight("v", 16, 16, 3, 3), **CONV))
    y = g("concat", kept, branch, "x", axis=1)
    z = g("concat", y, g("conv", y, g.weight("u", 24, 48, 3, 3), **CONV), axis=1)
    return g.graph(g("relu", point(g, z, 16)), g("reduce_mean", z, axes=(2, 3), keepdims=1))


@pytest.mark.parametrize("make", [dense_block, unit, normalised_rows])
def test_compiled(make: Callable[[], Graph]) -> None:
    graph = make()
    target = resolve_target("host")
    executable = compile_plan(plan_graph(graph, target.lanes(DType.FLOAT32)), None, Mode(target))
    inputs = random_inputs(graph)
    for found, expected in zip(executable.run(inputs), run_graph(graph, inputs), strict=True):
        # sums of at most a few thousand products of numbers near 1
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
