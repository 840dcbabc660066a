"""Pools in two passes: any window, stride, dilation and padding, lanes along pixels or channels."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.graphs import Maker
from tests.kernels import WIDTHS, as_workload, run_workload, width
from tests.unit.schedule.dynamic_nests import assert_right, dynamic_workload
from tilewright.compiler.dtypes import DType
from tilewright.compiler.graph.ir import AttrValue
from tilewright.compiler.loops.layout import ROW_MAJOR, Layout, blocked
from tilewright.compiler.mode import Mode
from tilewright.compiler.ops.interpret import run_graph
from tilewright.compiler.plan.workload import Halo, Workload
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.schedule.select import lower_schedule, schedule_space, untuned_schedule
from tilewright.compiler.schedule.templates.separable import analyse
from tilewright.compiler.sizes import Dimension
from tilewright.compiler.targets.host import resolve_target

V4 = resolve_target("x86-64-v4")
EXACT = (DType.FLOAT32, DType.FLOAT64, DType.FLOAT16, DType.INT8, DType.UINT8, DType.INT32)
NHWC = Layout.parse("0 2 3 1")


@st.composite
def pools(draw: st.DrawFn) -> tuple[Workload, DType]:
    """Pools of one to three dimensions, of channels side by side too, alone and with others."""
    rank = draw(st.integers(1, 3))
    limits = ((1, 7), (1, 3), (1, 2))
    kernel, strides, dilations = (
        draw(st.tuples(*[st.integers(low, high)] * rank)) for low, high in limits
    )
    pads = tuple(draw(st.integers(0, k)) for k in (*kernel, *kernel))
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    least = [max(1, s - sum(pads[d::rank])) for d, s in enumerate(spans)]
    spatial = [
        low + draw(st.integers(0, 40 if d == rank - 1 else 5)) for d, low in enumerate(least)
    ]
    channels = draw(st.integers(1, 20) | st.just(16))
    op = draw(st.sampled_from(["max_pool", "average_pool"]))
    dtype = draw(st.sampled_from(EXACT if op == "max_pool" else EXACT[:2]))
    make = Maker()
    attrs: dict[str, AttrValue] = {
        "kernel": kernel, "strides": strides, "pads": pads, "dilations": dilations,
    }  # fmt: skip
    x = make.input("x", draw(st.integers(1, 2)), channels, *spatial, dtype=dtype)
    if op == "average_pool":
        attrs["count_include_pad"] = 1
    y = make(op, x, **attrs, name="y")
    if dtype.is_float and draw(st.booleans()):
        y = make("relu", y)
    layout: Layout = ROW_MAJOR
    halo: Halo = ()
    if rank == 2 and dtype is DType.FLOAT32:
        layout = draw(st.sampled_from([ROW_MAJOR, NHWC, blocked(4, 1, 8), blocked(4, 1, 16)]))
        if layout in (ROW_MAJOR, NHWC) or channels == 16:  # else zeros of a halo fill no block
            halo = draw(st.sampled_from([(), ((0, 0), (0, 0), (1, 2), (2, 1))]))
    ends: Mapping[str, tuple[Layout, Halo]] = {x: (layout, halo), y: (layout, halo)}
    return as_workload(make.graph(y), (), ends), dtype


@given(
    pool=pools(),
    bits=st.sampled_from(WIDTHS),
    lines=st.sampled_from([1, 2, 4]),
    tile=st.sampled_from([1, 4]),
    threads=st.sampled_from([1, 3]),
    seed=st.integers(0, 99),
)
@settings(max_examples=examples(60))
def test_any_window(
    pool: tuple[Workload, DType], bits: int, lines: int, tile: int, threads: int, seed: int
) -> None:
    workload, dtype = pool
    assume(analyse(workload) is not None)
    random = np.random.default_rng(seed)
    low = 0 if dtype is DType.UINT8 else -99
    shape = workload.inputs[0].type.shape
    x = random.integers(low, 99, shape).astype(dtype.value)
    (expected,) = run_graph(workload.graph, {"x": x}, float64=dtype is DType.FLOAT32)
    schedule = Schedule.of("separable", lines=lines, tile=tile)
    result = run_workload(workload, schedule, width(bits), [x], random, threads)
    # sums of small integers are exact, an average is rounded once
    np.testing.assert_allclose(result, expected, rtol=2e-7)


def pool(
    channels: int, kernel: tuple[int, ...], layout: Layout = ROW_MAJOR, op: str = "max_pool"
) -> Workload:
    make = Maker()
    pads = tuple(k // 2 for k in kernel) * 2
    ones = (1,) * len(kernel)
    extents = (24,) * (len(kernel) - 1)
    x = make.input("x", 1, channels, *extents, 60)
    y = make(op, x, kernel=kernel, strides=ones, pads=pads, dilations=ones, count_include_pad=1)
    return as_workload(make.graph(y), (), {x: (layout, ()), y: (layout, ())})


@pytest.mark.parametrize("op", ["max_pool", "average_pool"])
@pytest.mark.parametrize("kernel", [(3,), (3, 3), (9, 9), (3, 3, 3)])
def test_padded_pools_of_few_channels_have_lanes(kernel: tuple[int, ...], op: str) -> None:
    """They were scalar code: the lanes left the image."""
    workload = pool(3, kernel, op=op)
    schedule = untuned_schedule(workload, Mode(V4))
    assert schedule.algorithm == "separable"
    nest = lower_schedule(workload, schedule, Mode(V4)).nest
    assert all(compute.vector is not None for compute in nest.computes)


@pytest.mark.parametrize("layout", [ROW_MAJOR, NHWC, blocked(4, 1, 16)])
def test_large_windows_take_two_passes(layout: Layout) -> None:
    """The work of a window of 9 by 9 is that of 18 elements, and not that of 81."""
    workload = pool(32, (9, 9), layout)
    schedule = untuned_schedule(workload, Mode(V4))
    assert schedule.algorithm == "separable"
    nest = lower_schedule(workload, schedule, Mode(V4)).nest
    axes = [
        {t.axis.name for t in (*c.reduce, *c.unroll)} & {"kh", "kw"}
        for c in nest.computes
        if c.combiner is not None
    ]
    assert axes == [{"kh"}, {"kw"}]


def test_small_windows_whose_lanes_are_channels_stay_whole() -> None:
    space = schedule_space(pool(32, (3, 3), blocked(4, 1, 16)), Mode(V4))
    assert [sub.algorithm for sub in space.subspaces] == ["window"]


H, W = Dimension("h", 1, 20), Dimension("w", 1, 40)


def image(make: Maker, height: int, width_: int, *, op: str, kernel: int, stride: int) -> str:
    x = make.input("x", 1, 2, height, width_)
    attrs: dict[str, AttrValue] = {
        "kernel": (kernel,) * 2, "strides": (stride,) * 2, "pads": (kernel // 2,) * 4,
        "dilations": (1, 1), "count_include_pad": 1,
    }  # fmt: skip
    return make(op, x, **attrs, name="y")


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("kernel", [3, 9])
@pytest.mark.parametrize("op", ["max_pool", "average_pool"])
def test_open_images(op: str, kernel: int, stride: int) -> None:
    build = partial(image, op=op, kernel=kernel, stride=stride)
    workload = dynamic_workload(build, H, W)
    schedule = Schedule.of("separable", lines=2, tile=2)
    sizes = [{"h": h, "w": w} for h, w in ((1, 1), (2, 40), (7, 3), (20, 17), (9, 33))]
    assert_right(workload, schedule, sizes)
