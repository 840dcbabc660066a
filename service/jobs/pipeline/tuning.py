"""Steps of a job that several callers use: tuning tasks, building artifacts, and checks."""

from __future__ import annotations

import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from tilewright.compiler.program import artifacts
from tilewright.compiler.program.builder import CompiledProgram, ProgramBuilder
from tilewright.compiler.program.kernels import KernelCache, ScheduleSource
from tilewright.compiler.runtime.artifact import Artifact
from tilewright.compiler.timings import Timings
from tilewright.db.storage import Storage
from tilewright.service.jobs.device.device import Device
from tilewright.service.jobs.evidence.schedule_reviews import records_of
from tilewright.service.jobs.knowledge.cost_models import base_model
from tilewright.service.jobs.knowledge.ladder import borrowed, known
from tilewright.service.jobs.pipeline.job_spec import tune_options
from tilewright.service.jobs.plan.planned_ports import open_ports
from tilewright.service.jobs.plan.planning import Planned
from tilewright.service.options import JobBudget
from tilewright.tuner.cancel import CancelToken
from tilewright.tuner.events import Event, Finished, Started
from tilewright.tuner.loop import tune
from tilewright.tuner.measure.builder import Builder
from tilewright.tuner.measure.references import ReferenceCache
from tilewright.tuner.tasks import Task


def tune_tasks(
    tasks: list[Task],
    storage: Storage,
    builder: Builder,
    device: Device,
    budget: JobBudget,
    *,
    job_id: str,
    on_event: Callable[[Event], None],
    token: CancelToken,
    references: ReferenceCache,
    bounds: Callable[[], Sequence[float]] | None = None,
    timings: Timings | None = None,
    beside: Timings | None = None,
) -> Finished:
    """Tune tasks on a device, and return the result.

    Trials, records, and all data needed to replay the run are stored in the database.

    Args:
        tasks: the tasks.
        storage: the database.
        builder: the processes that compile candidates.
        device: the device that measures.
        budget: the limits of trials and time, and the search strategy.
        job_id: the id under which trials are stored.
        on_event: receives the events of the tuner.
        token: ends the tuning.
        references: the cache of expected outputs.
        bounds: returns a lower bound of each task's time, in seconds; see `tuner.loop.tune`.
        timings: receives the seconds of the tuner's steps.
        beside: receives the seconds in which the device measures.

    Raises:
        TuningError: if a limit of the budget is invalid.
    """
    facts = device.facts
    options = replace(
        tune_options(budget),
        base_model=b""
        if all_known(tasks, storage)
        else base_model(storage, tasks[0].mode.target.key),
        device=facts and facts.brief(),
        job_id=job_id,
    )

    run_id = job_id

    def keep(event: Event) -> None:
        nonlocal run_id
        if isinstance(event, Started):
            run_id = storage.runs.start(event)
        elif isinstance(event, Finished):
            storage.runs.finish(run_id, event)
        on_event(event)

    return tune(
        tasks,
        builder,
        device.runner,
        records_of(device, storage, job_id),
        options,
        on_event=keep,
        token=token,
        references=references,
        bounds=bounds,
        timings=timings,
        beside=beside,
        relatives=borrowed(tasks, storage),
    )


def all_known(tasks: Sequence[Task], storage: Storage) -> bool:
    """Whether every task has a valid record, so that nothing has to be measured."""
    return len(known(tasks, storage)) == len({task.key for task in tasks})


def save_texts(planned: Planned, storage: Storage) -> None:
    """Store the workloads (fused subgraphs) and the target of a plan in the database, by key.

    Trials and records have only the keys. The workloads are stored as text, the target as JSON.
    """
    target = planned.target
    storage.workloads.put_workloads({w.key: w.text() for w, _ in planned.workloads})
    storage.workloads.put_target(target.key, target.name, target.to_json())


