"""Progress displays of a job: on a terminal, in a pipe, in a notebook."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, Self

from tilewright.service.api.schemas.jobs import JobEventView, ProgressView
from tilewright.service.show import notebook
from tilewright.service.show.text import one_sentence, with_reason
from tilewright.service.show.units import duration, milliseconds

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live


class Display(Protocol):
    """Context manager that displays the events of one job."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def event(self, event: JobEventView) -> None:
        """Display one event of the job."""


class Silent:
    """Displays nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def event(self, event: JobEventView) -> None:
        return None


class LiveLine:
    """A line that is updated on a terminal. In a pipe, each new step is printed as a line.

    It shows nothing without a console.
    """

    def __init__(self, out: Console | None) -> None:
        self._out = out
        self._live: Live | None = None
        self._step = ""

    def __enter__(self) -> Self:
        if self._out is not None and self._out.is_terminal:
            from rich.live import Live

            self._live = Live(console=self._out, refresh_per_second=4, transient=True)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def show(self, step: str, details: RenderableType | None = None) -> None:
        """Show that a step begins.

        A terminal shows `details`, if given, instead of the name of the step. Otherwise, the name
        is printed once per step.
        """
        self.update(step if details is None else details)
        if self._live is None and self._out is not None and step != self._step:
            self._out.print(step, soft_wrap=True, markup=False)
        self._step = step

    def update(self, details: RenderableType) -> None:
        """Update the line on a terminal; print nothing in a pipe."""
        if self._live is not None:
            self._live.update(details)

    def stop(self) -> None:
        """Remove the line from the terminal."""
        if self._live is not None:
            self._live.stop()


class OnConsole(LiveLine):
    """Updates a bar and a line on a terminal; prints one line per phase into a pipe."""

    def event(self, event: JobEventView) -> None:
        if event.kind == "progress":
            progress = ProgressView.model_validate(event.data)
            bar = _bar(share_done(progress), progress_line(progress, event.data))
            self.show(phase_line(progress, event.data), bar)
        elif (said := why(event)) is not None and self._out is not None:
            self._out.print(said, soft_wrap=True, markup=False)


class InNotebook:
    """Updates an HTML progress bar in the output of a notebook cell."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._lines: list[str] = []
        self._last = ProgressView()
        self._more: Mapping[str, Any] = {}

    def __enter__(self) -> Self:
        from IPython.display import display

        self._handle = display(self, display_id=True)
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def event(self, event: JobEventView) -> None:
        if event.kind == "progress":
            self._last, self._more = ProgressView.model_validate(event.data), event.data
        elif (said := why(event)) is not None:
            self._lines = [*self._lines[-4:], said]
        else:
            return
        if self._handle is not None:
            self._handle.update(self)

    def _repr_html_(self) -> str:
        line = one_sentence(progress_line(self._last, self._more))
        lines = "".join(notebook.paragraph(said) for said in self._lines)
        return notebook.bar(share_done(self._last), line) + lines


def display_for_here() -> Display:
    """Return the display for this process: for a notebook, for a terminal, or a silent one."""
    if _in_notebook():
        return InNotebook()
    if sys.stderr is not None and sys.stderr.isatty():
        from tilewright.service.show.console import console

        return OnConsole(console(stderr=True))
    return Silent()


def phase_line(progress: ProgressView, more: Mapping[str, Any]) -> str:
    """Return the phase of a job on a line that changes a few times per job: "tuning 12 tasks".

    `more` is the data of the progress event.
    """
    line = progress.phase or "waiting"
    if line == "tuning":
        line += f" {progress.tasks_total} tasks"
    return line + (", no worker yet" if more.get("workers") == 0 else "")


def progress_line(progress: ProgressView, more: Mapping[str, Any]) -> str:
    """Return phase, tasks, trials, best latency so far and remaining time on one line.

    `more` is the data of the progress event.
    """
    parts = [
        f"{progress.phase or 'waiting'}",
        f"tasks {progress.tasks_done}/{progress.tasks_total}",
        f"trials {progress.trials_done}/{progress.trials_budget}",
        f"best {milliseconds(progress.best_seconds)} "
        f"(untuned {milliseconds(progress.default_seconds)})",
    ]
    rate = more.get("candidates_per_second")
    if isinstance(rate, float):
        parts.append(f"{rate:.1f}/s")
    if progress.forecast_gain is not None:
        parts.append(f"next minute -{100 * progress.forecast_gain:.1f} %")
    if progress.seconds_left is not None:
        parts.append(f"{duration(progress.seconds_left)} left")
    if more.get("workers") == 0:
        parts.append("no worker yet")
    return "  ".join(parts)


def share_done(progress: ProgressView) -> float:
    """Return the fraction of a job's trials that are done, from 0 to 1."""
    budget = progress.trials_budget
    return min(progress.trials_done / budget, 1.0) if budget > 0 else 0.0


def why(event: JobEventView) -> str | None:
    """Return state and reason of a state event: "waiting for worker: ..."; None for others."""
    if event.kind != "state" or "reason" not in event.data:
        return None
    state = str(event.data.get("state", "state")).replace("_", " ")
    return with_reason(state, str(event.data["reason"] or ""))


def _bar(share: float, line: str) -> Any:
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.text import Text

    return Group(Text(line), ProgressBar(total=1.0, completed=share, width=60))


def _in_notebook() -> bool:
    """Whether this process is a Jupyter kernel. IPython in a terminal does not count."""
    interactive = sys.modules.get("IPython")
    shell = interactive.get_ipython() if interactive is not None else None
    return getattr(shell, "kernel", None) is not None
