"""Charts: scatter plots and curves, described once for the dashboard and notebooks.

The dashboard's script plots a chart with uPlot from `Chart.to_json`. Without scripts, a page shows
`Chart.table` instead. In notebooks, `notebook.chart` renders the chart as SVG, because results in
notebooks contain no scripts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tilewright.service.show.table import Cell, CellKind, Column, Table, table
from tilewright.service.show.units import finite

SMALLEST, LARGEST = 1e-12, 1e12
"""Smallest and largest plotted number. Devices may report absurd times, and uPlot does not finish
the ticks of a logarithmic axis that begins below 1e-16."""

MOST_ROWS = 50
"""Limit of the rows of the table below a chart."""


class Mark(StrEnum):
    """The way in which a chart shows the points of a series: as dots, a line, steps, or an edge.

    Two consecutive series with the mark EDGE are the edges of a band.
    """

    DOTS = "dots"
    LINE = "line"
    STEPS = "steps"
    EDGE = "edge"


@dataclass(frozen=True, slots=True)
class ChartAxis:
    """An axis of a chart.

    Attributes:
        title: the quantity.
        unit: the unit of the quantity, or "" for none.
        log: whether the scale is logarithmic.
        whole: whether the numbers are integers.
        names: the labels of the numbers 0, 1, 2..., for an axis of categories.
        span: the numbers at both ends. None: the smallest and the largest number in the chart.
    """

    title: str
    unit: str = ""
    log: bool = False
    whole: bool = False
    names: tuple[str, ...] = ()
    span: tuple[float, float] | None = None

    def drawn(self, number: float | None) -> float | None:
        """Return the number if the axis can show it, and otherwise None.

        An axis cannot show a number that is unknown, infinite or larger in magnitude than the limit
        `LARGEST`. A logarithmic axis cannot show a number below the limit `SMALLEST` either.
        """
        known = finite(number)
        if known is None or abs(known) > LARGEST or (self.log and known < SMALLEST):
            return None
        return known

    @property
    def label(self) -> str:
        return ", ".join(filter(None, (self.title, self.unit)))

    def text(self, number: float) -> str:
        """Format a number for a table. On an axis of categories, return its label instead."""
        return self.names[round(number)] if self.names else f"{number:.6g}"

    @classmethod
    def decades(cls, title: str, unit: str, numbers: list[float]) -> ChartAxis:
        """Return a logarithmic axis that shows all `numbers` and ends at powers of ten."""
        drawn = [n for n in numbers if SMALLEST <= n <= LARGEST] or [1.0]
        low, high = math.floor(math.log10(min(drawn))), math.ceil(math.log10(max(drawn)))
        return cls(title, unit, log=True, span=(10.0**low, 10.0 ** max(high, low + 1)))


@dataclass(frozen=True, slots=True)
class ChartPoint:
    """A point of a series.

    Attributes:
        x, y: the coordinates. The point is not shown if one of them is None.
        text: a description of the point.
        link: the address to which the point links, relative to the dashboard's root; "" for none.
        radius: the radius of the dot, in pixels.
        colour: the colour of the dot; "" for the colour of the series.
        limit: the largest possible y, which is shown as a mark above the dot; None for no mark.
    """

    x: float | None
    y: float | None
    text: str = ""
    link: str = ""
    radius: float = 3.0
    colour: str = ""
    limit: float | None = None


@dataclass(frozen=True, slots=True)
class Series:
    """Points of a chart that are shown in the same way, such as one curve.

    Attributes:
        name: the name of the series.
        points: the points.
        mark: how the points are shown.
        colour: the name of a colour in the dashboard's style sheet.
        dashed: whether the line is dashed.
    """

    name: str
    points: tuple[ChartPoint, ...]
    mark: Mark = Mark.DOTS
    colour: str = "accent"
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart of one or more series.

    Attributes:
        said: a sentence that describes the chart, for users who cannot see it.
        x: the horizontal axis.
        y: the vertical axis.
        series: the series.
    """

    said: str
    x: ChartAxis
    y: ChartAxis
    series: tuple[Series, ...]

    def drawn(self, series: Series) -> list[tuple[float, float, ChartPoint]]:
        """Return (x, y, point) for each point of a series that both axes can show."""
        places = ((self.x.drawn(p.x), self.y.drawn(p.y), p) for p in series.points)
        return [(x, y, p) for x, y, p in places if x is not None and y is not None]

    def to_json(self) -> dict[str, Any]:
        """Return the chart as JSON data for the dashboard's script.

        Series without points are left out.
        """
        return {
            "x": _axis(self.x),
            "y": _axis(self.y),
            "series": [
                {
                    "name": series.name,
                    "mark": series.mark,
                    "colour": series.colour,
                    "dashed": series.dashed,
                    **self._columns(series),
                }
                for series in self.series
                if self.drawn(series)
            ],
        }

    def _columns(self, series: Series) -> dict[str, Any]:
        """Return the points of a series as lists of coordinates and details, for `to_json`.

        A detail, such as the links, is left out if no dot has it.
        """
        drawn = self.drawn(series)
        found: dict[str, Any] = {"x": [x for x, _, _ in drawn], "y": [y for _, y, _ in drawn]}
        if series.mark is Mark.DOTS:
            points = [point for _, _, point in drawn]
            details: dict[str, list[Any]] = {
                "texts": [p.text for p in points],
                "links": [p.link for p in points],
                "radii": [round(p.radius, 1) for p in points],
                "colours": [p.colour for p in points],
                "limits": [self.y.drawn(p.limit) for p in points],
            }
            found |= {name: each for name, each in details.items() if any(each)}
        return found

    @property
    def table(self) -> Table:
        """The points of the chart as a table.

        Of many points, it has at most `MOST_ROWS`, evenly spaced.
        """
        places = [(s.name, *place) for s in self.series for place in self.drawn(s)]
        columns: tuple[Column[tuple[str, float, float, ChartPoint]], ...] = (
            Column("point", lambda p: Cell(p[3].text or p[0], p[3].link), CellKind.NAME),
            Column(self.x.label, lambda p: self.x.text(p[1])),
            Column(self.y.label, lambda p: self.y.text(p[2])),
        )
        return table(columns, places[:: max(1, -(-len(places) // MOST_ROWS))])


def _axis(axis: ChartAxis) -> dict[str, Any]:
    return {
        "label": axis.label,
        "unit": axis.unit,
        "log": axis.log,
        "whole": axis.whole,
        "names": axis.names,
        "span": axis.span,
    }
