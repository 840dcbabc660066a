"""Results of the client: views of the REST interface that notebooks show as tables and curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.service import notebook
from tilewright.service.api.schemas.jobs import CurveView, JobView, TaskView
from tilewright.service.client.task_results import schedule_text
from tilewright.service.progress import progress_line, share_done
from tilewright.service.sentences import one_sentence
from tilewright.service.units import finite, microseconds, milliseconds


class Job(JobView):
    """A tuning job."""

    @property
    def gain(self) -> float | None:
        """Speed-up of the kernels over the untuned ones so far; None before it is known."""
        default = finite(self.progress.default_seconds)
        best = finite(self.progress.best_seconds)
        return default / best if default and best else None

    def _repr_html_(self) -> str:
        line = one_sentence(progress_line(self.progress, {}))
        said = self.error or self.reason
        return notebook.section(
            f"job {self.id}: {self.state.replace('_', ' ')}, {self.model_name or self.model[:12]} "
            f"for {self.target}",
            notebook.bar(1.0 if self.final else share_done(self.progress), line),
            notebook.paragraph(one_sentence(said)) if said else "",
        )


class Task(TaskView):
    """One workload of a job."""

    def _repr_html_(self) -> str:
        return Tasks([self])._repr_html_()


class Curve(CurveView):
    """The progress of a job over time."""

    def _repr_html_(self) -> str:
        points = self.points
        start = points[0].at if points else 0.0
        best = [(p.at - start, finite(p.best_seconds)) for p in points]
        known = [(at, seconds) for at, seconds in best if seconds is not None]
        if not known:
            return notebook.paragraph("nothing was measured yet")
        (_, first), (seconds, last) = known[0], known[-1]
        label = f"{milliseconds(first)} to {milliseconds(last)} in {seconds:.0f} s"
        return notebook.curve(known, label)


class Jobs(list[Job]):
    """Jobs, the newest first."""

    def _repr_html_(self) -> str:
        return notebook.table(
            ("<job", "<state", "<model", "<target", "trials", "untuned", "best", "vs untuned"),
            [
                (
                    job.id[:12],
                    job.state.replace("_", " "),
                    job.model_name or job.model[:12],
                    job.target,
                    f"{job.progress.trials_done}/{job.progress.trials_budget}",
                    milliseconds(job.progress.default_seconds),
                    milliseconds(job.progress.best_seconds),
                    "-" if job.gain is None else f"{job.gain:.2f}x",
                )
                for job in self
            ],
        )


class Tasks(list[Task]):
    """The tasks of a job."""

    def _repr_html_(self) -> str:
        most = sorted(self, key=_cost, reverse=True)
        total = sum(map(_cost, self))
        return notebook.table(
            ("<workload", "count", "default us", "best us", "share", "trials", "<schedule"),
            [
                (
                    task.name,
                    task.count,
                    microseconds(task.default_seconds),
                    microseconds(task.best_seconds),
                    f"{100 * _cost(task) / total:.1f} %" if total else "-",
                    task.trials,
                    schedule_text(task.facts.get("schedule")),
                )
                for task in most
            ],
        )


@dataclass(frozen=True)
class Tuned:
    """The result of `Client.tune`.

    `artifact` is the folder that `tilewright.load_artifact` loads. It is None if no artifact was
    requested or built.
    """

    job: Job
    tasks: Tasks
    curve: Curve
    artifact: Path | None

    @property
    def gain(self) -> float | None:
        """Speed-up of the kernels over the untuned ones."""
        return self.job.gain

    def _repr_html_(self) -> str:
        parts: Sequence[Any] = (self.job, self.curve, self.tasks)
        return "".join(part._repr_html_() for part in parts)


def _cost(task: TaskView) -> float:
    seconds = finite(task.best_seconds) or finite(task.default_seconds) or 0.0
    return seconds * task.count