def build_artifact(
    planned: Sequence[Planned],
    schedules: ScheduleSource,
    folder: Path,
    weight_limit_bytes: int | None = None,
    *,
    pad: bool = False,
    timings: Timings | None = None,
    kernels: KernelCache | None = None,
    check: Callable[[Artifact], object] = lambda made: None,
) -> tuple[CompiledProgram, ...]:
    """Compile one model at one or several sizes, and write an artifact folder.

    The caller makes the plans and selects the schedules (`service.jobs.evidence.end_to_end`).

    Args:
        planned: the plans, one per size.
        schedules: the schedules of the kernels.
        folder: the folder to create.
        weight_limit_bytes: the limit of the packed weights; None for no limit.
        pad: whether the artifact pads an input of another size up to the next compiled size.
        timings: receives the seconds of each step.
        kernels: the cache of kernels that this process has compiled.
        check: called with the artifact before the folder is created (`artifacts.save_artifact`).

    Returns:
        the compiled programs.

    Raises:
        CompilerError: if a program cannot be compiled, linked or written, the packed weights exceed
            the limit, an output of padded inputs could not be cropped, or `check` raises it.
    """
    builder = _builder(planned[0], schedules, weight_limit_bytes, timings, kernels)
    ports = open_ports(planned, pad=pad)
    if (stages := planned[0].stages) is not None:
        assert ports is not None
        plans_ = [p.served_plan for p in planned]
        return artifacts.save_segments(plans_, stages, builder, folder, ports, timings, check)
    plans = {() if p.open else p.sizes: p.served_plan for p in planned}
    return artifacts.save_artifact(plans, builder, folder, ports, timings, check)


def build_for_c(
    planned: Planned,
    schedules: ScheduleSource,
    weight_limit_bytes: int | None = None,
    timings: Timings | None = None,
    kernels: KernelCache | None = None,
) -> CompiledProgram:
    """Compile one model for a C library, at one size or for the ranges of its dimensions.

    Raises:
        CompilerError: if the model does not compile, or the packed weights exceed the limit.
    """
    builder = _builder(planned, schedules, weight_limit_bytes, timings, kernels)
    return builder.build(planned.served_plan)


def _builder(
    planned: Planned,
    schedules: ScheduleSource,
    weight_limit_bytes: int | None,
    timings: Timings | None,
    kernels: KernelCache | None = None,
) -> ProgramBuilder:
    return ProgramBuilder(schedules, planned.mode, weight_limit_bytes, timings, kernels=kernels)


def check_weight_limit(
    planned: Sequence[Planned], limit: int, kernels: KernelCache | None = None
) -> None:
    """Check that the packed weights of the untuned programs do not exceed `limit` bytes.

    Raises:
        CompilerError: if the weights exceed the limit.
    """
    first = planned[0]
    builder = ProgramBuilder(None, first.mode, limit, kernels=kernels)
    builder.reserve([each.served_plan for each in planned])


def check_ranges(planned: Sequence[Planned], kernels: KernelCache | None = None) -> None:
    """Check that each kernel for a range of sizes has a default schedule for the whole range.

    Raises:
        CompilerError: if no default schedule of a kernel supports all sizes of its range.
    """
    for each in planned:
        if each.open is not None:
            builder = ProgramBuilder(None, each.mode, kernels=kernels)
            builder.build(each.open.plan)


def store_artifact(folder: Path, storage: Storage) -> str:
    """Store an artifact folder as a blob in tar format, and return the digest of the blob.

    The tar file depends only on the names and contents of the files, so equal folders have equal
    digests.

    Raises:
        StorageError: if the disk is full.
    """
    with tempfile.TemporaryFile() as archive:
        with tarfile.open(fileobj=archive, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for path in sorted(folder.rglob("*")):
                tar.add(path, path.relative_to(folder), recursive=False, filter=_plain)
        archive.seek(0)

        def chunks() -> Iterator[bytes]:
            while chunk := archive.read(1 << 20):
                yield chunk

        digest, _ = storage.blobs.put_stream(chunks())
        return digest


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.mtime = entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mode = 0o755 if entry.isdir() else 0o644
    return entry
