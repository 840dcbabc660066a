"""Imports and plans a job's model in a child process with memory and time limits.

If a model exceeds the limits or crashes the child, other jobs of the tuner process are not
affected.
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
"""Divisor of the machine's memory: reading and planning one model may take at most 1 / SHARE of
it."""

UNKNOWN_BYTES = 8 << 30
"""Memory limit in bytes for planning a model on a machine that does not report its memory."""


def memory_limit(settings: Settings) -> int:
    """Return the memory limit, in bytes, of a child process that reads and plans a model."""
    return settings.planning_memory_bytes or (total_bytes() or SHARE * UNKNOWN_BYTES) // SHARE


def planning_limits(settings: Settings) -> Limits:
    """Return the configured memory and time limits of a child process that reads and plans a
    model.
    """
    return Limits(memory_limit(settings), settings.planning_seconds)


def plan_bounded(
    spec: JobSpec, limits: Limits, stop: Stop, timings: Timings | None = None
) -> tuple[Planned, ...]:
    """Plan all programs of a job's model in a child process (`segment_planning.plan_programs`).

    Args:
        spec: the specification of the job.
        limits: the limits of the child process.
        stop: ends the child process at once.
        timings: receives the seconds of each step.

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
        the plans, without the model's bytes, and the seconds of each planning step.
    """
    timings = Timings()
    plans = plan_programs(spec.request, spec.options.sizes, None, timings)
    check_draws(plans)  # it computes parts of the model
    return tuple(map(without_model, plans)), timings.stages


def without_model(planned: Planned) -> Planned:
    """Return a copy of a plan without the bytes of the model, to be sent to another process."""
    return _with_model(planned, b"")


def _with_model(planned: Planned, model: Path | bytes) -> Planned:
    return replace(planned, request=replace(planned.request, model=model))


def given_bounded(
    spec: JobSpec, files: GivenFiles, limits: Limits | None, stop: Stop
) -> GivenInputs:
    """Read the inputs that the user gives a job, in a child process.

    Args:
        spec: the specification of the job.
        files: the files and numbers that the user gives.
        limits: the limits of the child process; None to read in this process.
        stop: ends the child process at once.

    Raises:
        CompilerError: if a file is invalid, a sample or number does not fit the model, or reading
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
    """Return the error to raise if the child process for planning ended without a result.

    A crash is also logged.

    Args:
        found: the reason for a missing result.
        limits: the limits of the child process.
    """
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
    """Log the crash of a child process as a bug, with the output of the process."""
    import structlog

    structlog.get_logger("tilewright.children").error("bug", reason=found.text, words=found.words)
