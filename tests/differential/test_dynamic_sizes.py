"""Random workloads with one extent opened: every applicable schedule is right at every size.

An extent of a workload that other tests generate becomes a size with a range wherever it occurs.
Types are inferred again; where they do not follow from it, another extent is opened. Nests are
evaluated, no code is generated.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import pytest

from tests.differential.test_schedules import seeded
from tests.differential.workloads import FAMILIES
from tests.examples import examples
from tests.unit.schedule.dynamic_nests import assert_right
from tilewright.compiler import ops
from tilewright.compiler.errors import CompilerError, ScheduleError
from tilewright.compiler.graph.ir import AttrValue, Graph
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.mode import Mode
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.schedule.select import schedule_space, untuned_schedules
from tilewright.compiler.sizes import Dimension, dynamic_size
from tilewright.compiler.targets.host import resolve_target

TARGET = resolve_target("x86-64-v3")
CASES = 2
"""Workloads of a family."""


def opened(workload: Workload, extent: int, dimension: Dimension) -> Workload | None:
    """The workload with a size in place of an extent; None if its types do not follow."""
    graph, size = workload.graph, dynamic_size(dimension)

    def swapped(shape: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(size if n == extent else n for n in shape)

    def attr(key: str, value: AttrValue) -> AttrValue:
        known = isinstance(value, tuple) and key in ("shape", "sizes")
        return swapped(tuple(map(int, value))) if known and isinstance(value, tuple) else value

    types = {name: graph.types[name] for name in graph.constants}
    for name, boundary in zip(graph.inputs, workload.inputs, strict=True):
        kind = graph.types[name]
        shape = kind.shape if boundary.constant else swapped(kind.shape)
        types[name] = TensorType(kind.dtype, shape)
    nodes = []
    for node in graph.nodes:
        attrs = tuple((key, attr(key, value)) for key, value in node.attrs)
        nodes.append(replace(node, attrs=attrs))
        types[node.output] = ops.get(node.op).infer([types[v] for v in node.inputs], attrs)
    made = Graph(graph.name, graph.inputs, graph.outputs, tuple(nodes), types, graph.constants)
    inputs = tuple(
        replace(b, type=types[name]) for name, b in zip(graph.inputs, workload.inputs, strict=True)
    )
    whole = Workload(made, inputs, replace(workload.output, type=types[graph.outputs[0]]))
    return whole if whole.dimensions and whole.at({dimension.name: extent}) == workload else None


def candidates(workload: Workload, draw: random.Random) -> Iterator[tuple[Workload, int]]:
    """The workload with each of its extents opened, in some order."""
    extents = sorted({n for kind in workload.graph.types.values() for n in kind.shape if n > 1})
    draw.shuffle(extents)
    for extent in extents:
        for low in (1, extent // 2, extent - 1):
            with suppress(CompilerError, ValueError):
                made = opened(workload, extent, Dimension("s0", max(1, low), extent + 9))
                if made is not None:
                    yield made, extent
                    break


@pytest.mark.parametrize("family", FAMILIES)
def test_every_size_of_the_range_is_right(family: str) -> None:
    for number in range(examples(CASES)):
        drawn = seeded("open", family, number)
        case = FAMILIES[family](drawn, TARGET.vector_bits // 32)
        draw = random.Random(number)
        for workload, extent in [*candidates(case.workload, draw)][:1]:
            (dimension,) = workload.dimensions
            sizes = {dimension.low, extent + draw.randint(1, 9)}
            values = [{"s0": n} for n in sorted(sizes)]
            tried = [*untuned_schedules(workload, Mode(TARGET))]
            tried.append(
                draw.choice(schedule_space(workload, Mode(TARGET, numerics="loose")).points)
            )
            taken = 0
            for schedule in dict.fromkeys(tried):
                if schedule.algorithm == "scalar" and taken:
                    continue  # slow to evaluate
                with suppress(ScheduleError):
                    assert_right(workload, schedule, values, TARGET, tolerance=1e-4)
                    taken += 1
            assert taken, f"no schedule takes {workload.text()}"
