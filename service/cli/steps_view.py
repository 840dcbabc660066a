"""A progress line with the current step of a command."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live

from tilewright.service.cli.verbosity import Verbosity, verbosity

Tell = Callable[[str], None]


@contextmanager
def telling(out: Console | None) -> Iterator[Tell]:
    """Yield a function that shows the name of a command's current step.

    On a terminal it updates one line, and otherwise it prints a line per step. It shows nothing
    without a console, or with `--quiet`.
    """
    if out is None or verbosity() is Verbosity.QUIET:
        yield lambda _step: None
    elif out.is_terminal:
        with Live(console=out, refresh_per_second=4, transient=True) as live:
            yield live.update
    else:
        yield lambda step: out.print(step, soft_wrap=True, markup=False)
