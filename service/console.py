r"""Consoles that obey nobody but us.

Names of workers, models and tokens, errors and answers were written by others. What a terminal
would obey in them is shown, as `\x1b`, and done by no terminal.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def visible(text: str) -> str:
    """The text with every character that is no print written out, but for line feeds and tabs."""
    if text.isprintable():
        return text
    return "".join(
        c if c in "\n\t" or c.isprintable() else c.encode("unicode_escape").decode() for c in text
    )


def console(stderr: bool = False) -> Console:
    """Standard output or standard error; tables are as wide as the terminal, or 160 columns into a
    pipe."""
    made = _console_class()
    found = made(stderr=stderr)
    return found if found.is_terminal else made(width=160, stderr=stderr)


@cache
def _console_class() -> type[Console]:
    """Made when the first command needs it: rich takes a while to import."""
    from collections.abc import Iterable

    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class SafeConsole(Console):
        """Colours and cursor movements are rich's own; no text brings any along."""

        def __init__(self, width: int | None = None, stderr: bool = False) -> None:
            super().__init__(highlight=False, markup=False, emoji=False, width=width, stderr=stderr)

        def render(
            self, renderable: RenderableType, options: ConsoleOptions | None = None
        ) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                if segment.control:
                    yield segment
                else:
                    yield Segment(visible(segment.text), segment.style)

    return SafeConsole
