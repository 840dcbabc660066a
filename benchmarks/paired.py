"""Small models on several engines in one process: the same arrays, interleaved runs, minima.

It is for single operators, whose kernels take microseconds to milliseconds. Every engine is called
as Python users call it, and allocates its outputs itself. The clock is the process's CPU time on
one thread, to which other processes do not add. The fastest of many short samples is the time of an
undisturbed kernel.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from benchmarks.engines import load_openvino
from benchmarks.peers import Arrays, Run
from benchmarks.race import LARGEST_ERROR, REFERENCE
from tilewright.compiler import driver
from tilewright.compiler.api import compile_model
from tilewright.compiler.mode import Mode
from tilewright.compiler.program.build import CODEGEN_VERSION
from tilewright.compiler.program.kernels import ScheduleSource
from tilewright.compiler.runtime.packing import aligned_empty
from tilewright.compiler.runtime.verify import compare
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.targets.detection import this_device
from tilewright.compiler.targets.host import host_target
from tilewright.tuner.loop import tune
from tilewright.tuner.measure.builder import ProcessBuilder
from tilewright.tuner.measure.local_runner import LocalRunner
from tilewright.tuner.measure.measurement import RecordKey
from tilewright.tuner.options import TuneOptions
from tilewright.tuner.store import MemoryStore
from tilewright.tuner.tasks import make_task


@dataclass(slots=True)
class PairedResult:
    """Fastest seconds of a run by engine; why an engine is missing; its error to the reference."""

    seconds: dict[str, float] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)

    def speed(self, engine: str) -> float | None:
        """The reference's time over the engine's: above 1 the engine is faster."""
        if engine not in self.seconds or REFERENCE not in self.seconds:
            return None
        return self.seconds[REFERENCE] / self.seconds[engine]


@dataclass(frozen=True, slots=True)
class Sampling:
    """`samples` turns an engine, each of about `sample_seconds` and one run at least."""

    samples: int = 20
    sample_seconds: float = 0.002


class Tuner:
    """Tunes small models on this machine; use it as a context manager."""

    def __init__(self, trials: int) -> None:
        """`trials` is for each workload."""
        self.trials = trials
        self._builder = ProcessBuilder()
        self._runner = LocalRunner()
        self._store = MemoryStore()
        self._runs = 0

    def schedules(self, model: Any) -> ScheduleSource:
        """The best schedules of the model's workloads after `trials` trials each."""
        target = host_target()
        plan = driver.make_plan(
            driver.optimise(driver.load_graph(model), Mode(target)), Mode(target)
        )
        tasks = [make_task(workload, Mode(target), count=count) for workload, count in plan.tasks()]
        # models share workloads: changes of layout above all
        unknown = [task for task in tasks if self._store.best_record(task.key) is None]
        self._runs += 1
        options = TuneOptions(
            trials=self.trials * len(unknown),
            batch_size=min(8, self.trials),
            device=this_device().brief(),
            codegen_version=CODEGEN_VERSION,
            job_id=f"run {self._runs}",  # requests are known by it: the runner takes each once
        )
        if unknown:
            tune(unknown, self._builder, self._runner, self._store, options)
        return _Found(self._store)

    def __enter__(self) -> Tuner:
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.close()
        self._builder.close()


@dataclass(frozen=True, slots=True)
class _Found:
    """The records of a store as a source of schedules."""

    store: MemoryStore

    def best(self, workload_key: str, mode: Mode) -> Schedule | None:
        record = self.store.best_record(RecordKey(workload_key, *mode.key))
        return None if record is None else record.schedule


def aligned(array: NDArray[Any]) -> NDArray[Any]:
    """A copy that no engine has to copy again: aligned to 64 bytes."""
    copy: NDArray[Any] = np.ndarray(array.shape, array.dtype, aligned_empty(array.nbytes))
    copy[...] = array
    return copy


def random_feeds(model: Any, seed: int) -> dict[str, NDArray[Any]]:
    """Standard normal values for every input, aligned."""
    random = np.random.default_rng(seed)
    return {
        info.name: aligned(
            random.standard_normal(
                [dim.dim_value for dim in info.type.tensor_type.shape.dim], np.float32
            )
        )
        for info in model.graph.input
    }


def compare_engines(
    model: Any,
    feeds: Arrays,
    sampling: Sampling,
    *,
    tuner: Tuner | None = None,
    openvino: bool = False,
) -> PairedResult:
    """The reference, Tilewright untuned, and those of the others that are asked for."""
    result = PairedResult()
    runs: dict[str, Run] = {REFERENCE: onnxruntime_run(model, feeds)}
    if openvino:
        runs["openvino"] = load_openvino(model, feeds, 1, "")
    with _failure_in(result, "untuned"):
        runs["untuned"] = tilewright_run(model, feeds, None)
    if tuner is not None:
        with _failure_in(result, "tuned"):
            runs["tuned"] = tilewright_run(model, feeds, tuner.schedules(model))
    expected = runs[REFERENCE]()
    for name in [name for name in runs if name != REFERENCE]:
        error = max(map(compare, runs[name](), expected))
        result.errors[name] = error
        if not error <= LARGEST_ERROR:
            result.failures[name] = f"its output differs by {error:.1e} of the largest"
            del runs[name]
    result.seconds = fastest_seconds(runs, sampling)
    return result


def fastest_seconds(runs: Mapping[str, Run], sampling: Sampling) -> dict[str, float]:
    """The fastest mean of a group of runs, by engine; the engines take turns."""
    groups = {}
    for name, run in runs.items():
        run()
        started = time.perf_counter()
        run()
        once = time.perf_counter() - started
        groups[name] = max(1, round(sampling.sample_seconds / once))
    best = dict.fromkeys(runs, float("inf"))
    order = list(runs)
    for _ in range(sampling.samples):
        for name in order:
            run, group = runs[name], groups[name]
            started = time.process_time()
            for _ in range(group):
                run()
            best[name] = min(best[name], (time.process_time() - started) / group)
        order.append(order.pop(0))
    return best


def versions(packages: Iterable[str]) -> str:
    """For a report: names with versions."""
    return ", ".join(f"{package} {version(package)}" for package in packages)


def onnxruntime_run(model: Any, feeds: Arrays) -> Run:
    """ONNX Runtime on one thread, called as Python users call it."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    inputs = dict(feeds)
    return lambda: list(session.run(None, inputs))


def tilewright_run(model: Any, feeds: Arrays, schedules: ScheduleSource | None) -> Run:
    """Tilewright on one thread, called as Python users call it."""
    executable = compile_model(model, schedules=schedules)
    inputs = dict(feeds)
    return lambda: executable.run(inputs)


@contextmanager
def _failure_in(result: PairedResult, engine: str) -> Iterator[None]:
    """Record a refusal or a bug of an engine as its result."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - hundreds of other shapes are yet to be measured
        result.failures[engine] = f"{type(error).__name__}: {error}"
