"""How threads share kernels: which loops, how evenly, and all of the work once."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graphs import Maker
from tests.kernels import HOST, as_workload, run_workload
from tilewright.compiler.loops.expr import Role, Tensor
from tilewright.compiler.loops.index import Axis
from tilewright.compiler.loops.layout import blocked
from tilewright.compiler.loops.nest import Binding, Compute, For, LoopNest, Store, Tile
from tilewright.compiler.mode import Mode
from tilewright.compiler.ops.interpret import run_graph
from tilewright.compiler.schedule.parallel_loops import parallel_balance, parallelise
from tilewright.compiler.schedule.select import lower_schedule, schedule_space
from tilewright.compiler.schedule.structure import LoopSpec, parallel_stage


@pytest.mark.parametrize(
    ("loops", "threads", "share"),
    [
        ([(6, 1)], 1, 1.0),
        ([(8, 1)], 4, 1.0),
        ([(6, 1)], 4, 6 / 8),
        ([(8, 2)], 4, 1.0),
        ([(9, 2)], 4, 5 / 8),  # the last tile is ragged
        ([(1, 1), (6, 1)], 4, 6 / 8),  # a loop of one iteration vanishes
        ([(2, 1), (64, 1)], 4, 1.0),  # what is inside is split, too
        ([(3, 1), (5, 1)], 4, 15 / 16),
        ([(65, 1), (64, 1)], 4, 65 / 68),  # but not where there are enough
        ([(1, 1)], 4, 1 / 4),
    ],
)
def test_threads_wait_for_those_with_one_tile_more(
    loops: list[tuple[int, int]], threads: int, share: float
) -> None:
    specs = [LoopSpec(Axis(f"a{n}", extent), step) for n, (extent, step) in enumerate(loops)]
    assert parallel_balance(specs, threads) == share


def shared(*loops: tuple[str, int], threads: int) -> str:
    """The axes of the loops that threads share, of loops with so many tiles."""
    i = Axis("i", 4)
    x, y = Tensor("x", (4,)), Tensor("y", (4,), role=Role.OUTPUT)
    compute = Compute((Store(y[i], x[i]),), x[i], unroll=(Tile(i),))
    stage = parallel_stage("s", [LoopSpec(Axis(*loop)) for loop in loops], compute)
    (stage,) = parallelise(LoopNest("k", (x, y), (), (stage,)), threads).stages
    names, (node,) = "", stage.body
    while isinstance(node, For) and node.binding is Binding.PARALLEL:
        names, (node,) = names + node.axis.name, node.body
    return names


def loops_of(channels: int, pixels: int, threads: int) -> list[tuple[str, int, bool]]:
    """Axis, step and whether it is shared of each loop of a map over channels, then pixels."""
    c, p = Axis("c", channels), Axis("p", pixels)
    x, y = Tensor("x", (channels, pixels)), Tensor("y", (channels, pixels), role=Role.OUTPUT)
    compute = Compute((Store(y[c, p], x[c, p]),), x[c, p], unroll=(Tile(p), Tile(c, 4)), vector=c)
    stage = parallel_stage("s", [LoopSpec(c, 4), LoopSpec(p, 7)], compute)
    (stage,) = parallelise(LoopNest("k", (x, y), (), (stage,)), threads).stages
    found, (node,) = [], stage.body
    while isinstance(node, For):
        found.append((node.axis.name, node.step, node.binding is Binding.PARALLEL))
        (node,) = node.body
    return found


def test_threads_share_pixels_if_there_are_more_of_them_than_channels() -> None:
    plain = [("c", 4, True), ("p", 7, False)]
    assert loops_of(24, 196, threads=1) == plain
    assert loops_of(256, 1960, threads=2) == [("p", 245, True), ("c", 4, True), ("p", 7, False)]
    assert loops_of(24, 196, threads=2) == [("p", 49, True), ("c", 4, True), ("p", 7, False)]
    assert loops_of(400, 196, threads=2) == plain
    assert loops_of(8, 14, threads=3) == [("c", 4, True), ("p", 7, True)], "two tiles of pixels"


def test_inner_loops_are_shared_while_outer_ones_have_few_tiles() -> None:
    loops = ("a", 9), ("b", 5), ("c", 7)
    assert shared(*loops, threads=1) == "a"
    assert shared(*loops, threads=2) == "ab"
    assert shared(*loops, threads=8) == "abc"
    assert shared(("a", 64), *loops, threads=4) == "a"
    assert shared(("a", 2), ("a", 2), threads=2) == "a", "tiles of one axis depend on each other"


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("pixels", [(5, 7), (37, 9)])
def test_all_parts_of_shared_kernels_are_computed(pixels: tuple[int, int], threads: int) -> None:
    """An image of channels in blocks, whose halo is written separately: more channels, more
    pixels."""
    g = Maker()
    x = g.input("x", 1, 48, *pixels)
    graph = g.graph(g("conv", x, g.input("w", 48, 1, 3, 3), pads=(1, 1, 1, 1), group=48))
    blocks = blocked(4, 1, 16)
    halo = (0, 0), (0, 0), (1, 1), (1, 1)
    places = {"x": (blocks, halo), graph.outputs[0]: (blocks, halo)}
    workload = as_workload(graph, ["w"], places)
    schedule = schedule_space(workload, Mode(HOST, threads)).default()
    (stage,) = lower_schedule(workload, schedule, Mode(HOST, threads)).nest.stages
    first, *_ = stage.body
    assert isinstance(first, For)
    (inner,) = first.body
    assert isinstance(inner, For)
    assert (inner.binding is Binding.PARALLEL) == (threads > 1)
    assert (first.axis.extent == pixels[0]) == (threads > 1 and pixels == (37, 9))
    random = np.random.default_rng(threads)
    arrays = [
        random.integers(-4, 5, s).astype(np.float32) for s in ((1, 48, *pixels), (48, 1, 3, 3))
    ]
    (expected,) = run_graph(graph, dict(zip("xw", arrays, strict=True)))
    for _ in range(3):
        found = run_workload(workload, schedule, HOST, arrays, random, threads)
        np.testing.assert_array_equal(found, expected)
