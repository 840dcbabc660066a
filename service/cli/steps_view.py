"""One line that says what a command does just now."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live

Tell = Callable[[str], None]


@contextmanager
def telling(out: Console | None) -> Iterator[Tell]:
    """One line that says what goes on: rewritten on a terminal, else a line for each step."""
    if out is None:
        yield lambda _step: None
    elif out.is_terminal:
        with Live(console=out, refresh_per_second=4, transient=True) as live:
            yield live.update
    else:
        yield lambda step: out.print(step, soft_wrap=True, markup=False)
