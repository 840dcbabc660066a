"""Tables, described once for the terminal, notebooks and the dashboard.

A `Column` has a title and a function that returns a row's cell. `console.rich_table`,
`notebook.table` and the dashboard's macro `table` render the same description. Each leaves out
details that its medium cannot show, such as links on a terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Generic, TypeVar

from tilewright.service.show.text import LIMIT, one_sentence

Row = TypeVar("Row")


class CellKind(StrEnum):
    """The kind of content of a column, which determines how its cells are shown.

    Only numbers are right-aligned. A name is the header of its row. The words of a state are joined
    by `_`, which is shown as a space.
    """

    NAME = "name"
    TEXT = "text"
    NUMBER = "number"
    STATE = "state"
    CODE = "code"
    MOMENT = "moment"


@dataclass(frozen=True, slots=True)
class Cell:
    """The content of a table cell, with details that only the dashboard shows completely.

    Attributes:
        text: the content.
        link: the address to which the cell links, relative to the dashboard's root; "" for none.
        key: a key whose first characters are shown after the text, to distinguish equal texts.
        note: a second text: in a less prominent colour on pages, in parentheses elsewhere.
        hint: a tooltip.
        bold: whether the text is bold.
        done: (finished number, total number), shown as a progress bar.
        share: (fraction from 0 to 1, number of a colour), shown as a bar.
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
        of: returns the cell for the item of a row.
        kind: the kind of content.
        hint: an explanation of the title.
        most: the largest number of characters of a cell on a terminal.
        verbatim: whether pages must not capitalise the first letter of the title.
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
        """Format a cell as one line of text of at most `most` characters.

        The first characters of the key and the note in parentheses follow the text: "revoked
        (2026-03-01 09:30)". All other details are left out.
        """
        text = cell.text.replace("_", " ") if self.kind is CellKind.STATE else cell.text
        key = f" {cell.key[:6]}" if cell.key else ""
        note = f" ({cell.note})" if cell.note else ""
        return one_sentence(f"{text}{key}{note}", self.most)


@dataclass(frozen=True, slots=True)
class Table:
    """A table as data, which each output medium renders.

    Attributes:
        columns: the columns.
        rows: the cells of each row, one per column.
        title: the title of the table.
        items: the items from which the rows were computed, one per row.
    """

    columns: tuple[Column[Any], ...]
    rows: tuple[tuple[Cell, ...], ...]
    title: str = ""
    items: tuple[Any, ...] = field(default=(), repr=False)


def table(columns: Sequence[Column[Row]], items: Iterable[Row], title: str = "") -> Table:
    """Return a table with a row per item.

    Each column's function `of` computes the cell for an item.
    """
    known = tuple(items)
    rows = tuple(tuple(_cell(column.of(item)) for column in columns) for item in known)
    return Table(tuple(columns), rows, title, known)


def _cell(found: Cell | str) -> Cell:
    return Cell(found) if isinstance(found, str) else found
