"""Windows over open batches and images, and pieces of open extents, mean their workloads."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import pytest

from tests.graphs import Maker
from tests.unit.schedule.dynamic_nests import (
    SIZES,
    TARGET,
    Build,
    assert_right,
    dynamic_workload,
    schedules,
)
from tilewright.compiler.errors import ScheduleError
from tilewright.compiler.graph.ir import AttrValue
from tilewright.compiler.loops.layout import ROW_MAJOR, Layout, blocked
from tilewright.compiler.mode import Mode
from tilewright.compiler.plan.workload import Halo
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.schedule.select import lower_schedule, schedule_space
from tilewright.compiler.sizes import Dimension

B = Dimension("b", 1, 5)
H = Dimension("h", 1, 20)
W = Dimension("w", 1, 20)
BLOCKS = blocked(4, 1, 8)
AROUND: Halo = ((0, 0), (0, 0), (1, 1), (1, 1))


def conv(
    make: Maker,
    batch: int,
    height: int,
    width: int,
    *,
    channels: int = 16,
    group: int = 1,
    kernel: int = 3,
    stride: int = 1,
) -> str:
    x = make.input("x", batch, channels, height, width)
    w = make.input("w", 16, channels // group, kernel, kernel)
    pads = (kernel // 2,) * 4
    attrs: dict[str, AttrValue] = {
        "strides": (stride, stride), "pads": pads, "dilations": (1, 1), "group": group,
    }  # fmt: skip
    return make("relu", make("conv", x, w, make.input("w2", 16), **attrs), name="y")


def of_batch(make: Maker, batch: int, **shape: int) -> str:
    return conv(make, batch, 7, 9, **shape)


def of_image(make: Maker, height: int, width: int, **shape: int) -> str:
    return conv(make, 1, height, width, **shape)


def pool(make: Maker, height: int, width: int, *, op: str, stride: int = 1, pad: int = 1) -> str:
    x = make.input("x", 1, 16, height, width)
    window: dict[str, AttrValue] = {
        "kernel": (3, 3), "strides": (stride, stride), "pads": (pad,) * 4, "dilations": (1, 1),
    }  # fmt: skip
    return make(op, x, **window, name="y")


IMAGES = [{"h": 1, "w": 1}, {"h": 2, "w": 20}, {"h": 7, "w": 3}, {"h": 20, "w": 17}]
LARGE = [{"h": h + 2, "w": w + 2} for h, w in ((1, 1), (2, 18), (7, 3), (16, 15))]
BATCHES = [{"b": 1}, {"b": 2}, {"b": 5}]
H3, W3 = Dimension("h", 3, 20), Dimension("w", 3, 20)

# A function, its dimensions, the sizes, the algorithm, whether channels of x lie in blocks, and
# whether these have a halo.
Case = tuple[Build, tuple[Dimension, ...], list[dict[str, int]], str, str]
CASES: dict[str, Case] = {
    "batch": (of_batch, (B,), BATCHES, "direct", "padded"),
    "batch without blocks": (partial(of_batch, channels=3), (B,), BATCHES, "direct", ""),
    "image without blocks": (partial(of_image, channels=3), (H3, W3), LARGE, "direct", ""),
    "small images without blocks": (partial(of_image, channels=3), (H, W), IMAGES, "direct", ""),
    "image without blocks, strided": (
        partial(of_image, channels=3, kernel=7, stride=2), (H3, W3), LARGE, "direct", "",
    ),
    "image, depthwise, without a halo": (
        partial(of_image, group=16), (H3, W3), LARGE, "window", "blocks",
    ),
    "batch, pointwise": (partial(of_batch, kernel=1), (B,), BATCHES, "gemm", "padded"),
    "batch, strided": (partial(of_batch, stride=2), (B,), BATCHES, "direct", "padded"),
    "batch, depthwise": (partial(of_batch, group=16), (B,), BATCHES, "window", "padded"),
    "image": (of_image, (H, W), IMAGES, "direct", "padded"),
    "image, pointwise": (partial(of_image, kernel=1), (H, W), IMAGES, "gemm", "padded"),
    "image, strided": (partial(of_image, stride=2), (H, W), IMAGES, "direct", "padded"),
    "image, depthwise": (partial(of_image, group=16), (H, W), IMAGES, "window", "padded"),
    "image, depthwise, strided": (
        partial(of_image, group=16, stride=2), (H, W), IMAGES, "window", "padded",
    ),
    "largest of neighbours": (partial(pool, op="max_pool"), (H, W), IMAGES, "window", "blocks"),
    "largest of neighbours, strided": (
        partial(pool, op="max_pool", stride=2, pad=0), (H3, W3), LARGE, "window", "blocks",
    ),
    "mean of neighbours": (
        partial(pool, op="average_pool", pad=0), (H3, W3), LARGE, "window", "blocks",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_every_size_is_computed(case: str) -> None:
    build, dimensions, sizes, algorithm, in_blocks = CASES[case]
    places: dict[str, tuple[Layout, Halo]] = {
        "x": (BLOCKS if in_blocks else ROW_MAJOR, AROUND if in_blocks == "padded" else ()),
        "y": (BLOCKS, AROUND),
    }
    workload = dynamic_workload(build, *dimensions, places=places)
    tried = [s for s in schedules(workload) if s.algorithm == algorithm]
    assert tried
    for schedule in tried:
        assert_right(workload, schedule, sizes)


def test_tiles_of_a_batch_fill_blocks_and_part_of_the_last() -> None:
    """A window of three is transformed: 2 x 3 tiles of four outputs an image."""
    places = {"x": (BLOCKS, AROUND), "y": (BLOCKS, AROUND)}
    for stride, outputs, block in ((1, 4, 4), (2, 4, 2)):
        workload = dynamic_workload(partial(of_batch, stride=stride), B, places=places)
        schedule = Schedule.of(
            "winograd", outputs=outputs, block=block, tile=3, vectors=2, unroll=2
        )
        nest = assert_right(workload, schedule, BATCHES, tolerance=1e-4)
        assert [stage.name for stage in nest.stages] == ["main"]


def test_tiles_are_numbered_through_open_images() -> None:
    dimensions = (B, Dimension("h", 7, 20), Dimension("w", 7, 20))
    sizes = [{"b": b, "h": h, "w": w} for b, h, w in ((1, 7, 7), (2, 9, 20), (1, 20, 8))]
    places = {"x": (BLOCKS, AROUND), "y": (BLOCKS, AROUND)}
    for stride in (1, 2):
        workload = dynamic_workload(partial(conv, stride=stride), *dimensions, places=places)
        schedule = Schedule.of("winograd", outputs=4, block=5, tile=3, vectors=2, unroll=2)
        assert_right(workload, schedule, sizes, tolerance=1e-4)
    small = dynamic_workload(conv, B, H, W, places=places)
    with pytest.raises(ScheduleError, match="smaller than a tile"):
        lower_schedule(small, schedule, Mode(TARGET))


def test_the_last_block_is_whole_where_there_are_always_many_tiles() -> None:
    """Images of 7 x 7 have four tiles of four outputs, of 17 x 21 thirty: 2.5 times a block of 13
    without its first tile. Each block is as full as those of a fixed number of tiles."""
    places = {"x": (BLOCKS, AROUND), "y": (BLOCKS, AROUND)}
    schedule = Schedule.of("winograd", outputs=4, block=13, tile=7, vectors=2, unroll=1)
    for low, is_whole in (((17, 21), True), ((17, 20), False), ((7, 7), False)):
        dimensions = [Dimension(n, least, 30) for n, least in zip("hw", low, strict=True)]
        workload = dynamic_workload(of_image, *dimensions, places=places)
        nest = lower_schedule(workload, schedule, Mode(TARGET)).nest
        assert any(axis.name == "tb" for axis in nest.axes) is is_whole
    fixed = lower_schedule(workload.at({"h": 23, "w": 25}), schedule, Mode(TARGET)).nest
    assert any(axis.name == "tb" for axis in fixed.axes)


@pytest.mark.parametrize("case", CASES)
def test_what_does_not_take_open_sizes_refuses_them(case: str) -> None:
    build, dimensions, sizes, _, in_blocks = CASES[case]
    places: dict[str, tuple[Layout, Halo]] = {
        "x": (BLOCKS if in_blocks else ROW_MAJOR, AROUND if in_blocks == "padded" else ()),
        "y": (BLOCKS, AROUND),
    }
    workload = dynamic_workload(build, *dimensions, places=places)
    for schedule in schedule_space(workload, Mode(TARGET)).subspaces:
        with suppress(ScheduleError):
            assert_right(workload, schedule.default, sizes[:2], tolerance=1e-4)


def joined(make: Maker, n: int) -> str:
    return make("concat", make.input("x", 2, n, 6), make.input("y", 2, 1, 6), axis=1)


def both(make: Maker, n: int, m: int) -> str:
    return make("concat", make.input("x", 3, n), make.input("y", 3, m), axis=1)


def padded(make: Maker, n: int) -> str:
    return make("pad", make.input("x", 3, n), pads=(0, 2, 1, 3), value=2.5)


def joined_columns(make: Maker, n: int) -> str:
    x = make.input("x", 2, n, 6)
    return make("concat", x, make.input("y", 2, n, 10), axis=2)


N, M = Dimension("n", 1, 40), Dimension("m", 1, 20)
PIECES: dict[str, tuple[Build, tuple[Dimension, ...]]] = {
    "a row appended": (joined, (N,)),
    "two open extents": (both, (N, M)),
    "padding": (padded, (N,)),
    "columns": (joined_columns, (N,)),
}


@pytest.mark.parametrize("case", PIECES)
def test_pieces_are_put_together(case: str) -> None:
    build, dimensions = PIECES[case]
    workload = dynamic_workload(build, *dimensions)
    sizes = [{"n": n, "m": m} for n, m in zip(SIZES, (5, 1, 17, 8, 1, 20, 2, 9), strict=True)]
    names = {d.name for d in dimensions}
    values = [{name: n for name, n in each.items() if name in names} for each in sizes]
    for schedule in (*schedules(workload), Schedule.of("scalar")):
        assert_right(workload, schedule, values[:4] if schedule.algorithm == "scalar" else values)
