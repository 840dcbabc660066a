"""Compiled schedules of open workloads: one object, right at every size, every buffer guarded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import pytest

from tests.graphs import random_inputs
from tests.kernels import WIDTHS, WorkloadCode, width, widths_in_turn
from tests.unit.schedule import (
    test_dynamic_attention,
    test_dynamic_images,
    test_dynamic_products,
    test_dynamic_rows,
)
from tests.unit.schedule.dynamic_nests import dynamic_workload
from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import ScheduleError
from tilewright.compiler.loops.layout import ROW_MAJOR, blocked
from tilewright.compiler.loops.semantics import from_memory
from tilewright.compiler.mode import Mode
from tilewright.compiler.ops.interpret import run_graph
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.schedule.select import schedule_space, untuned_schedules
from tilewright.compiler.sizes import Dimension
from tilewright.compiler.targets.target import Target

pytestmark = pytest.mark.graphs

Sizes = Sequence[Mapping[str, int]]

_TWO = {
    **{name: case[:2] for name, case in test_dynamic_rows.MAPS.items()},
    **{name: case[:2] for name, case in test_dynamic_rows.ROWS.items()},
    **{f"product of {name}": case[:2] for name, case in test_dynamic_products.CASES.items()},
    **{f"pieces, {name}": case[:2] for name, case in test_dynamic_images.PIECES.items()},
}


def assert_right(workload: Workload, schedule: Schedule, target: Target, sizes: Sizes) -> None:
    """One object computes the workload at all of the sizes."""
    half = workload.output.type.dtype is DType.BFLOAT16
    with WorkloadCode(workload, schedule, target) as code:
        for values in sizes:
            graph = workload.at(values).graph
            arrays = random_inputs(graph, sum(values.values()))
            (expected,) = run_graph(graph, arrays, float64=True)
            random = np.random.default_rng(len(values))
            got = code.run([arrays[name] for name in graph.inputs], random, values)
            np.testing.assert_allclose(
                from_memory(got, workload.output.type.dtype),
                from_memory(expected, DType.BFLOAT16) if half else expected,
                rtol=0,
                atol=(2e-2 if half else 3e-5) * max(1.0, np.abs(expected).max()),
                err_msg=f"{schedule} at {values}",
            )


def first_that_lowers(workload: Workload, target: Target, sizes: Sizes) -> Schedule:
    """The untuned schedule that a program takes, when it was found right."""
    for schedule in untuned_schedules(workload, Mode(target)):
        try:
            assert_right(workload, schedule, target, sizes)
        except ScheduleError:
            continue
        return schedule
    raise AssertionError("no schedule takes the workload")


@pytest.mark.parametrize(("case", "bits"), widths_in_turn(_TWO))
def test_every_size_is_computed(case: str, bits: int) -> None:
    build, dimensions = _TWO[case]
    names = {d.name for d in dimensions}
    sizes = [{k: n for k, n in each.items() if k in names} for each in test_dynamic_rows.TWO]
    schedule = first_that_lowers(dynamic_workload(build, *dimensions), width(bits), sizes)
    assert schedule.algorithm != "scalar"


@pytest.mark.parametrize(("case", "bits"), widths_in_turn(test_dynamic_attention.CASES))
def test_every_size_of_attention_is_computed(case: str, bits: int) -> None:
    build, dimensions, each = test_dynamic_attention.CASES[case]
    workload, target = dynamic_workload(build, *dimensions), width(bits)
    sizes = [dict(zip((d.name for d in dimensions), one, strict=True)) for one in each]
    first = first_that_lowers(workload, target, sizes)
    points = [s for s in schedule_space(workload, Mode(target)).points if s["keys"] == "packed"]
    for schedule in (first, points[len(points) // 2], points[-1]):
        assert schedule.algorithm == "attention"
        assert_right(workload, schedule, target, sizes)


@pytest.mark.parametrize(("case", "bits"), widths_in_turn(test_dynamic_images.CASES))
def test_every_size_of_windows_is_computed(case: str, bits: int) -> None:
    build, dimensions, sizes, algorithm, in_blocks = test_dynamic_images.CASES[case]
    around, blocks = test_dynamic_images.AROUND, blocked(4, 1, min(16, bits // 32))
    places = {
        "x": (blocks if in_blocks else ROW_MAJOR, around if in_blocks == "padded" else ()),
        "y": (blocks, around),
    }
    workload, target = dynamic_workload(build, *dimensions, places=places), width(bits)
    first = first_that_lowers(workload, target, sizes)
    assert first.algorithm != "scalar"
    (space,) = [
        s for s in schedule_space(workload, Mode(target)).subspaces if s.algorithm == algorithm
    ]
    assert_right(workload, space.default, target, sizes)


@pytest.mark.parametrize("bits", WIDTHS)
def test_tiles_of_open_images_are_transformed(bits: int) -> None:
    blocks, target = blocked(4, 1, min(16, bits // 32)), width(bits)
    places = {"x": (blocks, test_dynamic_images.AROUND), "y": (blocks, test_dynamic_images.AROUND)}
    dimensions = (test_dynamic_images.B, Dimension("h", 7, 20), Dimension("w", 7, 20))
    sizes = [{"b": b, "h": h, "w": w} for b, h, w in ((1, 7, 7), (5, 9, 20), (2, 20, 8))]
    for stride in (1, 2):
        workload = dynamic_workload(
            partial(test_dynamic_images.conv, stride=stride), *dimensions, places=places
        )
        spaces = schedule_space(workload, Mode(target)).subspaces
        (default,) = [s.default for s in spaces if s.algorithm == "winograd"]
        assert_right(workload, default, target, sizes)


@pytest.mark.parametrize("bits", WIDTHS)
def test_the_last_block_of_many_tiles_is_whole(bits: int) -> None:
    blocks = blocked(4, 1, min(16, bits // 32))
    places = {"x": (blocks, test_dynamic_images.AROUND), "y": (blocks, test_dynamic_images.AROUND)}
    dimensions = (Dimension("h", 17, 40), Dimension("w", 21, 40))
    sizes = [{"h": h, "w": w} for h, w in ((17, 21), (18, 40), (29, 31))]
    workload = dynamic_workload(test_dynamic_images.of_image, *dimensions, places=places)
    schedule = Schedule.of("winograd", outputs=4, block=13, tile=7, vectors=1, unroll=2)
    assert_right(workload, schedule, width(bits), sizes)


@pytest.mark.parametrize("bits", WIDTHS)
def test_quadrants_of_open_rows_are_multiplied(bits: int) -> None:
    workload = dynamic_workload(test_dynamic_products.rows, Dimension("n", 2, 40))
    (space,) = [
        s
        for s in schedule_space(workload, Mode(width(bits))).subspaces
        if s.algorithm == "strassen"
    ]
    sizes = [{"n": n} for n in (2, 3, 8, 9, 21, 40)]
    assert_right(workload, space.default, width(bits), sizes)
