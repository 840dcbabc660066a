"""Windows over planar images: lanes along a row of pixels, also where the window strides."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.graphs import Maker
from tests.kernels import WIDTHS, as_workload, run_workload, width
from tilewright.compiler.graph.ir import AttrValue
from tilewright.compiler.loops.layout import ROW_MAJOR
from tilewright.compiler.loops.nest import Compute, LoopNest
from tilewright.compiler.mode import Mode
from tilewright.compiler.ops.interpret import run_graph
from tilewright.compiler.plan.workload import Halo, Workload
from tilewright.compiler.schedule.select import lower_schedule, untuned_schedules
from tilewright.compiler.targets.host import resolve_target

V4 = resolve_target("x86-64-v4")


def planar(
    op: str, channels: int, height: int, width_: int, kernel: int, stride: int, group: int = 1
) -> Workload:
    """A convolution (its padding in a halo) or a pool without padding, row-major."""
    make = Maker()
    pad = kernel // 2 if op == "conv" else 0
    attrs: dict[str, AttrValue] = {"strides": (stride, stride), "pads": (pad,) * 4}
    x = make.input("x", 1, channels, height, width_)
    if op != "conv":
        y = make(op, x, kernel=(kernel, kernel), **attrs)
        return as_workload(make.graph(y), ())
    w = make.input("w", channels, channels // group, kernel, kernel)
    y = make("conv", x, w, group=group, dilations=(1, 1), **attrs)
    halo: Halo = ((0, 0), (0, 0), (pad, pad), (pad, pad))
    return as_workload(make.graph(y), ("w",), {x: (ROW_MAJOR, halo)})


@given(
    op=st.sampled_from(["conv", "max_pool", "average_pool"]),
    channels=st.integers(1, 4),
    height=st.integers(5, 9),
    width_=st.integers(9, 80),
    kernel=st.sampled_from([2, 3, 5]),
    stride=st.integers(1, 5),
    bits=st.sampled_from(WIDTHS),
    data=st.data(),
)
@settings(max_examples=examples(40))
def test_any_size(
    op: str,
    channels: int,
    height: int,
    width_: int,
    kernel: int,
    stride: int,
    bits: int,
    data: st.DataObject,
) -> None:
    kernel = 3 if op == "conv" and kernel == 2 else kernel
    group = data.draw(st.sampled_from([1, channels])) if op == "conv" else 1
    workload = planar(op, channels, height, width_, kernel, stride, group)
    target = width(bits)
    schedule = next(iter(untuned_schedules(workload, Mode(target))))
    random = np.random.default_rng(width_)
    shapes = [boundary.type.shape for boundary in workload.inputs]
    inputs = [random.integers(-4, 5, shape).astype(np.float32) for shape in shapes]
    named = dict(zip(workload.graph.inputs, inputs, strict=True))
    (expected,) = run_graph(workload.graph, named, float64=True)
    result = run_workload(workload, schedule, target, inputs, random)
    # sums of small integers are exact, an average is rounded once
    np.testing.assert_allclose(result, expected, rtol=2e-7)


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("op", ["max_pool", "average_pool", "conv"])
def test_lanes_run_along_the_pixels(op: str, stride: int) -> None:
    workload = planar(op, 24, 40, 120, 3, stride, 24)
    schedule = next(iter(untuned_schedules(workload, Mode(V4))))
    nest = lower_schedule(workload, schedule, Mode(V4)).nest
    (compute,) = computes(nest)
    assert schedule.algorithm == "window"
    assert compute.vector is not None
    assert compute.vector.extent == -(-(120 if op == "conv" else 118) // stride)


@pytest.mark.parametrize("stride", [1, 2])
def test_groups_keep_to_the_registers(stride: int) -> None:
    """Lanes along pixels are not the groups' channels: a ragged panel has no effect."""
    workload = planar("conv", 44, 25, 67, 3, stride, 2)
    schedule = next(iter(untuned_schedules(workload, Mode(V4))))
    assert schedule.algorithm == "direct"
    tile, vectors = schedule.integer("tile"), schedule.integer("vectors")
    assert tile * vectors + vectors + 1 <= V4.vector_registers


def computes(nest: LoopNest) -> list[Compute]:
    pending = [node for stage in nest.stages for node in stage.body]
    found: list[Compute] = []
    while pending:
        node = pending.pop()
        if isinstance(node, Compute):
            found.append(node)
        else:
            pending += node.body
    return found
