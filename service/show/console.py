r"""Console output that is safe for untrusted text.

Names of workers, models and tokens, error messages and answers of services may contain control
sequences of terminals. The console prints these escaped, such as `\x1b`, so that no terminal
executes them.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING

from tilewright.service.show.text import visible

if TYPE_CHECKING:
    from rich.console import Console, JustifyMethod
    from rich.table import Table as RichTable

    from tilewright.service.show.table import Table


def console(stderr: bool = False) -> Console:
    """Return a console on standard output or standard error.

    Tables are as wide as the terminal, or 160 columns in a pipe.
    """
    made = _console_class()
    found = made(stderr=stderr)
    return found if found.is_terminal else made(width=160, stderr=stderr)


def rich_table(table: Table) -> RichTable:
    """Convert a table for output on a console.

    Numbers stay on one line, unless a cell of their column has a note. All other cells may be
    wrapped.
    """
    from rich.table import Table as RichTable
    from rich.text import Text

    made = RichTable(title=table.title or None, title_justify="left", box=None, header_style="bold")
    for position, column in enumerate(table.columns):
        number, noted = column.is_number, any(row[position].note for row in table.rows)
        side: JustifyMethod = "right" if number else "left"
        made.add_column(column.title, justify=side, no_wrap=number and not noted)
    for row in table.rows:
        cells = zip(table.columns, row, strict=True)
        made.add_row(*(Text(column.text(cell)) for column, cell in cells))
    return made


def rich_facts(facts: Iterable[tuple[str, str]]) -> RichTable:
    """Return a table for a console with a row per (name, text) pair. The names are bold."""
    from rich.table import Table as RichTable
    from rich.text import Text

    made = RichTable(box=None, show_header=False, padding=(0, 2, 0, 0))
    for name, text in facts:
        made.add_row(Text(name, style="bold"), Text(text))
    return made


@cache
def _console_class() -> type[Console]:
    """Return the class of safe consoles.

    It is defined at the first call, because rich is slow to import.
    """
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class SafeConsole(Console):
        """A console that escapes control sequences in texts, so that only rich can set colours."""

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
