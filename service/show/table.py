"""Tables, described once for the terminal, the notebook and the dashboard.

A column gives the title and the cell of each row. `console.rich_table`, `notebook.table` and the
dashboard's macro `table` render the same description. A renderer leaves out what its medium cannot
show, such as links on a terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Generic, TypeVar

from tilewright.service.show.text import LIMIT, one_sentence

Row = TypeVar("Row")


class CellKind(StrEnum):
    """The kind of content of a column, which decides how cells are shown.

    Only numbers are right-aligned. A name is the header of its row. A state may have several words,
    joined by `_`.
    """

    NAME = "name"
    TEXT = "text"
    NUMBER = "number"
    STATE = "state"
    CODE = "code"
    MOMENT = "moment"


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell with details that the dashboard shows.

    Attributes:
        text: the content.
        link: an address below the dashboard's root.
        key: a key that distinguishes equal texts, shown by its start.
        note: a second text: in a quiet colour on pages, in parentheses elsewhere.
        hint: a text that appears when the pointer rests on the cell.
        bold: whether the text is bold.
        done: a finished and a total number, which a progress bar shows.
        share: a fraction from 0 to 1 and a colour, which a bar shows.
    """

    text: str
    link: str = ""
    key: str = ""
    note: str = ""
    hint: str = ""
    bold: bool = False
    done: tuple[int, int] | None = None
    share: tuple[float, int] | None = None


@dataclass(frozen=True)  # Python 3.11 cannot call the alias `Column[Row]` of a class with slots
class Column(Generic[Row]):
    """A column of a table.

    Attributes:
        title: the text of the header.
        of: returns the cell of a row.
        kind: the kind of content.
        hint: an explanation of the title.
        most: the limit of the characters of a cell on a terminal.
        verbatim: whether the title stays as it is where titles begin with a capital letter.
    """

    title: str
    of: Callable[[Row], Cell | str]
    kind: CellKind = CellKind.NUMBER
    hint: str = ""
    most: int = LIMIT
    verbatim: bool = False

    @property
    def is_number(self) -> bool:
        return self.kind is CellKind.NUMBER

    def text(self, cell: Cell) -> str:
        """Return a cell as one line of text of at most `most` characters.

        The note follows in parentheses: "revoked (2026-03-01 09:30)". Other details that only pages
        show are left out.
        """
        text = cell.text.replace("_", " ") if self.kind is CellKind.STATE else cell.text
        key = f" {cell.key[:6]}" if cell.key else ""
        note = f" ({cell.note})" if cell.note else ""
        return one_sentence(f"{text}{key}{note}", self.most)


@dataclass(frozen=True, slots=True)
class Table:
    """A table, as it is described for all media.

    Attributes:
        columns: the columns.
        rows: the cells of each row, one per column.
        title: the title of the table.
        items: the described values, one per row.
    """

    columns: tuple[Column[Any], ...]
    rows: tuple[tuple[Cell, ...], ...]
    title: str = ""
    items: tuple[Any, ...] = field(default=(), repr=False)


def table(columns: Sequence[Column[Row]], items: Iterable[Row], title: str = "") -> Table:
    """Return a table with a row per item. Each column makes its cell from the item."""
    known = tuple(items)
    rows = tuple(tuple(_cell(column.of(item)) for column in columns) for item in known)
    return Table(tuple(columns), rows, title, known)


def _cell(found: Cell | str) -> Cell:
    return Cell(found) if isinstance(found, str) else found
