"""The estimated costs of layouts, and the layouts offered: the numbers behind the choice."""

from __future__ import annotations

from typing import Any

import pytest

from tests.graphs import Maker
from tilewright.compiler.dtypes import DType
from tilewright.compiler.graph.ir import Graph, Node
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.loops.layout import MAX_LANE_STEP, ROW_MAJOR, Layout, blocked
from tilewright.compiler.plan.fusion import Group, fuse
from tilewright.compiler.plan.layouts import costs
from tilewright.compiler.plan.layouts.options import Options, channels_last, conv_halo

NCHW16, NCHW8, NHWC = blocked(4, 1, 16), blocked(4, 1, 8), channels_last(4)
PLAIN = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), "group": 1}


def made(shape: tuple[int, ...], weight: tuple[int, ...], **attrs: Any) -> tuple[Graph, Node]:
    g = Maker()
    graph = g.graph(g("conv", g.input("x", *shape), g.weight("w", *weight), **(PLAIN | attrs)))
    return graph, graph.nodes[0]


def work(graph: Graph, node: Node) -> float:
    """Multiplications and additions."""
    weight = graph.types[node.inputs[1]].shape
    return 2.0 * graph.types[node.output].elements * weight[1] * weight[2] * weight[3]


@pytest.mark.parametrize(
    ("channels", "layout", "bytes_"),
    [
        (32, ROW_MAJOR, 32 * 25 * 4),
        (32, NCHW16, 32 * 25 * 4),  # a block of 16 float32 is a cache line
        (32, NCHW8, 32 * 25 * 4),  # two blocks are one: none crosses from one line to the next
        (32, NHWC, 32 * 25 * 4),
        (24, NHWC, 1.25 * 24 * 25 * 4),
        (20, NCHW16, 32 * 25 * 4),  # the last block is stored whole
    ],
)
def test_moving_a_value_takes_its_bytes(channels: int, layout: Layout, bytes_: float) -> None:
    kind = TensorType(DType.FLOAT32, (1, channels, 5, 5))
    assert costs.moved(kind, layout) == 2.0 * bytes_


@pytest.mark.parametrize(
    ("source", "output", "factor"),
    [
        (NCHW16, NCHW16, 1.0),
        (ROW_MAJOR, NCHW16, 1.05),
        (ROW_MAJOR, ROW_MAJOR, 1.05),
        (NCHW16, ROW_MAJOR, 1.15),
    ],
)
def test_a_pointwise_convolution_reads_pixels_or_channels(
    source: Layout, output: Layout, factor: float
) -> None:
    graph, node = made((1, 64, 8, 8), (64, 64, 1, 1))
    assert costs.convolution(graph, node, source, output, 16) == factor * work(graph, node)
    if output == ROW_MAJOR:  # 15 pixels are filled up to 16
        graph, node = made((1, 64, 3, 5), (64, 64, 1, 1))
        found = costs.convolution(graph, node, source, output, 16)
        assert found == pytest.approx(factor * work(graph, node) * 16 / 15)


