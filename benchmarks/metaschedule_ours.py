"""Our tuner on one ONNX file, as a child process that reports its measurements.

`python -m benchmarks.metaschedule_ours MODEL FOLDER TRIALS SECONDS SEED` tunes from an empty
database in FOLDER. The time includes planning. It prints lines in the protocol of
`benchmarks.metaschedule_runs`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import onnx

from benchmarks.metaschedule_runs import tell
from tilewright.compiler import driver
from tilewright.compiler.mode import Mode
from tilewright.compiler.program.build import CODEGEN_VERSION
from tilewright.compiler.targets.detection import this_device
from tilewright.compiler.targets.host import host_target
from tilewright.service.settings import Settings
from tilewright.service.storage import open_storage
from tilewright.tuner.events import Ended
from tilewright.tuner.loop import tune
from tilewright.tuner.measure.builder import ProcessBuilder
from tilewright.tuner.measure.local_runner import LocalRunner
from tilewright.tuner.options import TuneOptions
from tilewright.tuner.protocol.measurement import Phase, Trial
from tilewright.tuner.tasks import make_task


def search(path: Path, folder: Path, trials: int, seconds: float, seed: int) -> None:
    """Tune until one of the budgets is used up, and print every trial.

    The results are stored in a database in `folder`.
    """
    tell("start")
    started = time.time()
    storage = open_storage(Settings(data_folder=folder))
    builder, runner = ProcessBuilder(), LocalRunner()
    try:
        target = host_target()
        plan = driver.make_plan(
            driver.optimise(driver.load_graph(onnx.load(path)), Mode(target)), Mode(target)
        )
        tasks = [make_task(workload, Mode(target), count=count) for workload, count in plan.tasks()]
        tell("tasks", weights=[task.count for task in tasks])
        options = TuneOptions(
            trials=trials,
            device=this_device().brief(),
            seconds=max(1.0, seconds - (time.time() - started)),
            seed=seed,
            codegen_version=CODEGEN_VERSION,
        )
        finished = tune(tasks, builder, runner, storage.records, options)
        for number, task in enumerate(tasks):
            default = task.space.default()
            found = storage.records.trials(task.key)
            screened = [trial for trial in found if trial.phase is Phase.SCREEN]
            for at, trial in timed(screened):
                time_taken = trial.measurement.run_seconds
                if trial.schedule == default and time_taken is not None:
                    tell("default", task=number, seconds=time_taken)
                error = "" if trial.measurement.ok else trial.measurement.error
                tell(
                    "sample",
                    task=number,
                    wall_seconds=at - started,
                    seconds=time_taken,
                    error=error[-300:],
                )
        tell("end", out_of_time=finished.ended is Ended.TIME)
    finally:
        runner.close()
        builder.close()
        storage.close()


def timed(stored: Sequence[Trial]) -> list[tuple[float, Trial]]:
    """Pair each trial of a task with the Unix time in seconds at which its result was known.

    The trials are in the order of the store. Failed builds have no time of their own; they get the
    time of the next trial that has one. A copy of an earlier measurement has an old time, which is
    replaced by the latest time before it.
    """
    times = [trial.measurement.measured_at for trial in stored]
    following = time.time()
    for number in reversed(range(len(times))):
        times[number] = following = times[number] or following
    return list(zip(accumulate(times, max), stored, strict=True))


if __name__ == "__main__":
    model, data_folder, trials, seconds, seed = sys.argv[1:]
    search(Path(model), Path(data_folder), int(trials), float(seconds), int(seed))
