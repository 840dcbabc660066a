"""HTML tables and charts with which results are shown in notebooks.

Names of models, workloads and devices are untrusted. Every text is escaped, and the HTML contains
no scripts, no links and no external resources.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from tilewright.service.show.chart import Chart, ChartAxis, Mark
from tilewright.service.show.table import Column, Table
from tilewright.service.show.text import one_sentence

MOST_LINES = 400
"""Limit of the lines of a code listing. A last line states how many lines are omitted."""

MOST_ROWS = 50
"""Limit of the rows of a table. A line below the table states how many rows are omitted."""

MOST_INDENTED = 80

WIDTH, HEIGHT, MARGIN = 420, 200, 4
"""Width, height and margin of a chart, in pixels."""

DOT = "fill='#2a78d6' fill-opacity='0.6'"


def table(described: Table) -> str:
    """Return a table as HTML with at most `MOST_ROWS` rows.

    A line below it counts the omitted rows.
    """
    columns = described.columns
    head = "".join(_cell("th", column.title, column) for column in columns)
    lines = [
        "".join(_cell("td", c.text(cell), c) for c, cell in zip(columns, row, strict=True))
        for row in described.rows[:MOST_ROWS]
    ]
    more = len(described.rows) - MOST_ROWS
    below = f"<p>and {more} more</p>" if more > 0 else ""
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{below}"


def bar(share: float, text: str) -> str:
    """Return a progress bar as HTML, with a line of text below it.

    `share` is the filled fraction of the bar, from 0 to 1.
    """
    filled = 100 * min(max(share if math.isfinite(share) else 0.0, 0.0), 1.0)
    return (
        "<div style='max-width:32em'><div style='background:#8884;border-radius:3px'>"
        f"<div style='background:#2a78d6;height:6px;border-radius:3px;width:{filled:.1f}%'></div>"
        f"</div><code>{_text(text)}</code></div>"
    )


def chart(described: Chart) -> str:
    """Return a chart as SVG, above its description."""
    said = _text(described.said)
    places = [place for series in described.series for place in described.drawn(series)]
    if len(places) < 2:
        return f"<p>{said}</p>"
    across = _scale(described.x, [x for x, _, _ in places], WIDTH)
    up = _scale(described.y, [y for _, y, _ in places], HEIGHT)
    parts = []
    for series in described.series:
        at = [(across(x), HEIGHT - up(y)) for x, y, _ in described.drawn(series)]
        if series.mark is Mark.DOTS:
            parts += [f"<circle cx='{x:.1f}' cy='{y:.1f}' r='2.5' {DOT}/>" for x, y in at]
        elif at:
            (x, y), *others = at
            steps = series.mark is Mark.STEPS
            way = (f"H{x:.1f}V{y:.1f}" if steps else f"L{x:.1f} {y:.1f}" for x, y in others)
            line = "stroke='#8888'" if series.dashed else "stroke='#2a78d6' stroke-width='2'"
            parts.append(f"<path d='M{x:.1f} {y:.1f}{''.join(way)}' fill='none' {line}/>")
    return (
        f"<figure style='margin:0'><svg width='{WIDTH}' height='{HEIGHT}' role='img' "
        f"aria-label='{said}'>{''.join(parts)}</svg><figcaption>{said}</figcaption></figure>"
    )


def listing(title: str, text: str) -> str:
    """Return a long text as HTML that is collapsed below its title.

    It has at most `MOST_LINES` lines.
    """
    lines = text.splitlines()
    shown = [_text_of_line(line) for line in lines[:MOST_LINES]]
    more = len(lines) - MOST_LINES
    if more > 0:
        shown.append(f"and {more} more lines")
    code = "\n".join(shown)
    return f"<details><summary>{_text(title)}</summary><pre>{code}</pre></details>"


def section(title: str, *parts: str) -> str:
    """Return parts of HTML, preceded by a bold title."""
    return f"<div><b>{_text(title)}</b>{''.join(parts)}</div>"


def paragraph(text: str) -> str:
    return f"<p>{_text(text)}</p>"


def _scale(axis: ChartAxis, numbers: Sequence[float], length: int) -> Callable[[float], float]:
    """Return a function that maps a number on an axis to pixels.

    Args:
        axis: the axis.
        numbers: all plotted numbers, which determine the ends of an axis without `span`.
        length: the length of the axis with its margins, in pixels.
    """
    to = math.log if axis.log else float
    low, high = map(to, axis.span or (min(numbers), max(numbers)))
    return lambda number: MARGIN + (length - 2 * MARGIN) * (to(number) - low) / (high - low or 1.0)


def _cell(tag: str, content: str, column: Column[Any]) -> str:
    side = "right" if column.is_number else "left"
    return f"<{tag} style='text-align:{side}'>{_text(content)}</{tag}>"


def _text_of_line(line: str) -> str:
    """Return a line of code as escaped HTML text, with its indentation."""
    body = line.lstrip(" ")
    return " " * min(len(line) - len(body), MOST_INDENTED) + _text(body)


def _text(said: object) -> str:
    """Return a value as HTML text on one line. Markup and non-printable characters are escaped."""
    return escape(one_sentence(str(said)), quote=True)
