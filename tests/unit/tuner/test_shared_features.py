"""Features that candidates share are computed once; no candidate's row may depend on earlier
ones."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np
import pytest

from tests.differential.workloads import FAMILIES
from tests.unit.schedule.problems import matmul
from tilewright.compiler.dtypes import DType
from tilewright.compiler.mode import Mode
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.targets.host import resolve_target
from tilewright.tuner.analysis.compute_costs import compute_costs
from tilewright.tuner.analysis.features import COLUMNS, FeatureExtractor, target_facts
from tilewright.tuner.tasks import Task, make_task

TARGET = resolve_target("x86-64-v4")

SHARED = ("tilewright.compiler.loops.", "tilewright.compiler.schedule.", "tuner.")
"""Modules that remember something of expressions, nests and schedules."""

CANDIDATES = 6
"""Of each algorithm."""


def forget() -> None:
    """Empty every cache that a row can come from."""
    for name, module in list(sys.modules.items()):
        if name.startswith(SHARED):
            for value in list(vars(module).values()):
                if hasattr(value, "cache_clear"):
                    value.cache_clear()


def extractor(task: Task) -> FeatureExtractor:
    return FeatureExtractor(task.lower, task.space.default(), target_facts(TARGET))


def candidates(task: Task, random: np.random.Generator) -> Iterator[Schedule]:
    for space in task.space.subspaces:
        points = list(space.points)
        for place in random.permutation(len(points))[:CANDIDATES]:
            yield points[place]


@pytest.mark.parametrize("family", FAMILIES)
def test_what_came_before_changes_no_row(family: str) -> None:
    random = np.random.default_rng(sum(family.encode()))
    workload = FAMILIES[family](random, TARGET.lanes(DType.FLOAT32)).workload
    task = make_task(workload, Mode(TARGET, numerics="loose"), constrained=False)
    chosen = [*candidates(task, random)]
    together = extractor(task)
    for schedule in chosen:
        together.row(schedule)
    for schedule in chosen:
        forget()
        alone = extractor(make_task(workload, Mode(TARGET, numerics="loose"), constrained=False))
        np.testing.assert_array_equal(alone.row(schedule), together.row(schedule))
        assert alone.estimated_seconds(schedule) == together.estimated_seconds(schedule)


def test_the_order_of_products_and_prefetching_change_no_statement() -> None:
    """One level of Strassen: seven products in one stage or in seven, weights prefetched or not."""
    task = make_task(matmul(256, 512, 512), Mode(TARGET))
    strassen = next(s for s in task.space.subspaces if s.algorithm == "strassen")
    choices = dict(strassen.default.choices)
    variants = [
        Schedule.of("strassen", **{**choices, "order": order, "prefetch": prefetch})
        for order in ("products-inner", "products-outer")
        for prefetch in (0, 2048)
    ]
    first, *others = (compute_costs(task.lower(schedule)) for schedule in variants)
    assert len(first) == 8
    assert all(other == first for other in others)  # the same objects
    rows = [extractor(task).row(schedule) for schedule in variants]
    column = COLUMNS.index("main_prefetches")
    assert [row[column] for row in rows if row is not None] == [0, 1, 0, 1]
    stages = COLUMNS.index("stages")
    assert [row[stages] for row in rows if row is not None] == [2, 2, 8, 8]
