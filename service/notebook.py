"""HTML tables and curves that show results in notebooks.

Names of models, workloads and devices are not trusted. Every text is escaped, and the HTML
contains no scripts, no links and no external resources.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape

from tilewright.service.sentences import one_sentence

MOST_LINES = 400
"""Limit of the lines of a listing. A last line counts the rest."""

MOST_ROWS = 50
"""Limit of the rows of a table. A line below the table counts the rest."""

MOST_INDENTED = 80

WIDTH, HEIGHT, MARGIN = 420, 120, 4
"""Size of a curve, in pixels."""

SQUARE = 260
"""Side length of a scatter plot, in pixels."""


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], caption: str = "") -> str:
    """Return a table. Columns are right-aligned, except columns whose names begin with '<'."""
    left = [name.startswith("<") for name in columns]
    head = "".join(_cell("th", n.lstrip("<"), s) for n, s in zip(columns, left, strict=True))
    lines = [
        "".join(_cell("td", each, side) for each, side in zip(row, left, strict=True))
        for row in rows[:MOST_ROWS]
    ]
    more = len(rows) - MOST_ROWS
    below = f"<p>and {more} more</p>" if more > 0 else ""
    title = f"<caption style='text-align:left'>{_text(caption)}</caption>" if caption else ""
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{below}"


def bar(share: float, text: str) -> str:
    """Return a progress bar, for a share from 0 to 1, above a line of text."""
    filled = 100 * min(max(share if math.isfinite(share) else 0.0, 0.0), 1.0)
    return (
        "<div style='max-width:32em'><div style='background:#8884;border-radius:3px'>"
        f"<div style='background:#2a78d6;height:6px;border-radius:3px;width:{filled:.1f}%'></div>"
        f"</div><code>{_text(text)}</code></div>"
    )


def curve(points: Iterable[tuple[float, float]], label: str) -> str:
    """Return a step curve of points (time of tuning, latency reached by then), both in seconds."""
    known = [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
    if len(known) < 2:
        return f"<p>{_text(label)}</p>"
    (left, right), (low, high) = ((min(each), max(each)) for each in zip(*known, strict=True))
    wide, tall = WIDTH - 2 * MARGIN, HEIGHT - 2 * MARGIN

    def at(x: float, y: float) -> tuple[float, float]:
        across = (x - left) / (right - left or 1.0)
        up = (y - low) / (high - low or 1.0)
        return MARGIN + wide * across, MARGIN + tall * (1 - up)

    x, y = at(*known[0])
    path = [f"M{x:.1f} {y:.1f}"]
    for point in known[1:]:
        x, y = at(*point)
        path.append(f"H{x:.1f}V{y:.1f}")
    said = _text(label)
    return (
        f"<figure style='margin:0'><svg width='{WIDTH}' height='{HEIGHT}' role='img' "
        f"aria-label='{said}'><path d='{''.join(path)}' fill='none' stroke='#2a78d6' "
        f"stroke-width='2'/></svg><figcaption>{said}</figcaption></figure>"
    )


def dots(points: Iterable[tuple[float, float]], across: str, up: str) -> str:
    """Return a scatter plot of two positive quantities, with logarithmic scales and the diagonal.

    `across` and `up` name the quantities.
    """
    known = [(x, y) for x, y in points if 0.0 < x < math.inf and 0.0 < y < math.inf]
    said = _text(f"{len(known)} points: {across} to the right, {up} upwards")
    if not known:
        return f"<p>{said}</p>"
    low = math.log(min(map(min, known)))
    span = math.log(max(map(max, known))) - low or 1.0
    wide = SQUARE - 2 * MARGIN
    at = [[MARGIN + wide * (math.log(each) - low) / span for each in point] for point in known]
    circles = "".join(
        f"<circle cx='{x:.1f}' cy='{SQUARE - y:.1f}' r='2.5' fill='#2a78d6' fill-opacity='0.6'/>"
        for x, y in at
    )
    return (
        f"<figure style='margin:0'><svg width='{SQUARE}' height='{SQUARE}' role='img' "
        f"aria-label='{said}'><path d='M{MARGIN} {SQUARE - MARGIN}L{SQUARE - MARGIN} {MARGIN}' "
        f"fill='none' stroke='#8888'/>{circles}</svg><figcaption>{said}</figcaption></figure>"
    )


def listing(title: str, text: str) -> str:
    """Return a listing that is folded below its title."""
    lines = text.splitlines()
    shown = [_text_of_line(line) for line in lines[:MOST_LINES]]
    more = len(lines) - MOST_LINES
    if more > 0:
        shown.append(f"and {more} more lines")
    code = "\n".join(shown)
    return f"<details><summary>{_text(title)}</summary><pre>{code}</pre></details>"


def section(title: str, *parts: str) -> str:
    """Return HTML parts below a title in bold."""
    return f"<div><b>{_text(title)}</b>{''.join(parts)}</div>"


def paragraph(text: str) -> str:
    return f"<p>{_text(text)}</p>"


def _cell(tag: str, content: object, left: bool) -> str:
    side = "left" if left else "right"
    return f"<{tag} style='text-align:{side}'>{_text(content)}</{tag}>"


def _text_of_line(line: str) -> str:
    """Escape a line as `_text` does, and keep its indentation."""
    body = line.lstrip(" ")
    return " " * min(len(line) - len(body), MOST_INDENTED) + _text(body)


def _text(said: object) -> str:
    """Return a value as one line of HTML text, with markup and non-printable characters escaped."""
    return escape(one_sentence(str(said)), quote=True)
