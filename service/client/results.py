"""Results of the client: views of the REST interface that notebooks show as tables and curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.service.api.schemas.jobs import CurveView, JobView, TaskView
from tilewright.service.show import notebook
from tilewright.service.show.job_charts import curve_chart
from tilewright.service.show.progress import progress_line, share_done
from tilewright.service.show.table import table
from tilewright.service.show.tables import jobs, tasks
from tilewright.service.show.text import one_sentence
from tilewright.service.show.units import ratio


class Job(JobView):
    """A tuning job. A notebook shows its state and a progress bar."""

    @property
    def gain(self) -> float | None:
        """Speed-up of the best kernels so far over the untuned ones; None before a measurement."""
        return ratio(self.progress.default_seconds, self.progress.best_seconds)

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
    """A tuning task of a job: one workload. A notebook shows it as a table."""

    def _repr_html_(self) -> str:
        return Tasks([self])._repr_html_()


class Curve(CurveView):
    """The progress of a job over time. A notebook shows it as a chart."""

    def _repr_html_(self) -> str:
        chart = curve_chart(self, "seconds")
        if chart is None:
            return notebook.paragraph("nothing was measured yet")
        return notebook.chart(chart)


class Jobs(list[Job]):
    """A list of jobs, the newest first. A notebook shows it as a table."""

    def _repr_html_(self) -> str:
        return notebook.table(table(jobs.NOTEBOOK, self))


class Tasks(list[Task]):
    """A list of the tasks of a job. A notebook shows it as a table."""

    def _repr_html_(self) -> str:
        return notebook.table(table(tasks.NOTEBOOK, tasks.task_lines(self)))


@dataclass(frozen=True)
class Tuned:
    """The result of `Client.tune`.

    Attributes:
        job: the job at its end.
        tasks: the tasks of the job.
        curve: the progress of the job.
        artifact: the folder that `tilewright.load_artifact` loads. None if no artifact was
            requested or built.
    """

    job: Job
    tasks: Tasks
    curve: Curve
    artifact: Path | None

    @property
    def gain(self) -> float | None:
        """Speed-up of the tuned kernels over the untuned ones; None if unknown."""
        return self.job.gain

    def _repr_html_(self) -> str:
        parts: Sequence[Any] = (self.job, self.curve, self.tasks)
        return "".join(part._repr_html_() for part in parts)
