"""Imports and plans a job's model in a child process with memory and time limits.

An error in the model, even a crash, does not affect the other jobs of the process.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, assert_never

from tilewright.compiler.errors import CompilerError, OutOfMemoryError
from tilewright.compiler.process import bounded
from tilewright.compiler.process.bounded import Limits, NoAnswer, Reason, Stop
from tilewright.compiler.runtime.memory import total_bytes
from tilewright.compiler.timings import StageTime, Timings
from tilewright.service.jobs.inputs.random_choices import check_draws
from tilewright.service.jobs.pipeline.job_spec import JobSpec
from tilewright.service.jobs.plan.planning import Planned
from tilewright.service.jobs.plan.segment_planning import plan_programs
from tilewright.service.jobs.process.interrupts import JobCancelled

# a child needs neither settings nor a log, which take a third of its start
if TYPE_CHECKING:
    from tilewright.service.jobs.inputs.given_files import GivenFiles
    from tilewright.service.jobs.inputs.given_inputs import GivenInputs
    from tilewright.service.settings import Settings

SHARE = 2
"""Reading and planning one model may take this fraction of the machine's memory: 1 / SHARE."""

UNKNOWN_BYTES = 8 << 30
"""The limit on a machine that does not report its memory."""


def memory_limit(settings: Settings) -> int:
    """Return the limit of the memory, in bytes, for reading and planning a model."""
    return settings.planning_memory_bytes or (total_bytes() or SHARE * UNKNOWN_BYTES) // SHARE


def planning_limits(settings: Settings) -> Limits:
    """Return the memory and time limits for reading and planning a model in a child of a tuner."""
    return Limits(memory_limit(settings), settings.planning_seconds)


def plan_bounded(
    spec: JobSpec, limits: Limits, stop: Stop, timings: Timings | None = None
) -> tuple[Planned, ...]:
    """Plan all programs of a job's model in a child process (`segment_planning.plan_programs`).

    Raises:
        CompilerError: if the model or the target is invalid or not supported, its programs cannot
            be planned, or planning exceeds the limits.
        JobCancelled: if `stop` ended the child.
    """
    began = time.perf_counter()
    found = bounded.run(plans_of, (spec,), limits, stop)
    if isinstance(found, NoAnswer):
        raise not_planned(found, limits)
    plans, stages = found
    if timings is not None:
        for stage in stages:
            timings.add(stage.stage, stage.seconds, stage.count)
        in_stages = sum(stage.seconds for stage in stages)
        timings.add("planning child", max(0.0, time.perf_counter() - began - in_stages))
    return tuple(_with_model(planned, spec.model) for planned in plans)


def plans_of(spec: JobSpec) -> tuple[tuple[Planned, ...], tuple[StageTime, ...]]:
    """Plan a job's model; the entry point of the child process.

    Returns:
        the plans, without the model's bytes, and the seconds of the stages of planning.
    """
    timings = Timings()
    plans = plan_programs(spec.request, spec.options.sizes, None, timings)
    check_draws(plans)  # it computes parts of the model
    return tuple(map(without_model, plans)), timings.stages


def without_model(planned: Planned) -> Planned:
    """Return the plan without the model's bytes, for a process that does not read the
    model again.
    """
    return _with_model(planned, b"")


def _with_model(planned: Planned, model: Path | bytes) -> Planned:
    return replace(planned, request=replace(planned.request, model=model))


def given_bounded(
    spec: JobSpec, files: GivenFiles, limits: Limits | None, stop: Stop
) -> GivenInputs:
    """Read a job's given inputs in a child process, or in this process if `limits` is None.

    Raises:
        CompilerError: if a file is invalid, a sample or a value does not fit the model, or reading
            exceeds the limits.
        JobCancelled: if `stop` ended the child.
    """
    if limits is None or not (files.files or files.values):
        return files.read(spec.model, spec.options.sizes)
    found = bounded.run(files.read, (spec.model, spec.options.sizes), limits, stop)
    if isinstance(found, NoAnswer):
        raise not_planned(found, limits)
    return found


def not_planned(found: NoAnswer, limits: Limits) -> CompilerError | JobCancelled:
    """Return the error to raise for a child that ended without a result."""
    what = "reading and planning the model"
    match found.reason:
        case Reason.ENDED:
            return JobCancelled("while its model was read")
        case Reason.MEMORY:
            gib = f"{limits.memory_bytes / (1 << 30):.3g} GiB"
            return OutOfMemoryError(
                f"{what} takes more memory than {gib} (TILEWRIGHT_PLANNING_MEMORY_BYTES)"
            )
        case Reason.TIME:
            return CompilerError(
                f"{what} takes longer than {limits.seconds:g} s (TILEWRIGHT_PLANNING_SECONDS)"
            )
        case Reason.CRASHED:
            tell_bug(found)
            return CompilerError(f"{what} failed: {found.text}")
        case _:
            assert_never(found.reason)


def tell_bug(found: NoAnswer) -> None:
    """Log a crash of a child as a bug, with the output of the child."""
    import structlog

    structlog.get_logger("tilewright.children").error("bug", reason=found.text, words=found.words)
