"""TVM's MetaSchedule on one ONNX file, as a child process in the interpreter that has TVM.

`python -m benchmarks.metaschedule_peer tune MODEL FOLDER TRIALS SECONDS SEED` tunes; `defaults
MODEL` times the tasks as TVM compiles them untuned. It prints lines in the protocol of
`benchmarks.metaschedule_runs`. Strategy, cost model and task scheduler are TVM's own, with a batch
and population size for small budgets. Builder and runner work in this process. TVM's own start
processes that import all of TVM again, which takes longer than their time limit of 30 s on a small
machine.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tvm
import tvm.s_tir.tensor_intrin.x86
from tvm import relax
from tvm.ir.utils import derived_object
from tvm.relax.frontend.onnx import from_onnx
from tvm.s_tir import meta_schedule
from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock

from benchmarks.metaschedule_runs import tell

BUILD_THREADS = 2
REPEATS = 3
SAMPLE_SECONDS = 0.02
SLOW_SECONDS = 0.2
"""A kernel that takes longer is run only once, which leaves more time for other candidates."""
LARGEST_BATCH = 16
"""Maximum number of candidates in a batch, that is searched, built and measured together.

With TVM's default of 64, a small budget would be a single batch, its first result would come after
64 builds, and the cost model would learn nothing. A batch is smaller if the trials would not
suffice for one batch per task, because each task gets a batch before any gets a second one.
"""
POPULATION = 64
"""Population size of TVM's evolutionary search.

With TVM's default of 512, searching one batch takes a third of a minute, so few candidates are
measured within a small time budget. The larger population is not better, because the cost model
guesses until it has 100 samples.
"""

TOO_LATE = "its time was up"


class Session:
    """State of a TVM tuning process: a clock, a lock, and the measured times.

    The builder, the runner and the report share the state. TVM has no time budget. A thread
    therefore ends the process after `seconds`, but never between building a batch and recording it
    in the database: the lock is held while a batch is processed. After `seconds`, the remaining
    candidates of the batch fail, and are not counted as trials.
    """

    def __init__(self, seconds: float) -> None:
        self.scheduler = meta_schedule.TaskScheduler.create("gradient")
        self.measured_at: list[float] = []
        self._started = time.monotonic()
        self._measuring = threading.Lock()
        self._seconds = seconds
        threading.Thread(target=self._end_in_time, daemon=True).start()

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._started

    @property
    def is_over(self) -> bool:
        return self.elapsed > self._seconds

    def begin_batch(self) -> None:
        """Called before a batch is built. Acquires the lock that prevents the process from exiting.

        By default, TVM records no results until every task has had its first batch. Calling
        `touch_task` for each task makes TVM record each batch before the next one.
        """
        for number in range(len(self.scheduler.tasks_)):
            self.scheduler.touch_task(number)
        self._measuring.acquire()

    def end_batch(self) -> None:
        """Called after a batch is recorded.

        Releases the lock that prevents the process from exiting.
        """
        self._measuring.release()

    def _end_in_time(self) -> None:
        time.sleep(self._seconds)
        with self._measuring:
            tell("end", out_of_time=True)
            os._exit(0)


def build_candidate(item: Any) -> Any:
    """Compile one candidate to a loaded module; on failure, return the error as text."""
    try:
        module = RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(item.mod)
        return tvm.compile(module, target=item.target).jit()
    except Exception as error:  # noqa: BLE001 - whatever TVM raises is the candidate's failure
        return f"{type(error).__name__}: {error}"


_built: dict[str, Any] = {}
"""Modules that the builder passes to the runner, by the path that TVM hands over."""


@derived_object
class Builder(meta_schedule.builder.PyBuilder):  # type: ignore[misc]  # TVM has no types
    """A MetaSchedule builder that compiles candidates in threads."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session

    def build(self, build_inputs: list[Any]) -> list[Any]:
        self.session.begin_batch()
        results = []
        with ThreadPoolExecutor(BUILD_THREADS) as pool:
            for number, built in enumerate(pool.map(self._build, build_inputs)):
                if isinstance(built, str):
                    results.append(meta_schedule.builder.BuilderResult(None, built))
                    continue
                name = f"{time.monotonic_ns()}-{number}"
                _built[name] = built
                results.append(meta_schedule.builder.BuilderResult(name, None))
        return results

    def _build(self, item: Any) -> Any:
        return TOO_LATE if self.session.is_over else build_candidate(item)


@derived_object
class Future(meta_schedule.runner.PyRunnerFuture):  # type: ignore[misc]  # as above
    """A MetaSchedule future whose result is available from the start."""

    def __init__(self, seconds: list[float] | None, error: str | None) -> None:
        super().__init__()
        self.seconds, self.error = seconds, error

    def done(self) -> bool:
        return True

    def result(self) -> Any:
        return meta_schedule.runner.RunnerResult(self.seconds, self.error)


