"""TVM's MetaSchedule on one ONNX file; runs in the interpreter that has TVM.

`python -m benchmarks.metaschedule_peer MODEL FOLDER TRIALS SECONDS SEED` prints a JSON line for
each measured candidate. Its builder and runner are in this process: TVM's own start processes that
import all of TVM again, which takes them over their time limit of 30 s on a small machine.
"""

from __future__ import annotations

import json
import sys
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

BUILD_THREADS = 2
REPEATS = 3
SAMPLE_MILLISECONDS = 20
LARGEST_BATCH = 10
"""Candidates between two trainings of its cost model; fewer where there are many tasks, each of
which gets one batch before any gets a second."""


class BudgetSpent(Exception):
    """Ends the search: TVM has no budget of seconds."""


def build_candidate(item: Any) -> Any:
    """One candidate as a loaded module, or the text of why not."""
    try:
        module = RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(item.mod)
        return tvm.compile(module, target=item.target).jit()
    except Exception as error:  # noqa: BLE001 - whatever TVM raises is the candidate's failure
        return f"{type(error).__name__}: {error}"


_built: dict[str, Any] = {}
"""Modules between builder and runner, by the path that TVM passes on."""


@derived_object
class Builder(meta_schedule.builder.PyBuilder):  # type: ignore[misc]  # TVM has no types
    """Builds in threads."""

    def build(self, build_inputs: list[Any]) -> list[Any]:
        results = []
        with ThreadPoolExecutor(BUILD_THREADS) as pool:
            for number, built in enumerate(pool.map(build_candidate, build_inputs)):
                if isinstance(built, str):
                    results.append(meta_schedule.builder.BuilderResult(None, built))
                    continue
                name = f"{time.monotonic_ns()}-{number}"
                _built[name] = built
                results.append(meta_schedule.builder.BuilderResult(name, None))
        return results


@derived_object
class Future(meta_schedule.runner.PyRunnerFuture):  # type: ignore[misc]  # as above
    """A result that is there already."""

    def __init__(self, seconds: list[float] | None, error: str | None) -> None:
        super().__init__()
        self.seconds, self.error = seconds, error

    def done(self) -> bool:
        return True

    def result(self) -> Any:
        return meta_schedule.runner.RunnerResult(self.seconds, self.error)


@derived_object
class Runner(meta_schedule.runner.PyRunner):  # type: ignore[misc]  # as above
    """Times one candidate after the other."""

    def run(self, runner_inputs: list[Any]) -> list[Any]:
        return [self._time(item) for item in runner_inputs]

    def _time(self, item: Any) -> Any:
        module = _built.pop(item.artifact_path)
        rng = np.random.default_rng(0)
        try:
            arguments = [
                tvm.runtime.tensor(rng.standard_normal(info["shape"]).astype(info["dtype"]))
                for info in map(_tensor_info, item.args_info)
            ]
            timer = module.time_evaluator(
                "main", tvm.cpu(), number=1, repeat=REPEATS, min_repeat_ms=SAMPLE_MILLISECONDS
            )
            return Future([float(s) for s in timer(*arguments).results], None)
        except Exception as error:  # noqa: BLE001 - whatever TVM raises is the candidate's failure
            return Future(None, f"{type(error).__name__}: {error}")


def _tensor_info(info: Any) -> dict[str, Any]:
    _, dtype, shape = info.as_json()
    return {"dtype": str(dtype), "shape": [int(n) for n in shape]}


def search(path: Path, folder: Path, trials: int, seconds: float, seed: int) -> None:
    """Tune within both budgets; the database in `folder` holds what was found."""
    started = time.monotonic()
    target = tvm.target.Target(
        {"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu(), "num-cores": 1}
    )
    module = from_onnx(onnx.load(path), keep_params_in_input=False)
    with target:
        module = relax.get_pipeline("zero")(module)
    tasks = meta_schedule.relax_integration.extract_tasks(module, target)
    weights = [task.weight for task in tasks]
    batch = max(1, min(LARGEST_BATCH, trials // (2 * len(tasks))))
    best: list[float | None] = [None] * len(tasks)
    measured = 0

    @derived_object
    class Report(meta_schedule.measure_callback.PyMeasureCallback):  # type: ignore[misc]  # as above
        """Prints what was measured."""

        def apply(self, scheduler: Any, task: int, candidates: Any, builds: Any, runs: Any) -> None:
            nonlocal measured
            for build, result in zip(builds, runs, strict=True):
                measured += 1
                times = [] if result is None or not result.run_secs else list(result.run_secs)
                found = min((float(t) for t in times), default=None)
                if found is not None:
                    best[task] = min(found, best[task] or found)
                known = [t * w for t, w in zip(best, weights, strict=True) if t is not None]
                line = {
                    "trials": measured,
                    "wall_seconds": time.monotonic() - started,
                    "seconds": sum(known) if len(known) == len(best) else None,
                    "error": (build.error_msg or (result and result.error_msg) or "")[-300:],
                }
                print(json.dumps(line), flush=True)
            if time.monotonic() - started > seconds:
                raise BudgetSpent

    try:
        meta_schedule.relax_integration.tune_relax(
            module,
            {},
            target,
            str(folder),
            trials,
            num_trials_per_iter=batch,
            builder=Builder(),
            runner=Runner(),
            measure_callbacks=[
                meta_schedule.measure_callback.AddToDatabase(),
                meta_schedule.measure_callback.UpdateCostModel(),
                Report(),
            ],
            seed=seed,
        )
    except Exception:
        # BudgetSpent crosses C++, which makes a RuntimeError of it.
        if time.monotonic() - started <= seconds:
            raise


if __name__ == "__main__":
    model, folder, trials, seconds, seed = sys.argv[1:]
    search(Path(model), Path(folder), int(trials), float(seconds), int(seed))
