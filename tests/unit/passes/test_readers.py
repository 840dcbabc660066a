"""Partitions with readers of every kind of one value: each computes the graph's results.

The forms that a reader accepts (rows, blocks, channels-last, any layout) and the forms that its
producer offers decide how the layouts are chosen. Here all pairs are tried;
`tests/differential/test_readers.py` generates readers of all operators.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations_with_replacement

import numpy as np
import pytest

from tests.graphs import Maker, random_inputs
from tilewright.compiler.driver import compile_plan
from tilewright.compiler.dtypes import DType
from tilewright.compiler.graph.ir import AttrValue, Graph
from tilewright.compiler.mode import Mode
from tilewright.compiler.ops.interpret import run_graph
from tilewright.compiler.plan.partition import plan_graph
from tilewright.compiler.targets.host import resolve_target

CONV: dict[str, AttrValue] = {
    "strides": (1, 1),
    "pads": (1, 1, 1, 1),
    "dilations": (1, 1),
    "group": 1,
}
POINT: dict[str, AttrValue] = CONV | {"pads": (0, 0, 0, 0)}
POOL: dict[str, AttrValue] = {
    "kernel": (3, 3),
    "strides": (1, 1),
    "pads": (1, 1, 1, 1),
    "dilations": (1, 1),
}
LANES = 16
CHANNELS = (32, 24, 3)
"""Whole blocks of a vector, of half of one, and none."""

Step = Callable[[Maker, str], str]


def convolved(g: Maker, x: str) -> str:
    count = g.types[x].shape[1]
    return g("conv", x, g.weight(f"w{len(g.constants)}", count, count, 3, 3), name="", **CONV)


def pointwise(g: Maker, x: str) -> str:
    count = g.types[x].shape[1]
    return g("conv", x, g.weight(f"w{len(g.constants)}", count, count, 1, 1), name="", **POINT)


def gathered(axis: int) -> Step:
    def step(g: Maker, x: str) -> str:
        return g("gather", x, g.constant(f"i{len(g.constants)}", np.array([1, 0])), axis=axis)

    return step


def multiplied(g: Maker, x: str) -> str:
    return g("matmul", x, g.weight(f"w{len(g.constants)}", g.types[x].shape[3], 5))


MAKERS: dict[str, Step] = {
    "relu": lambda g, x: g("relu", x),
    "mul": lambda g, x: g("mul", x, x),
    "conv": convolved,
    "1x1 conv": pointwise,
    "max_pool": lambda g, x: g("max_pool", x, name="", **POOL),
    "mean": lambda g, x: g("reduce_mean", x, axes=(3,), keepdims=True),
    "transpose": lambda g, x: g("transpose", x, perm=(0, 1, 3, 2)),
}
READERS: dict[str, Step] = {
    **MAKERS,
    **{f"gather of {axis}": gathered(axis) for axis in range(1, 4)},
    "softmax": lambda g, x: g("softmax", x, axis=3),
    "reshape": lambda g, x: g("reshape", x, shape=(1, g.types[x].elements)),
    "concat": lambda g, x: g("concat", x, x, axis=1),
    "slice": lambda g, x: g(
        "slice", x, starts=(0, 1, 0, 0), sizes=(1, 2, 1, 1), steps=(1, 1, 1, 1)
    ),
    "matmul": multiplied,
}
PAIRS = tuple(combinations_with_replacement(READERS, 2))


def read_by(maker: str, channels: int, *readers: str) -> Graph:
    """A value that these nodes read, each for an output of the graph."""
    g = Maker()
    made = MAKERS[maker](g, g.input("x", 1, channels, 6, 6))
    return g.graph(*(READERS[reader](g, made) for reader in readers))


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("channels", CHANNELS)
def test_all_pairs_of_readers_have_a_plan(maker: str, channels: int) -> None:
    """Also with three readers."""
    for first, second in PAIRS:
        plan_graph(read_by(maker, channels, first, second), LANES)
        plan_graph(read_by(maker, channels, first, second, "gather of 2"), LANES)


@pytest.mark.parametrize("maker", MAKERS)
def test_readers_of_every_kind_get_the_value(maker: str) -> None:
    """All readers at once, so that each copy that a plan makes has a reader."""
    target = resolve_target("host")
    for channels in CHANNELS:
        for readers in (tuple(READERS), ("gather of 2", "gather of 3"), ("gather of 1", "relu")):
            graph = read_by(maker, channels, *readers)
            inputs = random_inputs(graph)
            plan = plan_graph(graph, target.lanes(DType.FLOAT32))
            found, expected = (
                compile_plan(plan, None, Mode(target)).run(inputs),
                run_graph(graph, inputs),
            )
            for a, b in zip(found, expected, strict=True):
                difference = float(np.abs(np.subtract(a, b)).max())
                assert difference <= 2e-4 * max(1.0, float(np.abs(b).max()))
