"""Random workloads under random schedules of every template agree with NumPy.

Compiled, at every vector width of the machine, with each buffer against a guard page (reads and
writes out of bounds die), outputs poisoned (unwritten elements show), stages run in random pieces
of their parallel loops.
"""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from tests.differential import halves
from tests.differential.drawing import Case, Random
from tests.differential.workloads import FAMILIES
from tests.examples import examples
from tests.kernels import WIDTHS, run_workload, width
from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import ScheduleError
from tilewright.compiler.loops.semantics import from_memory, to_memory
from tilewright.compiler.mode import Mode
from tilewright.compiler.ops.interpret import run_graph
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.schedule.select import schedule_space
from tilewright.compiler.schedule.space import SubSpace
from tilewright.compiler.schedule.templates import templates
from tilewright.compiler.schedule.templates.winograd_analysis import analyse
from tilewright.compiler.targets.host import resolve_target
from tilewright.compiler.targets.target import Target

CASES = 4
"""Workloads of a family at each width, per hundred examples."""
HALVED_CASES = 3
"""Halved cases of each narrow type."""

pytestmark = pytest.mark.graphs

# Exact workloads are compared for equality. For the others, relative to the largest element: a sum
# of K <= 1600 terms in any order is within K * 2**-24 of it (1e-4), in practice within sqrt(K) *
# 2**-24 = 2.4e-6; functions of `maths` are within 2 units in the last place, and softmax divides
# two such results. 1e-5 leaves room and is far below the error of any wrong index.
ROUNDING = 1e-5
# Winograd transforms inputs and outputs by matrices whose norms grow with the points of a tile, and
# the error with them. Up to 4 points they hold halves alone and are exact on these inputs; the
# largest errors seen in 2000 random runs, relative to the largest element, are 2.6e-6 up to 6
# points and 3.4e-6 up to 8. A wrong tap or tile is 1e-2 or more.
WINOGRAD = {3: 0.0, 4: 0.0, 5: 1e-5, 6: 1e-5, 7: 3e-5, 8: 3e-5}


# Values stored in 16 bits are rounded once, by both sides. If float32's rounding takes a number
# across the middle of two neighbours it falls to the other one, one step of the largest element.
HALF_STEP = {DType.BFLOAT16: 2.0**-7, DType.FLOAT16: 2.0**-10}


def winograd_tolerance(workload: Workload, schedule: Schedule) -> float:
    found = analyse(workload)
    assert found is not None
    return max(WINOGRAD[side.alpha(schedule.integer("outputs"))] for side in found.sides)


def seeded(*parts: object) -> Random:
    return np.random.default_rng(zlib.crc32(" ".join(map(str, parts)).encode()))


def spaces(workload: Workload, target: Target) -> list[SubSpace]:
    """The subspaces of every template that applies, the fallback too."""
    found = [t.space(workload, Mode(target, numerics="loose")) for t in templates()]
    return [space for space in found if space is not None]


def any_choice(space: SubSpace, random: Random) -> Schedule:
    """Any value for each knob: mostly outside of the space, as a hand-written schedule may be."""
    choices = {k.name: k.values[int(random.integers(len(k.values)))] for k in space.knobs}
    return Schedule.of(space.algorithm, **choices)


def check(case: Case, schedule: Schedule, target: Target, random: Random) -> None:
    graph = case.workload.graph
    inputs = dict(zip(graph.inputs, case.arrays, strict=True))
    (expected,) = run_graph(graph, inputs, float64=True)
    got = run_workload(case.workload, schedule, target, case.arrays, random)
    winograd = schedule.algorithm == "winograd"
    if case.exact and not winograd:
        dtype = case.workload.output.type.dtype
        exact = (from_memory(array, dtype) for array in (got, to_memory(expected, dtype)))
        np.testing.assert_array_equal(*exact, str(schedule))  # 0.0 is -0.0
        return
    tolerance = winograd_tolerance(case.workload, schedule) if winograd else ROUNDING
    tolerance += HALF_STEP.get(case.workload.output.type.dtype, 0.0)
    got = from_memory(got, case.workload.output.type.dtype)
    atol = tolerance * max(1.0, float(np.abs(expected).max(initial=0)))
    np.testing.assert_allclose(got, expected, rtol=0, atol=atol, err_msg=str(schedule))


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("family", FAMILIES)
def test_random_schedules(family: str, bits: int) -> None:
    target = width(bits)
    for number in range(examples(CASES)):
        random = seeded(family, bits, number)
        case = FAMILIES[family](random, bits // 32)
        found = spaces(case.workload, target)
        assert found, "no template applies"
        assert schedule_space(case.workload, Mode(target)).default() in [s.default for s in found]
        for space in found:
            points = space.points
            assert space.default in points
            check(case, space.default, target, random)
            check(case, points[int(random.integers(len(points)))], target, random)
            try:
                check(case, any_choice(space, random), target, random)
            except ScheduleError:
                continue


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("dtype", halves.TYPES)
@pytest.mark.parametrize("family", halves.FAMILIES)
def test_random_schedules_of_halves(family: str, dtype: DType, bits: int) -> None:
    """Values stored in 16 bits and computed with in float32."""
    target = width(bits)
    for number in range(examples(HALVED_CASES)):
        random = seeded(family, dtype, bits, number)
        case = halves.halved(FAMILIES[family](random, bits // 32), dtype, random)
        for space in spaces(case.workload, target):
            points = space.points
            check(case, space.default, target, random)
            check(case, points[int(random.integers(len(points)))], target, random)


@pytest.mark.parametrize("name", ["x86-64-v1", "x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("dtype", halves.TYPES)
@pytest.mark.parametrize("family", ["matmul", "convolution", "attention"])
def test_halves_without_an_instruction_for_them(family: str, dtype: DType, name: str) -> None:
    """At 128, 256 and 512 bits."""
    target = resolve_target(name)
    if not target.runs_on(resolve_target("host")):
        pytest.skip(f"the host is no {name}")
    for number in range(examples(HALVED_CASES)):
        random = seeded(family, dtype, name, number)
        case = halves.halved(FAMILIES[family](random, target.lanes(DType.INT32)), dtype, random)
        check(case, schedule_space(case.workload, Mode(target)).default(), target, random)


@pytest.mark.parametrize("name", ["x86-64-v2", "x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("family", ["int8_matmul", "int8_convolution", "int8_depthwise"])
def test_bytes_without_an_instruction_for_them(family: str, name: str) -> None:
    """At 128, 256 and 512 bits, by instructions for pairs of 16 bits."""
    target = resolve_target(name)
    if not target.runs_on(resolve_target("host")):
        pytest.skip(f"the host is no {name}")
    for number in range(examples(CASES)):
        random = seeded(family, name, number)
        case = FAMILIES[family](random, target.lanes(DType.INT32))
        check(case, schedule_space(case.workload, Mode(target)).default(), target, random)
