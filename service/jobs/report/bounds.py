"""Computes a lower bound of each task's time on a device: no schedule can be faster than the
bound.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import ScheduleError
from tilewright.compiler.plan import costs
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.schedule.space import SubSpace
from tilewright.compiler.schedule.templates import template_of
from tilewright.service.jobs.device.device import Device, DeviceError
from tilewright.service.jobs.report.workload_facts import executed_flops
from tilewright.tuner.measure.points import SizePoint
from tilewright.tuner.measure.roofline import Speeds, bound
from tilewright.tuner.tasks import Task

LEAST_BUDGET_SECONDS = 15.0
"""Smallest time budget in seconds for which the machine's peak rates are measured.

The measurement takes about a second, or three next to busy builders. A smaller budget is better
spent on trials.
"""


def bounds_within(
    seconds: float | None, tasks: Sequence[Task], device: Device
) -> Callable[[], Sequence[float]] | None:
    """Return a function that computes a lower bound for each task (`task_bounds`), in seconds.

    Return None if the time budget is too small to measure the device's peak rates.

    Args:
        seconds: the time budget of the job; None for no limit.
        tasks: the tasks.
        device: the device to measure.
    """
    if seconds is not None and seconds < LEAST_BUDGET_SECONDS:
        return None
    return partial(task_bounds, tasks, device)


def task_bounds(tasks: Sequence[Task], device: Device) -> list[float]:
    """Return a lower bound of each task's time, in seconds, after measuring the device for a
    second.

    A bound of 0 means that it is unknown: the device does not run the target of the tasks, or could
    not be measured.
    """
    target = tasks[0].mode.target
    if not device.runs(target):
        return [0.0] * len(tasks)
    try:
        speeds = device.speeds(target)
    except DeviceError:
        return [0.0] * len(tasks)
    return [task_bound(task, speeds) for task in tasks]


def task_bound(task: Task, speeds: Speeds) -> float:
    """Return a lower bound of one run of a task's workload, in seconds.

    The bound is the roofline model's time. It counts the operations of the algorithm that needs the
    fewest. It assumes that all bytes come from the nearest cache that can hold them, as they do
    when candidates are timed.

    Args:
        task: the task. For dynamic dimensions, the bounds at its measured sizes are added with
            their weights.
        speeds: the measured peak rates of the device.
    """
    return sum(point.weight * _bound(task, point, at, speeds) for point, at in task.fixed())


def _bound(task: Task, point: SizePoint, workload: Workload, speeds: Speeds) -> float:
    """Return a lower bound of one run of a workload at fixed sizes, in seconds.

    Only float32 workloads have a bound by arithmetic; others have only a bound by memory traffic.

    Args:
        task: the task of the workload.
        point: the sizes of the task's dynamic dimensions.
        workload: the task's workload at these sizes.
        speeds: the measured peak rates of the device.
    """
    weights = costs.weight_bytes(workload)
    moved = costs.bytes_read(workload) + costs.bytes_written(workload)
    floats = {kind.dtype for kind in workload.graph.types.values()}
    # the measured peak is that of float32; dot instructions of narrower types do several times that
    flops = least_flops(task, point, workload) if floats == {DType.FLOAT32} else 0.0
    return bound(speeds, flops, weights, moved - weights, weights, task.mode.threads).seconds


def least_flops(task: Task, point: SizePoint, workload: Workload) -> float:
    """Return the number of operations of the algorithm that needs the fewest operations.

    Args:
        task: the task, whose schedule space contains the algorithms.
        point: the sizes of the workload's dynamic dimensions.
        workload: the task's workload at these sizes.
    """
    direct = 2.0 * (costs.macs(workload) - costs.padding_macs(workload))
    counts = [direct]
    for space in task.space.subspaces:
        if template_of(space.algorithm).transforms:
            counts += _counts(task, point, workload, space)
    return min(counts)


def _counts(task: Task, point: SizePoint, workload: Workload, space: SubSpace) -> list[float]:
    """Return the numbers of operations of a fast algorithm, one for each of its variants.

    For example, Winograd has a variant for each number of outputs that a transform computes at a
    time. A variant is a value of the knob `outputs`. If the algorithm has no such knob, a variant
    is a value of its first knob. All other knobs have their default values.

    Args:
        task: the task.
        point: the sizes of the workload's dynamic dimensions.
        workload: the task's workload at these sizes.
        space: the schedules of the algorithm.
    """
    counts = []
    knobs = [knob for knob in space.knobs if knob.name == "outputs"] or space.knobs[:1]
    for knob in knobs:
        for value in knob.values:
            choices = tuple((n, value if n == knob.name else v) for n, v in space.default.choices)
            schedule = type(space.default)(space.algorithm, choices)
            try:
                nest = task.lower(schedule)
            except ScheduleError:
                continue
            fixed = nest.at(dict(point.sizes)) if point.sizes else nest
            counts.append(executed_flops(workload, schedule, fixed))
    return counts
