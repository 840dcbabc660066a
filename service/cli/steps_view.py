"""Shows the current step of a command on a progress line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

from tilewright.service.cli.verbosity import Verbosity, verbosity
from tilewright.service.show.progress import LiveLine

Tell = Callable[[str], None]


@contextmanager
def telling(out: Console | None) -> Iterator[Tell]:
    """Yield a function that prints the name of the step that a command starts.

    On a terminal it updates one line, and otherwise it prints a line per step. It prints nothing if
    `out` is None, or with `--quiet`.
    """
    with LiveLine(None if verbosity() is Verbosity.QUIET else out) as line:
        yield line.show
