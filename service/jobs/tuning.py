"""One model from tasks to a verified artifact: what the tuner process and `tilewright tune` do."""

from __future__ import annotations

import os
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from compiler import driver
from compiler.build import CODEGEN_VERSION
from compiler.device import DeviceFacts
from compiler.dtypes import DType
from compiler.graph.types import TensorType
from compiler.program_builder import CompiledProgram, ScheduleSource
from compiler.runtime.artifact import Artifact
from compiler.runtime.memory import check_memory
from compiler.timings import Timings
from db.storage import Storage
from service.jobs.cost_models import base_model
from service.jobs.planning import Planned, open_ports
from service.version import version
from tuner.cancel import CancelToken
from tuner.events import Event, Finished, Started
from tuner.loop import tune
from tuner.measure.builder import Builder
from tuner.measure.oracle import ReferenceCache
from tuner.measure.runner import Runner
from tuner.options import DEFAULT_STOP_GAIN, TuneOptions, TuningError
from tuner.tasks import Task

VERIFY_SEED = 7


@dataclass(frozen=True, slots=True)
class Budget:
    """How much a run may cost; it ends at the first limit that it meets.

    `stop_gain` is the share of the model's time that another minute must be expected to gain,
    `target_ms` what the kernels may add up to, in milliseconds. `strategy` None is the default;
    `unconstrained` is that of `TuneOptions`.
    """

    trials: int = 1000
    seconds: float | None = None
    seed: int = 0
    stop_gain: float = DEFAULT_STOP_GAIN
    target_ms: float | None = None
    strategy: str | None = None
    unconstrained: bool = False

    @classmethod
    def of_job(cls, options: Mapping[str, Any]) -> Budget:
        """The budget in the options of a job; what they leave out has its default.

        Raises:
            TuningError: if an option is unknown: none is silently ignored.
        """
        known = {name: value for name, value in options.items() if name != "dims"}
        unknown = set(known) - {field.name for field in fields(cls)}
        if unknown:
            raise TuningError(f"options that nobody knows: {', '.join(sorted(unknown))}")
        return cls(**known)

    def options(self) -> TuneOptions:
        """What the tune loop is given."""
        options = TuneOptions(
            trials=self.trials,
            seconds=self.seconds,
            seed=self.seed,
            stop_gain=self.stop_gain,
            target_seconds=None if self.target_ms is None else self.target_ms / 1000,
            unconstrained=self.unconstrained,
            codegen_version=CODEGEN_VERSION,
            compiler_version=version(),
        )
        return options if self.strategy is None else replace(options, strategy=self.strategy)


def tune_tasks(
    tasks: list[Task],
    storage: Storage,
    builder: Builder,
    runner: Runner,
    budget: Budget,
    *,
    job_id: str,
    on_event: Callable[[Event], None],
    token: CancelToken,
    references: ReferenceCache,
    device: DeviceFacts | None = None,
    bounds: Callable[[], Sequence[float]] | None = None,
    timings: Timings | None = None,
    beside: Timings | None = None,
) -> Finished:
    """Tune, with trials and records in the database, and what repeats the run.

    `device` is the one that measures, as far as it is known. `bounds`, `timings` and `beside` are
    those of `tuner.loop.tune`.

    Raises:
        TuningError: if the budget is impossible.
    """
    options = replace(
        budget.options(),
        base_model=b"" if all_known(tasks, storage) else base_model(storage, tasks[0].target.key),
        device=device and device.brief(),
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
        runner,
        storage.records,
        options,
        on_event=keep,
        token=token,
        references=references,
        bounds=bounds,
        timings=timings,
        beside=beside,
    )


def all_known(tasks: Sequence[Task], storage: Storage) -> bool:
    """Whether every task has a record that holds: there is nothing to build, run or learn."""
    records = (storage.records.best_record(task.key) for task in tasks)
    return all(record is not None and record.holds(CODEGEN_VERSION) for record in records)


def save_texts(planned: Planned, storage: Storage) -> None:
    """Keep what the keys of trials and records stand for."""
    target = planned.target
    storage.workloads.put_workloads({w.key: w.text() for w, _ in planned.workloads})
    storage.workloads.put_target(target.key, target.name, target.to_json())


def random_arrays(
    ports: Mapping[str, tuple[tuple[int, ...], DType]], seed: int = VERIFY_SEED
) -> dict[str, np.ndarray]:
    """Seeded inputs by name: standard normal for floats, zero and one for integers and truths.

    Zero and one are valid indices of every table with two rows. bfloat16 comes as its raw bits.

    Raises:
        OutOfMemoryError: if the machine cannot hold them.
    """
    needed = sum(TensorType(dtype, shape).bytes for shape, dtype in ports.values())
    check_memory(needed, "for arrays of the inputs")
    rng = np.random.default_rng(seed)
    inputs: dict[str, np.ndarray] = {}
    for name, (shape, dtype) in ports.items():
        values: np.ndarray
        if dtype.is_float:
            values = rng.standard_normal(shape, dtype=np.float32)
        else:
            values = rng.integers(0, 2, shape)
        if dtype.value == "bfloat16":
            bits = np.asarray(values, np.float32).view(np.uint32)
            inputs[name] = ((bits + 0x8000) >> 16).astype(np.uint16)
        else:
            inputs[name] = np.asarray(values, np.dtype(dtype.value))  # a scalar stays one
    return inputs


def build_artifact(
    planned: Sequence[Planned],
    schedules: ScheduleSource,
    folder: Path,
    weight_limit_bytes: int | None = None,
    *,
    pad: bool = False,
    timings: Timings | None = None,
    kernels: driver.KernelCache | None = None,
    check: Callable[[Artifact], object] = lambda made: None,
) -> tuple[CompiledProgram, ...]:
    """Compile one model at one or several sizes: an artifact folder.

    What it is built from is settled before (`service.jobs.no_regret`). With `pad`, sizes between
    those are padded up to the next ones when the artifact runs. `kernels` are what the same process
    has compiled before. `check` is that of `driver.save_artifact`.

    Raises:
        CompilerError: if it cannot be linked or written, the packed weights do not fit the limit,
            or outputs of padded inputs could not be cut back; or from `check`.
    """
    first = planned[0]
    builder = driver.ProgramBuilder(
        schedules,
        first.target,
        first.threads,
        first.numerics,
        weight_limit_bytes,
        timings,
        kernels=kernels,
    )
    ports = open_ports(planned, pad=pad)
    plans = {p.sizes: p.plan for p in planned}
    return driver.save_artifact(plans, builder, folder, ports, timings, check)


def store_artifact(folder: Path, storage: Storage) -> str:
    """Keep an artifact folder as one tar file among the blobs; its digest.

    The same folder always gives the same bytes.

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


def default_builders() -> int:
    """Builder processes for this machine: one for each core that it may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
