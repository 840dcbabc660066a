"""One description of a table, on a terminal, in a notebook and on a page."""

from __future__ import annotations

import html
import io
import xml.etree.ElementTree as ET

from rich.console import Console

from tests.unit.service.pages import HOSTILE, Elements
from tilewright.service.dashboard.pages import _templates
from tilewright.service.show import notebook
from tilewright.service.show.console import rich_table
from tilewright.service.show.table import Cell, CellKind, Column, table

COLUMNS = (
    Column[int]("name", lambda n: Cell(f"{HOSTILE} {n}", f"jobs/{n}", key="k" * 64), CellKind.NAME),
    Column[int]("state", lambda n: "waiting_for_worker", CellKind.STATE),
    Column[int]("us", lambda n: Cell(str(n), note="a note", hint="a hint", share=(0.5, 3))),
    Column[int]("trials", lambda n: Cell(f"{n}/8", done=(n, 8)), hint="of a job"),
    Column[int]("schedule", lambda n: "gemm " * n, CellKind.CODE, most=12),
    Column[int]("made", lambda n: Cell("today", bold=n == 4), CellKind.MOMENT),
)
TABLE = table(COLUMNS, (1, 4), "Two")


def test_a_terminal_shows_texts() -> None:
    out = Console(file=io.StringIO(), width=200)
    out.print(rich_table(TABLE))
    title, head, *rows = (line.rstrip() for line in out.file.getvalue().splitlines())  # type: ignore[attr-defined]
    assert title == "Two" and head.split() == ["name", "state", "us", "trials", "schedule", "made"]
    assert [" ".join(row.split()) for row in rows] == [
        f"{HOSTILE} 1 kkkkkk waiting for worker 1 (a note) 1/8 gemm today",
        f"{HOSTILE} 4 kkkkkk waiting for worker 4 (a note) 4/8 gemm...gemm today",
    ]


def test_a_narrow_terminal_folds_numbers_with_notes() -> None:
    columns = [Column[int]("failed", lambda n: Cell("3 of 1,204", note="3 wrong"))]
    out = Console(file=io.StringIO(), width=12)
    out.print(rich_table(table(columns, [1])))
    lines = [line.strip() for line in out.file.getvalue().splitlines()]  # type: ignore[attr-defined]
    assert lines == ["failed", "3 of 1,204", "(3 wrong)"]


def test_a_notebook_shows_texts() -> None:
    shown = ET.fromstring(notebook.table(TABLE))
    cells = [[cell.text for cell in row] for row in shown.iter("tr")]
    assert cells[0] == ["name", "state", "us", "trials", "schedule", "made"]
    assert cells[1][:4] == [f"{HOSTILE} 1 kkkkkk", "waiting for worker", "1 (a note)", "1/8"]
    sides = [str(cell.get("style"))[-5:] for cell in next(shown.iter("tr"))]
    assert sides == [":left", ":left", "right", "right", ":left", ":left"]


def test_a_page_shows_links_bars_and_notes() -> None:
    macros = _templates.get_template("macros.html").make_module({"root": "/dashboard"})
    seen = Elements(macros.table(TABLE, "Two", ids="row"))  # type: ignore[attr-defined]
    assert [a["href"] for a in seen.named("a")] == ["/dashboard/jobs/1", "/dashboard/jobs/4"]
    assert [a.get("id") for a in seen.named("tr")] == [None, "row1", "row2"]
    assert [(a["value"], a["max"]) for a in seen.named("progress")] == [("1", "8"), ("4", "8")]
    assert {a["width"] for a in seen.named("rect")} == {"50.0"}
    assert seen.named("span")[0]["class"] == "state waiting_for_worker"
    assert len(seen.named("strong")) == 1
    assert seen.named("code")[0]["title"] == "k" * 64
    titles = [a.get("title") for a in (*seen.named("th"), *seen.named("td"))]
    assert "of a job" in titles and "a hint" in titles
    text = str(seen.text)
    assert "a note" in text and "usTrials" in text and HOSTILE in html.unescape(text)
