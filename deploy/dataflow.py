"""Generate the data flow diagram in ARCHITECTURE.md: `python -m deploy.dataflow`.

The script writes docs/dataflow.svg. Boxes are values, and arrows are the functions between them. A
test checks that the committed file is up to date and that the names in boxes are classes of the
code.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

PICTURE = Path(__file__).parents[1] / "docs" / "dataflow.svg"

COLUMN, ROW = 158, 96
"""Distances between the centres of neighbouring boxes, in pixels."""
WIDTH, HEIGHT = 104, 36
"""Size of a box, in pixels."""
MARGIN = 12
STYLE = """
rect { fill: #eef3fb; stroke: #2f6fdf; stroke-width: 1.2 }
rect.end { fill: #fdf3e6; stroke: #e08b2c }
rect.page { fill: #fff; stroke: none }
path { fill: none; stroke: #555; stroke-width: 1.2; marker-end: url(#head) }
text { font: 12px sans-serif; fill: #222; text-anchor: middle; dominant-baseline: middle }
text.step { font-size: 11px; font-style: italic; fill: #555 }
""".strip()


@dataclass(frozen=True, slots=True)
class Box:
    """A box of the diagram: the name of a value or class, and its column and row in the grid."""

    name: str
    column: int
    row: int
    end: bool = False
    """Whether the value enters or leaves the compiler, such as the ONNX bytes."""

    @property
    def x(self) -> int:
        """The horizontal centre of the box in pixels."""
        return MARGIN + WIDTH // 2 + self.column * COLUMN

    @property
    def y(self) -> int:
        """The vertical centre of the box in pixels."""
        return MARGIN + HEIGHT // 2 + self.row * ROW


BOXES = (
    Box("ONNX bytes", 0, 0, end=True),
    Box("Graph", 1, 0),
    Box("GraphPlan", 2, 0),
    Box("Workload", 3, 0),
    Box("ScheduleSpace", 4, 0),
    Box("Schedule", 4, 1),
    Box("LoopNest", 3, 1),
    Box("object code", 2, 1),
    Box("Measurement", 1, 1),
    Box("TuningRecord", 0, 1),
    Box("Program", 2, 2),
    Box("artifact", 3, 2, end=True),
    Box("Model", 4, 2, end=True),
)
ARROWS = (
    ("ONNX bytes", "Graph", "frontend"),
    ("Graph", "GraphPlan", "passes"),
    ("GraphPlan", "Workload", "partition"),
    ("Workload", "ScheduleSpace", "x Target"),
    ("ScheduleSpace", "Schedule", "search"),
    ("Schedule", "LoopNest", "lower"),
    ("LoopNest", "object code", "codegen"),
    ("object code", "Measurement", "runner"),
    ("Measurement", "TuningRecord", "verify"),
    ("Program", "artifact", "write"),
    ("artifact", "Model", "load"),
)
"""Straight arrows between neighbouring boxes: (start, end, label). The label is the function that
computes the end from the start."""
JOINED = ("TuningRecord", "Program", "plan + best schedules + memory plan")
"""The arrow from the second row to the third, which goes around a corner: (start, end, label)."""


def picture() -> str:
    """Return the diagram as SVG. The result is deterministic."""
    places = {box.name: box for box in BOXES}
    right = max(box.x for box in BOXES) + WIDTH // 2 + MARGIN
    bottom = max(box.y for box in BOXES) + HEIGHT // 2 + MARGIN
    size = f'viewBox="0 0 {right} {bottom}" width="{right}" height="{bottom}"'
    head = '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
        "<title>The values between ONNX bytes and a loaded model</title>",
        f"<style>{STYLE}</style>",
        f'<defs>{head}orient="auto"><polygon points="0,0 8,4 0,8" fill="#555"/></marker></defs>',
        f'<rect class="page" width="{right}" height="{bottom}"/>',
    ]
    for start, end, step in ARROWS:
        lines += _straight(places[start], places[end], step)
    lines += _around(places[JOINED[0]], places[JOINED[1]], JOINED[2])
    for box in BOXES:
        kind = ' class="end"' if box.end else ""
        corner = f'x="{box.x - WIDTH // 2}" y="{box.y - HEIGHT // 2}"'
        lines.append(f'<rect{kind} {corner} width="{WIDTH}" height="{HEIGHT}" rx="5"/>')
        lines.append(f'<text x="{box.x}" y="{box.y}">{escape(box.name)}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def _straight(start: Box, end: Box, step: str) -> Iterator[str]:
    """Yield SVG lines for an arrow between neighbours in a row or column, with the label `step`."""
    if start.row == end.row:
        side = WIDTH // 2 if end.column > start.column else -WIDTH // 2
        yield f'<path d="M{start.x + side} {start.y} H{end.x - side}"/>'
        yield _label((start.x + end.x) // 2, start.y - 12, step)
    else:
        yield f'<path d="M{start.x} {start.y + HEIGHT // 2} V{end.y - HEIGHT // 2}"/>'
        yield _label(start.x - 26, (start.y + end.y) // 2, step)


def _around(start: Box, end: Box, step: str) -> Iterator[str]:
    """Yield SVG lines for an arrow that goes down and then right, with the label `step`."""
    yield f'<path d="M{start.x} {start.y + HEIGHT // 2} V{end.y} H{end.x - WIDTH // 2}"/>'
    yield _label((start.x + end.x - WIDTH // 2) // 2, end.y - 12, step)


def _label(x: int, y: int, text: str) -> str:
    return f'<text class="step" x="{x}" y="{y}">{escape(text)}</text>'


if __name__ == "__main__":
    PICTURE.write_text(picture())
    print(PICTURE)