@pytest.mark.parametrize("step", [1, 2, MAX_LANE_STEP, MAX_LANE_STEP + 1])
def test_rows_are_gathered_at_a_stride(step: int) -> None:
    graph, node = made((1, 8, 64, 64), (8, 8, 5, 5), strides=(1, step), pads=(2, 2, 2, 2))
    columns = graph.types[node.output].shape[-1]
    filled = -(-columns // 8) * 8 / columns
    factor = {1: 1.1}.get(step, 1.6 if step <= MAX_LANE_STEP else 10.0)
    found = costs.convolution(graph, node, ROW_MAJOR, ROW_MAJOR, 16)
    assert found == pytest.approx(work(graph, node) * factor * filled)
    mixed = costs.convolution(graph, node, NCHW8, ROW_MAJOR, 16)
    assert mixed == pytest.approx(work(graph, node) * 10.0 * filled)
    # blocks of half a vector are not Winograd's
    assert costs.convolution(graph, node, ROW_MAJOR, NCHW8, 16) == work(graph, node)


def test_a_depthwise_convolution_keeps_its_layout() -> None:
    graph, node = made((1, 32, 20, 20), (32, 1, 3, 3), group=32, strides=(1, 2), pads=(1,) * 4)
    whole = work(graph, node)
    assert costs.convolution(graph, node, NCHW16, NCHW16, 16) == whole
    assert costs.convolution(graph, node, NCHW16, ROW_MAJOR, 16) == 10.0 * whole
    found = costs.convolution(graph, node, ROW_MAJOR, ROW_MAJOR, 16)
    assert found == pytest.approx(whole * 1.6 * 16 / 10)


def saved(channels: int, pixels: int, *size: int, **attrs: Any) -> float:
    """The share of a direct convolution that Winograd's algorithm is taken to cost."""
    pads = tuple(s // 2 for s in size) * 2
    graph, node = made(
        (1, channels, pixels, pixels), (channels, channels, *size), pads=pads, **attrs
    )
    direct = work(graph, node)
    return costs.convolution(graph, node, NCHW16, NCHW16, 16) / direct


def test_winograds_algorithm_saves_multiplications() -> None:
    # F(4x4, 3x3) has 36 where there were 144: a quarter, and transforms in addition
    assert 0.25 < saved(256, 56, 3, 3) < 0.35
    assert 0.5 < saved(256, 56, 3, 1) < 0.6  # F(4, 3) along one dimension: 6 instead of 12
    assert saved(256, 56, 3, 1) == saved(256, 56, 1, 3)
    # two taps a phase at stride 2: F(4, 2) has 5 + 4 - 0 products where there were 12
    assert saved(256, 56, 3, 3) < saved(256, 56, 3, 3, strides=(2, 2)) < 1.0


def test_winograds_algorithm_saves_less_where_transforms_or_weights_weigh() -> None:
    assert saved(16, 56, 3, 3) > saved(64, 56, 3, 3) > saved(256, 56, 3, 3)
    assert saved(256, 7, 3, 3) > saved(256, 14, 3, 3) > saved(256, 28, 3, 3)
    assert saved(512, 4, 3, 3) <= 1.0


@pytest.mark.parametrize(
    ("dtype", "sums", "share"),
    [(DType.UINT8, DType.INT32, 0.25), (DType.BFLOAT16, DType.FLOAT32, 0.5)],
)
def test_narrow_channels_that_lie_together_are_multiplied_together(
    dtype: DType, sums: DType, share: float
) -> None:
    g = Maker()
    x, w = (g.input(n, *s, dtype=dtype) for n, s in (("x", (1, 64, 8, 8)), ("w", (64, 64, 1, 1))))
    y = g(
        "conv", x, w, strides=(1, 1), pads=(0,) * 4, dilations=(1, 1), group=1,
        accumulator=sums.value,
    )  # fmt: skip
    graph = g.graph(y)
    (node,) = graph.nodes
    assert costs.convolution(graph, node, NCHW16, NCHW16, 16) == share * work(graph, node)
    assert costs.convolution(graph, node, ROW_MAJOR, NCHW16, 16) == 1.05 * work(graph, node)


def test_winograds_algorithm_is_not_for_every_convolution() -> None:
    assert saved(64, 56, 1, 1) == 1.0
    assert saved(64, 56, 3, 3, dilations=(2, 2)) == 1.0
    assert saved(64, 56, 7, 7) == 1.0  # points of 8 taps and more lose digits
    assert saved(64, 56, 5, 5) < 1.0
    assert saved(256, 56, 3, 3, strides=(3, 3)) == 1.0  # one tap a phase
    graph, node = made((1, 64, 56, 56), (64, 32, 3, 3), group=2, pads=(1,) * 4)
    assert costs.convolution(graph, node, NCHW16, NCHW16, 16) == work(graph, node)


@pytest.mark.parametrize(
    ("layout", "attrs", "factor"),
    [
        (NCHW16, {}, 1.0),
        (NCHW16, {"pads": (1, 1, 1, 1)}, 1.0),
        (ROW_MAJOR, {}, 1.2 * 1.1 * 16 / 15),
        (ROW_MAJOR, {"strides": (2, 1)}, 1.2 * 1.1 * 16 / 15),
        (ROW_MAJOR, {"strides": (1, 2)}, 1.2 * 1.6 * 8 / 8),
        (ROW_MAJOR, {"pads": (1, 0, 1, 0)}, 1.2 * 1.1 * 16 / 15),
    ],
)
def test_a_pool_reads_rows_or_channels(layout: Layout, attrs: Any, factor: float) -> None:
    g = Maker()
    window = {"kernel": (2, 2), "strides": (1, 1), "pads": (0,) * 4, "dilations": (1, 1)}
    graph = g.graph(g("max_pool", g.input("x", 1, 32, 9, 16), **(window | attrs)))
    (node,) = graph.nodes
    found = costs.window(graph, node, layout, 16)
    assert found == pytest.approx(3.0 * graph.types[node.output].elements * 4 * factor)


@pytest.mark.parametrize(
    ("layout", "attrs"),
    [
        (ROW_MAJOR, {"kernel": (3, 3), "pads": (0, 1, 0, 0)}),
        (ROW_MAJOR, {"kernel": (3, 3), "pads": (0, 0, 0, 1)}),
        (ROW_MAJOR, {"kernel": (9, 9), "pads": (4,) * 4}),
        (NCHW16, {"kernel": (9, 9), "pads": (4,) * 4}),
        (NCHW16, {"kernel": (9, 9)}),
    ],
)
def test_a_padded_row_or_a_large_window_takes_two_passes(layout: Layout, attrs: Any) -> None:
    """Work of k by k taps is that of 2 k, and each line costs something before it begins."""
    g = Maker()
    window = {"strides": (1, 1), "pads": (0,) * 4, "dilations": (1, 1)} | attrs
    graph = g.graph(g("max_pool", g.input("x", 1, 32, 64, 64), **window))
    (node,) = graph.nodes
    shape, taps = graph.types[node.output].shape, window["kernel"][0]
    lines = 32 * shape[2]
    passes = lines * (800 + 3 * 64 * (taps + 1) + 3 * shape[3] * taps)
    found = costs.window(graph, node, layout, 16)
    assert passes <= found < 1.5 * passes


def test_a_window_along_channels_reads_rows() -> None:
    g = Maker()
    x = g.input("x", 1, 32, 4, 4)
    graph = g.graph(g("lrn", x, size=3, alpha=1e-4, beta=0.75, bias=1.0))
    found = [costs.window(graph, graph.nodes[0], layout, 16) for layout in (ROW_MAJOR, NCHW16)]
    assert found == [60.0 * 512, 450.0 * 512]


def test_a_sum_over_pixels_has_channels_as_lanes() -> None:
    g = Maker()
    graph = g.graph(g("reduce_mean", g.input("x", 1, 32, 4, 4), axes=(2, 3), keepdims=1))
    (node,) = graph.nodes
    assert costs.reduction(graph, node, ROW_MAJOR) == 1.2 * costs.reduction(graph, node, NCHW16)
    assert costs.reduction(graph, node, NCHW16) == 512


@pytest.mark.parametrize(
    ("attrs", "halo"),
    [
        ({}, ()),
        ({"pads": (1, 1, 1, 1)}, ((0, 0), (0, 0), (1, 1), (1, 1))),
        ({"pads": (2, 0, 1, 0)}, ((0, 0), (0, 0), (2, 1), (0, 0))),
        # the last window ends before the padding
        ({"pads": (1, 1, 1, 1), "strides": (2, 3)}, ((0, 0), (0, 0), (1, 0), (1, 0))),
        ({"pads": (2, 2, 2, 2), "dilations": (2, 1)}, ((0, 0), (0, 0), (2, 2), (2, 2))),
    ],
)
def test_the_zeros_around_an_operand(attrs: Any, halo: Any) -> None:
    graph, node = made((1, 4, 8, 8), (4, 4, 3, 3), **attrs)
    assert conv_halo(graph, node) == halo


# layouts that are offered


def offers(graph: Graph, copied: tuple[str, ...] = ()) -> list[tuple[set[Layout], Group]]:
    options = Options(graph, 16, frozenset(copied))
    return [({o.choice.output for o in options.of(group)}, group) for group in fuse(graph)]


def free(graph: Graph, copied: tuple[str, ...] = ()) -> set[Layout]:
    """The layouts in which the last group costs nothing."""
    options = Options(graph, 16, frozenset(copied))
    found = options.of(fuse(graph)[-1])
    return {option.choice.output for option in found if option.cost == 0.0}


def joined(sizes: tuple[int, int], copied: bool = False) -> set[Layout]:
    g = Maker()
    x, y = (g.input(n, 1, size, 4, 4) for n, size in zip("xy", sizes, strict=True))
    graph = g.graph(g("concat", x, y, axis=1, name="z"))
    return free(graph, ("z",) if copied else ())


def test_a_concatenation_is_free_where_its_parts_lie_in_place() -> None:
    assert joined((32, 16)) == {ROW_MAJOR, NCHW16}
    assert joined((32, 16), copied=True) == set()
    g = Maker()
    rows = g.graph(g("concat", g.input("x", 1, 16, 4, 4), g.input("y", 1, 16, 4, 4), axis=3))
    assert free(rows) == set()
    # a part that starts in the middle of a cache line is copied
    g = Maker()
    graph = g.graph(g("concat", g.input("x", 1, 3, 1, 1), g.input("y", 1, 5, 1, 1), axis=1))
    assert free(graph) == set()


def cut(start: int, size: int, *, step: int = 1, copied: bool = False, then: str = "") -> Any:
    g = Maker()
    x = g.input("x", 1, 64, 4, 4)
    part = g("slice", x, starts=(0, start, 0, 0), steps=(1, step, 1, 1), sizes=(1, size, 4, 4),
             name="part")  # fmt: skip
    graph = g.graph(g(then, part) if then else part)
    ((layouts, _),) = offers(graph, ("part",) if copied else ())
    return layouts, free(graph, ("part",) if copied else ())


def test_a_slice_of_whole_blocks_keeps_them() -> None:
    assert cut(16, 32) == ({ROW_MAJOR, NCHW16}, {ROW_MAJOR, NCHW16})
    assert cut(16, 32, copied=True) == ({ROW_MAJOR, NCHW16}, set())
    assert cut(8, 32)[0] == {ROW_MAJOR}
    assert cut(16, 16, step=2)[0] == {ROW_MAJOR}
    assert cut(16, 32, then="relu") == ({ROW_MAJOR, NCHW16}, set())


def test_a_convolution_without_attributes_reads_no_zeros() -> None:
    g = Maker()
    graph = g.graph(g("conv", g.input("x", 1, 4, 8, 8), g.weight("w", 4, 4, 3, 3)))
    assert conv_halo(graph, graph.nodes[0]) == ()
    assert costs.convolution(graph, graph.nodes[0], NCHW8, NCHW8, 16) == work(graph, graph.nodes[0])
