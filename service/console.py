r"""Console output that is safe for untrusted text.

Names of workers, models and tokens, errors and answers may contain control sequences of terminals.
The console prints these escaped, such as `\x1b`, so that no terminal executes them.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def visible(text: str) -> str:
    """Return the text with non-printable characters escaped, except line feeds and tabs."""
    if text.isprintable():
        return text
    return "".join(
        c if c in "\n\t" or c.isprintable() else c.encode("unicode_escape").decode() for c in text
    )


def console(stderr: bool = False) -> Console:
    """Return a console on standard output or standard error.

    Tables are as wide as the terminal, or 160 columns in a pipe.
    """
    made = _console_class()
    found = made(stderr=stderr)
    return found if found.is_terminal else made(width=160, stderr=stderr)


@cache
def _console_class() -> type[Console]:
    """Return the class of safe consoles. Built at first use, because rich is slow to import."""
    from collections.abc import Iterable

    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class SafeConsole(Console):
        """A console on which only rich itself sets colours and moves the cursor."""

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
