"""Displays of a job's progress: on a terminal, in a pipe, and in a notebook."""

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
    """A display that shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def event(self, event: JobEventView) -> None:
        return None


class LiveLine:
    """Context manager for one line of progress on a terminal, which is overwritten at each update.

    In a pipe, the name of each step is printed as a line of its own. Nothing is shown if `out` is
    None.
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
        """Show that a step begins or continues.

        A terminal shows `details` if given, and otherwise the name of the step. In a pipe, the name
        is printed only when the step changes.
        """
        self.update(step if details is None else details)
        if self._live is None and self._out is not None and step != self._step:
            self._out.print(step, soft_wrap=True, markup=False)
        self._step = step

    def update(self, details: RenderableType) -> None:
        """Replace the line on a terminal. Does nothing in a pipe."""
        if self._live is not None:
            self._live.update(details)

    def stop(self) -> None:
        """Remove the line from the terminal."""
        if self._live is not None:
            self._live.stop()


class OnConsole(LiveLine):
    """A display on a console.

    On a terminal it is a progress bar and a line, and in a pipe a line per phase.
    """

    def event(self, event: JobEventView) -> None:
        if event.kind == "progress":
            progress = ProgressView.model_validate(event.data)
            bar = _bar(share_done(progress), progress_line(progress, event.data))
            self.show(phase_line(progress, event.data), bar)
        elif (said := why(event)) is not None and self._out is not None:
            self._out.print(said, soft_wrap=True, markup=False)


class InNotebook:
    """A display in a notebook: an HTML progress bar in the output of the current cell."""

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
    """Return the display for this process: for a notebook, for a terminal, or silent."""
    if _in_notebook():
        return InNotebook()
    if sys.stderr is not None and sys.stderr.isatty():
        from tilewright.service.show.console import console

        return OnConsole(console(stderr=True))
    return Silent()


def phase_line(progress: ProgressView, more: Mapping[str, Any]) -> str:
    """Return the job's phase as a short line: "tuning 12 tasks".

    The line changes only a few times per job, so it can be printed into a pipe. `more` is the data
    of the progress event.
    """
    line = progress.phase or "waiting"
    if line == "tuning":
        line += f" {progress.tasks_total} tasks"
    return line + (", no worker yet" if more.get("workers") == 0 else "")


def progress_line(progress: ProgressView, more: Mapping[str, Any]) -> str:
    """Return one line with the job's phase, tasks, trials, best latency so far and remaining time.

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
    """Return the finished fraction of a job's budget of trials, from 0 to 1."""
    budget = progress.trials_budget
    return min(progress.trials_done / budget, 1.0) if budget > 0 else 0.0


def why(event: JobEventView) -> str | None:
    """Return the new state of a job and its reason: "waiting for worker: none is connected".

    Returns None for events of other kinds, and for state events without a reason.
    """
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
    """Return whether this process is the kernel of a Jupyter notebook.

    It returns False for IPython in a terminal.
    """
    interactive = sys.modules.get("IPython")
    shell = interactive.get_ipython() if interactive is not None else None
    return getattr(shell, "kernel", None) is not None
