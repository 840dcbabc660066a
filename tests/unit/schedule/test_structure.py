"""Common parts of templates: edges, and pieces of pads and concatenations."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graphs import Maker
from tests.kernels import HOST, as_workload, run_workload
from tests.nests.evaluate import pack_tensor, physical_offsets, run_nest
from tests.unit.schedule.problems import conv
from tilewright.compiler.codegen.cpu.lower import lower_nest
from tilewright.compiler.loops.expr import Tensor
from tilewright.compiler.loops.index import Axis
from tilewright.compiler.loops.layout import blocked
from tilewright.compiler.loops.nest import Tile
from tilewright.compiler.mode import Mode
from tilewright.compiler.ops.interpret import run_graph
from tilewright.compiler.schedule.select import lower_schedule, schedule_space
from tilewright.compiler.schedule.structure import aligned, edges
from tilewright.compiler.schedule.templates import contraction_analysis
from tilewright.compiler.targets.host import resolve_target


@pytest.mark.parametrize(("with_halo", "expected"), [(True, (1, 2)), (False, (2, 4))])
def test_a_halo_shortens_the_edges(with_halo: bool, expected: tuple[int, int]) -> None:
    c, i, k = Axis("c", 4), Axis("i", 9), Axis("k", 7)
    x = Tensor("x", (4, 9), halo=((0, 0), (1, 2)))
    assert edges(x[c, i + k - 2], i, with_halo=with_halo) == expected


@pytest.mark.parametrize("offset", [0, 1, 3])
@pytest.mark.parametrize("width", [1, 4, 5, 6])
@pytest.mark.parametrize("step", [2, 4, 6, 8, 12])
def test_a_tile_is_aligned_if_all_starts_are_in_one_block(
    step: int, width: int, offset: int
) -> None:
    block, i, k = 8, Axis("i", 4), Axis("k", width)
    x = Tensor("x", (64,), layout=blocked(1, 0, block))
    tiles = [range(step * start + offset, step * start + offset + width) for start in range(4)]
    inside = all(len({element // block for element in tile}) == 1 for tile in tiles)
    assert aligned(x[step * i + k + offset], {k: width}, Tile(i, 1)) is inside


@pytest.mark.parametrize("block", [4, 8, 16, 32])
@pytest.mark.parametrize("name", ["x86-64-v2", "x86-64-v3", "x86-64-v4"])
def test_a_halo_is_written_in_blocks_of_any_width(name: str, block: int) -> None:
    """48 channels: the last of four vectors may lie in another block, or outside the tensor."""
    shape, halo = (1, 48, 2, 3), ((0, 0), (0, 0), (1, 1), (1, 1))
    place = blocked(4, 1, block), halo
    g = Maker()
    x, w = g.input("x", *shape), g.input("w", 48, 1, 3, 3)
    graph = g.graph(g("conv", x, w, pads=(1, 1, 1, 1), group=48))
    workload = as_workload(graph, ["w"], {"x": place, graph.outputs[0]: place})
    mode = Mode(resolve_target(name))
    nest = lower_schedule(workload, schedule_space(workload, mode).default(), mode).nest
    assert lower_nest(nest, mode.target)
    buffers = [pack_tensor(t, np.ones(t.shape, np.float32)) for t in nest.buffers]
    buffers[-1][:] = 7
    run_nest(nest, buffers)
    output = nest.buffers[-1]
    extents = (range(1), range(48), range(-1, 3), range(-1, 4))
    points = np.stack(np.meshgrid(*extents, indexing="ij"))
    found = buffers[-1].reshape(-1)[physical_offsets(output, points)]
    expected = np.zeros((1, 48, 4, 5), np.float32)
    expected[:, :, 1:-1, 1:-1] = 4  # corners of the image
    expected[:, :, 1:-1, 2] = 6
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("group", [2, 4])
def test_lanes_are_channels_of_one_group(group: int) -> None:
    found = contraction_analysis.analyse(conv(16, filters=64, group=group))
    assert found is not None and found.lanes_are_one_group
    assert found.lanes.extent == 64 // group


@pytest.mark.parametrize("more", [{}, {"value": 2.5}])
def test_what_is_padded_is_zero_unless_it_is_said(more: dict[str, float]) -> None:
    g = Maker()
    graph = g.graph(g("pad", g.input("x", 3, 5), pads=(1, 0, 0, 2), **more))
    workload = as_workload(graph)
    x = np.arange(15, dtype=np.float32).reshape(3, 5)
    (expected,) = run_graph(graph, {"x": x})
    assert expected[0, 0] == more.get("value", 0.0)
    for schedule in schedule_space(workload, Mode(HOST)):
        found = run_workload(workload, schedule, HOST, [x], np.random.default_rng(0))
        np.testing.assert_array_equal(found, expected)