@derived_object
class Runner(meta_schedule.runner.PyRunner):  # type: ignore[misc]  # as above
    """A MetaSchedule runner that times the candidates one after the other."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session

    def run(self, runner_inputs: list[Any]) -> list[Any]:
        self.session.measured_at = []
        return [self._time(item) for item in runner_inputs]

    def _time(self, item: Any) -> Any:
        if self.session.is_over:
            return Future(None, TOO_LATE)
        try:
            found, error = cpu_seconds(_built.pop(item.artifact_path), item.args_info), None
        except Exception as problem:  # noqa: BLE001 - as above
            found, error = None, f"{type(problem).__name__}: {problem}"
        self.session.measured_at.append(self.session.elapsed)
        return Future(found, error)


def cpu_seconds(module: Any, arguments_info: list[Any]) -> list[float]:
    """Time a kernel on random arguments.

    Each of the samples, in seconds, is a mean over several runs. The clock is the process's CPU
    time, which excludes other processes, as in our own runner for one thread.
    """
    rng = np.random.default_rng(0)
    arguments = []
    for info in arguments_info:
        _, dtype, shape = info.as_json()
        array = rng.standard_normal([int(extent) for extent in shape])
        arguments.append(tvm.runtime.tensor(array.astype(str(dtype))))
    main = module["main"]
    started = time.process_time()
    main(*arguments)
    once = time.process_time() - started
    if once > SLOW_SECONDS:
        return [once]
    count = max(1, math.ceil(SAMPLE_SECONDS / max(once, 1e-6)))
    samples = []
    for _ in range(REPEATS):
        started = time.process_time()
        for _ in range(count):
            main(*arguments)
        samples.append((time.process_time() - started) / count)
    return samples


def load(path: Path) -> tuple[Any, Any, list[Any]]:
    """The model as a Relax module, the target, and the tasks that MetaSchedule extracts."""
    target = tvm.target.Target(
        {"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu(), "num-cores": 1}
    )
    module = from_onnx(onnx.load(path), keep_params_in_input=False)
    with target:
        module = relax.get_pipeline("zero")(module)
    return module, target, meta_schedule.relax_integration.extract_tasks(module, target)


def search(path: Path, folder: Path, trials: int, seconds: float, seed: int) -> None:
    """Tune until one of the budgets is used up, and print every trial.

    The results are stored in a database in `folder`.
    """
    # its cost model guesses by NumPy's generator until it has been trained
    np.random.seed(seed)
    tell("start")
    session = Session(seconds)
    module, target, tasks = load(path)
    tell("tasks", weights=[int(task.weight) for task in tasks])

    @derived_object
    class Report(meta_schedule.measure_callback.PyMeasureCallback):  # type: ignore[misc]  # as above
        """Prints the trials of a batch after they were recorded in the database."""

        def apply(self, scheduler: Any, task: int, candidates: Any, builds: Any, runs: Any) -> None:
            times = iter(session.measured_at)
            for build, result in zip(builds, runs, strict=True):
                error = build.error_msg or (result and result.error_msg) or ""
                if error == TOO_LATE:
                    continue
                found = [] if result is None or not result.run_secs else list(result.run_secs)
                tell(
                    "sample",
                    task=task,
                    wall_seconds=session.elapsed if build.error_msg else next(times),
                    seconds=min((float(t) for t in found), default=None),
                    error=error[-300:],
                )
            session.end_batch()

    meta_schedule.relax_integration.tune_relax(
        module,
        {},
        target,
        str(folder),
        trials,
        num_trials_per_iter=max(1, min(LARGEST_BATCH, trials // len(tasks))),
        builder=Builder(session),
        runner=Runner(session),
        measure_callbacks=[
            meta_schedule.measure_callback.AddToDatabase(),
            meta_schedule.measure_callback.UpdateCostModel(),
            Report(),
        ],
        task_scheduler=session.scheduler,
        strategy=meta_schedule.search_strategy.EvolutionarySearch(population_size=POPULATION),
        seed=seed,
    )
    tell("end", out_of_time=False)


def time_defaults(path: Path) -> None:
    """Time every task without a schedule, as TVM's CPU pipeline compiles it; print the times."""
    tell("start")
    _, target, tasks = load(path)
    tell("tasks", weights=[int(task.weight) for task in tasks])
    for number, task in enumerate(tasks):
        plain = task.dispatched[0]
        info = meta_schedule.arg_info.ArgInfo.from_entry_func(plain)
        found = cpu_seconds(tvm.compile(plain, target=target).jit(), info)
        tell("default", task=number, seconds=min(found))
    tell("end", out_of_time=False)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["defaults", model]:
            time_defaults(Path(model))
        case ["tune", model, folder, trials, seconds, seed]:
            search(Path(model), Path(folder), int(trials), float(seconds), int(seed))
        case other:
            raise SystemExit(f"cannot read {other}: see the head of this file")
