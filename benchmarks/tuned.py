"""Measure how fast models are tuned, and what tuning gains: `python -m benchmarks.tuned STEP`.

The step `tune` tunes models one after the other, each for a number of seconds, into a database in a
folder, like `tilewright tune`. It appends a line about each run to a file there. The step `report`
writes a table with a row per run:

- the measured candidates per second,
- the number of tasks (fused subgraphs to tune), and how many of them were searched,
- the time of the tuned program over that of the untuned one, for the kernels and end to end.

Similar tasks share one search. `benchmarks.race --schedules FOLDER` races the tuned models. The
steps are separate, so that a shared machine is needed only for short periods.

With `--target`, the code is for another processor, whose instructions this one supports too. The
folder then has an artifact per model. `benchmarks.race --schedules FOLDER/MODEL-PRECISION-TARGET`
races it with untuned code for the same target.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import models
from benchmarks.race import RESULTS_FOLDER
from benchmarks.report import Origin, geometric_mean, markdown_table, write_result
from tilewright.compiler.mode import Mode
from tilewright.compiler.targets.host import resolve_target
from tilewright.compiler.timings import Timings

LINES = "tuned.jsonl"
"""Name of the file in the folder that has a line of JSON per run."""


@dataclass(frozen=True, slots=True)
class TunedRun:
    """Cost and gain of tuning one model.

    Attributes:
        tasks: the number of fused subgraphs to tune.
        searched: the number of tasks that were searched. The others reused the schedules of a
            similar task.
        candidates, screening_seconds: the number of candidates that were measured first, and the
            time that this took.
        untuned_kernels, tuned_kernels: seconds of all kernels of one inference.
        ratio: the time of the tuned program over that of the untuned one.
        served: which of the two programs the service delivers.
        target: the processor for which the code was compiled.
    """

    model: str
    precision: str
    threads: int
    seconds: float
    tasks: int
    searched: int
    candidates: int
    screening_seconds: float
    trials: int
    failures: int
    ended: str
    untuned_kernels: float | None
    tuned_kernels: float | None
    ratio: float | None
    served: str
    target: str = "host"

    @property
    def rate(self) -> float:
        """Candidates per second in the first measurement (screening) of all candidates."""
        return self.candidates / self.screening_seconds if self.screening_seconds else 0.0


def tune(
    name: str, folder: Path, seconds: float, threads: int, precision: str, target: str = "host"
) -> TunedRun:
    """Tune a model into the database in `folder`, for `seconds`.

    For a target other than "host", also write an artifact there.

    Raises:
        CompilerError: if the model or the budget is invalid.
    """
    from tilewright.service.jobs.device.local_device import LocalDevice
    from tilewright.service.jobs.pipeline.job_spec import JobSpec
    from tilewright.service.jobs.pipeline.run_job import JobContext, JobWatcher, run_job
    from tilewright.service.jobs.process.builders import open_builder
    from tilewright.service.options import JobOptions
    from tilewright.service.settings import Settings
    from tilewright.service.storage import open_storage
    from tilewright.tuner.cancel import CancelToken

    settings = Settings(data_folder=folder)
    storage = open_storage(settings)
    beside = Timings()
    builder = open_builder(settings, beside)
    budget = JobOptions(trials=1_000_000, seconds=seconds, stop_gain=0.0)
    model = models.build(name).SerializeToString()
    spec = JobSpec(
        model, Mode(resolve_target(target), threads, precision=precision), options=budget
    )
    run_name = f"{name}-{precision}-{target}"
    try:
        with LocalDevice() as device:
            outcome = run_job(
                spec,
                device,
                JobContext(storage, builder, beside=beside),
                JobWatcher(),
                job_id=f"tuned-{run_name}-{threads}",
                token=CancelToken(),
                output=None if target == "host" else folder / run_name.replace(":", "-"),
            )
    finally:
        builder.close()
    storage.close()
    finished, progress = outcome.finished, outcome.tracker.progress
    assert outcome.selected is not None
    verdict = outcome.selected.verdict.to_json()
    compared = verdict["comparison"]
    return TunedRun(
        name,
        precision,
        threads,
        finished.seconds_elapsed,
        len(finished.tasks),
        sum(bool(task.trials) for task in finished.tasks),
        finished.screened.candidates,
        finished.screened.seconds,
        finished.trials_done,
        sum(task.failures for task in finished.tasks),
        finished.ended.value,
        progress.default_seconds,
        progress.best_seconds,
        None if compared is None else compared["ratio"],
        verdict["served"],
        target,
    )


def report(origin: Origin, runs: Sequence[TunedRun]) -> str:
    """The benchmark's report in Markdown, with a row per run."""
    header = [
        "model", "precision", "target", "threads", "seconds", "tasks", "searched", "trials",
        "failed", "candidates a second", "kernels untuned, ms", "tuned, ms", "tuned over untuned",
        "end to end", "served",
    ]  # fmt: skip
    rows = [
        [
            run.model,
            run.precision,
            run.target,
            str(run.threads),
            f"{run.seconds:.0f}",
            str(run.tasks),
            str(run.searched),
            str(run.trials),
            str(run.failures),
            f"{run.rate:.1f}",
            _ms(run.untuned_kernels),
            _ms(run.tuned_kernels),
            "-"
            if not (run.untuned_kernels and run.tuned_kernels)
            else f"{run.tuned_kernels / run.untuned_kernels:.3f}",
            "-" if run.ratio is None else f"{run.ratio:.3f}",
            run.served,
        ]
        for run in runs
    ]
    ratios = [min(1.0, run.ratio) for run in runs if run.ratio is not None]
    near = sum(ratio >= 0.9 for ratio in ratios)
    line = (
        f"Untuned defaults reach {geometric_mean(ratios):.0%} of the tuned speed (geometric mean), "
        f"and 90 % on {near} of {len(ratios)}."
        if ratios
        else "No model was raced end to end."
    )
    parts = ["# Tuned models", "", origin.sentence(), "", __doc__ or "", line, "", ""]
    return "\n".join(parts) + markdown_table(header, rows, 3)


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1e3 * seconds:.3f}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: `tune` models, or write the `report` of the tuned models."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("step", choices=["tune", "report"])
    parser.add_argument("--folder", type=Path, required=True, help="where the database lies")
    parser.add_argument("--models", nargs="+", choices=[*models.MODELS], default=[])
    parser.add_argument("--seconds", type=float, default=60.0, help="of each model")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--target", default="host")
    parser.add_argument("--output", type=Path, default=RESULTS_FOLDER / "tuned")
    asked = parser.parse_args(arguments)
    asked.folder.mkdir(parents=True, exist_ok=True)
    lines = asked.folder / LINES
    if asked.step == "tune":
        for name in asked.models:
            options = asked.seconds, asked.threads, asked.precision, asked.target
            run = tune(name, asked.folder, *options)
            with lines.open("a") as file:
                file.write(json.dumps(asdict(run)) + "\n")
            print(
                f"{name} {asked.precision}: {run.rate:.1f} candidates a second, {run}", flush=True
            )
        return
    runs = [TunedRun(**json.loads(line)) for line in lines.read_text().splitlines()]
    origin = Origin.of(asked)
    data = {"runs": [asdict(run) for run in runs]}
    write_result(asked.output, origin, data, report(origin, runs))


if __name__ == "__main__":
    main()
