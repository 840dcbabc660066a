"""Plots and CSV files of results over many seeds.

A plot shows medians and quartiles as PNG, and the CSV file has all values.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from statistics import median
from typing import Any


@contextmanager
def figure(path: Path, rows: int = 1, columns: int = 1) -> Iterator[list[Any]]:
    """Context with the axes of a new figure, in row-major order.

    The figure is written to `path` as PNG at the end.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    size = (8, 5) if rows == columns == 1 else (6 * columns, 3.6 * rows)
    drawn, axes = pyplot.subplots(rows, columns, figsize=size, squeeze=False)
    try:
        yield list(axes.flat)
        for one in axes.flat:
            one.grid(alpha=0.3)
        drawn.tight_layout()
        drawn.savefig(path, dpi=110)
    finally:
        pyplot.close(drawn)


def draw_quarters(
    axes: Any, steps: Sequence[float], values: Sequence[Sequence[float]], label: str
) -> None:
    """Plot the median of each step's values as a line, and shade the range between the quartiles.

    `values` has one sequence per step.
    """
    ordered = [sorted(several) for several in values]
    (line,) = axes.plot(steps, [median(several) for several in ordered], label=label)
    low = [several[len(several) // 4] for several in ordered]
    high = [several[3 * len(several) // 4] for several in ordered]
    axes.fill_between(steps, low, high, color=line.get_color(), alpha=0.15)


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a gzip-compressed CSV file with a header line."""
    file = StringIO(newline="")
    writer = csv.writer(file)
    writer.writerow(header)
    writer.writerows(rows)
    path.write_bytes(gzip.compress(file.getvalue().encode(), mtime=0))
