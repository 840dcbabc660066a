"""Derives the tuning tasks of a planned model: one for each workload (fused subgraph).

If the range of a dimension is split into intervals, each interval is a workload with its own task.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from tilewright.compiler.mode import Mode
from tilewright.compiler.plan.intervals import pieces
from tilewright.compiler.plan.workload import Workload
from tilewright.service.jobs.plan.planning import Planned
from tilewright.service.jobs.report.workload_facts import workload_name
from tilewright.tuner.measure.points import SizePoint
from tilewright.tuner.random_sizes import points_within
from tilewright.tuner.tasks import Task, make_task


def tasks_of(*planned: Planned) -> list[Task]:
    """Return the tuning tasks of one model, in the order of their first use.

    If the range of a dimension is split into intervals, each interval has its own task. An interval
    without any of the sizes at which the model is measured has no task.

    Args:
        planned: the plans of the model, one per size.
    """
    counts: Counter[Workload] = Counter()
    for each in planned:
        counts.update(dict(each.workloads))
    first = planned[0]
    ranged = {
        piece.workload: (each.open, step, piece)
        for each in planned
        if each.open is not None
        for step in reversed(each.open.plan.kernels)  # the first step that uses it wins
        for piece in pieces(step.workload)
        if step.workload.dimensions
    }
    tasks = []
    for workload, count in counts.items():
        points: tuple[SizePoint, ...] = ()
        scale, stated = 1.0, False
        if workload in ranged:
            of_range, step, piece = ranged[workload]
            stated = of_range.stated
            points, scale = points_within(
                piece,
                step.workload,
                of_range.measured,
                step.sizes,
                first.mode.threads,
                stated=bool(of_range.hints),
            )
            if not points:  # no run has these sizes
                continue
        task = task_of(workload, first.mode, count, points)
        tasks.append(replace(task, stated=stated and bool(workload.dimensions), scale=scale))
    return tasks


def task_of(
    workload: Workload,
    mode: Mode,
    count: int = 1,
    points: tuple[SizePoint, ...] = (),
) -> Task:
    """Return the tuning task of a workload.

    Args:
        workload: the workload.
        mode: the mode in which code is generated.
        count: the number of the workload's runs in one run of the model.
        points: the sizes at which the workload is measured, if it has dynamic dimensions.
    """
    return make_task(
        workload,
        mode,
        name=workload_name(workload),
        count=count,
        points=points,
    )
