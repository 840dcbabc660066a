"""Prints the output of `tilewright tune`: a progress line, and a report at the end."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from tilewright.db.storage import Storage
from tilewright.service.api.schemas.jobs import ProgressView
from tilewright.service.api.views import failures, task_view
from tilewright.service.cli.verbosity import Verbosity, verbosity
from tilewright.service.cli.view import listed_tasks
from tilewright.service.jobs.device.local_device import LocalDevice
from tilewright.service.jobs.pipeline.run_job import JobOutcome, JobWatcher
from tilewright.service.jobs.pipeline.tracker import Tracker
from tilewright.service.show.messages import kernels_text, result_lines, run_text
from tilewright.service.show.progress import LiveLine, phase_line, progress_line
from tilewright.service.show.text import failures_text
from tilewright.service.show.units import speedup
from tilewright.tuner.cancel import CancelToken
from tilewright.tuner.events import Event


class LineWatcher(JobWatcher):
    """Prints the progress of `tilewright tune`: an updated line, or a line per phase in a pipe.

    During tuning, Ctrl-C ends only the tuning; before and afterwards, it ends the program. The
    results are printed when tuning ends and before the artifact is built, because the build may
    fail.
    """

    def __init__(
        self,
        out: Console,
        line: LiveLine,
        storage: Storage,
        job_id: str,
        device: LocalDevice,
        token: CancelToken,
    ) -> None:
        self._out = out
        self._line = line
        self._storage = storage
        self._job_id = job_id
        self._device = device
        self._token = token

    def phase(self, name: str) -> None:
        if name == "planning":
            signal.signal(signal.SIGINT, lambda *_: self._token.cancel("interrupted"))
        self._line.show(name)

    def tasks(self, tracker: Tracker) -> None:
        self._line.show(phase_line(_progress(tracker), {}))

    def event(self, event: Event, tracker: Tracker) -> None:
        tracker.take(event)
        more = {"candidates_per_second": tracker.candidates_per_second}
        self._line.update(progress_line(_progress(tracker), more))

    def tuned(self, outcome: JobOutcome) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self._line.stop()
        out, finished, progress = self._out, outcome.finished, outcome.tracker.progress
        views = [task_view(row) for row in outcome.tracker.rows.values()]
        for part in listed_tasks(views, verbosity() is Verbosity.VERBOSE):
            out.print(part, soft_wrap=isinstance(part, str))
        out.print(
            f"{kernels_text(progress.default_seconds, progress.best_seconds)}"
            f"{finished.trials_done} trials, "
            f"{progress.trials_failed} failed, {finished.seconds_elapsed:.1f} s"
            + (f"; {finished.reason}" if finished.reason else ""),
            soft_wrap=True,
        )
        if progress.trials_failed:
            kinds = failures(self._storage.records.count_trials(self._job_id))
            out.print(f"failed trials: {failures_text(kinds)}", soft_wrap=True)
        speed = self._device.local_runner.speed
        if speed is not None and speed["throttled"]:
            out.print(
                "this machine is slow for long: the reference kernel runs at "
                f"{speedup(speed['arithmetic_ratio'])} and {speedup(speed['memory_ratio'])} of its "
                "best speeds (arithmetic, memory)"
            )


@contextmanager
def watching(
    out: Console,
    storage: Storage,
    job_id: str,
    device: LocalDevice,
    token: CancelToken,
) -> Iterator[LineWatcher]:
    """Yield a watcher that prints the progress of a tuning run to a console.

    Args:
        out: the console.
        storage: the database, which has the numbers of failed trials.
        job_id: the id of the tuning job.
        device: the device, whose speed is reported if it is throttled.
        token: is cancelled if the user presses Ctrl-C during tuning.
    """
    with LiveLine(None if verbosity() is Verbosity.QUIET else out) as line:
        yield LineWatcher(out, line, storage, job_id, device, token)


def _progress(tracker: Tracker) -> ProgressView:
    return ProgressView.model_validate(tracker.progress, from_attributes=True)


def tell(out: Console, report: Mapping[str, Any], output: Path | None) -> None:
    """Print which schedules a tuned model uses, the reason, and the speed-up.

    Args:
        out: the console.
        report: the job's result as JSON data.
        output: the folder of the artifact, for a line on how to run it; None without an artifact.
    """
    for line in result_lines(report):
        out.print(line, soft_wrap=True, markup=False)
    if output is not None:
        tell_artifact(out, output)


def tell_artifact(out: Console, folder: Path) -> None:
    """Print the path of an artifact, and a command that runs it."""
    out.print(f"artifact: {folder}", soft_wrap=True, markup=False)
    out.print(run_text(folder), soft_wrap=True, markup=False)
