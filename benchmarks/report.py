"""Writes the results of a race: one compressed JSON file with every sample, and one Markdown table.

`Origin` is what every result says about its machine and its code.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

LONGEST_ERROR = 160
"""Characters of an engine's error in a table; the JSON file has all of it."""


ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Origin:
    """The machine, the code, the time and the command that a result comes from.

    `options` are all of the command's, with the defaults that it did not name: rounds, trials,
    seconds and whatever else the result cost.
    """

    date: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    cpu: str = field(default_factory=lambda: cpu_name())
    cores: int = field(default_factory=lambda: os.cpu_count() or 1)
    python: str = field(default_factory=platform.python_version)
    commit: str = field(default_factory=lambda: commit())
    command: str = field(default_factory=lambda: command())
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, options: argparse.Namespace) -> Origin:
        """That of a command with these options."""
        return cls(options={name: _plain(value) for name, value in sorted(vars(options).items())})

    def sentence(self) -> str:
        return (
            f"{self.date}, {self.cpu} ({self.cores} cores), commit {self.commit}, "
            f"Python {self.python}. `{self.command}`"
            + (f" ({_listed(self.options)})." if self.options else ".")
        )


def command() -> str:
    """The command line of this process. Files outside of the repository appear by name alone."""
    return shlex.join(["python", *map(_elsewhere, sys.orig_argv[1:])])


def _elsewhere(word: str) -> str:
    """A word of a command with the name alone of a file elsewhere, also behind `ENGINE=`."""
    before, equals, path = word.rpartition("=")
    return before + equals + Path(path).name if Path(path).is_absolute() else word


def _plain(value: Any) -> Any:
    """An option as data for `json`; of a path its name."""
    if isinstance(value, Path):
        return value.name
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, str):
        return _elsewhere(value)
    return value if isinstance(value, (int, float, bool, type(None))) else str(value)


def _listed(options: Mapping[str, Any]) -> str:
    shown = {name: value for name, value in options.items() if value not in (None, "", False)}
    return ", ".join(f"{name} {value}" for name, value in shown.items())


@dataclass(frozen=True, slots=True)
class RaceRow:
    """One engine on one model; ratios are to ONNX Runtime, seconds are a run's.

    `speedup` is how many times faster the engine is than on one thread.
    """

    model: str
    engine: str
    version: str = ""
    load_seconds: float = 0.0
    rounds: tuple[tuple[float, ...], ...] = ()
    ratio: float = 0.0
    minimum_ratio: float = 0.0
    largest_error: float | None = None
    speedup: float | None = None
    error: str = ""

    def cells(self) -> list[str]:
        """The row's cells in the order of HEADER, the last two empty where nothing is known."""
        if self.error:
            text = " ".join(self.error.split()).replace("|", "\\|")
            short = text if len(text) <= LONGEST_ERROR else text[:LONGEST_ERROR] + " ..."
            return [self.model, self.engine, f"cannot run: {short}", "", "", "", "", ""]
        middle = median(median(samples) for samples in self.rounds) * 1e3
        least = min(min(samples) for samples in self.rounds) * 1e3
        numbers = [middle, least, self.ratio, self.minimum_ratio]
        return [
            self.model,
            self.engine,
            *(f"{number:.3f}" for number in numbers),
            "" if self.largest_error is None else f"{self.largest_error:.1e}",
            "" if self.speedup is None else f"{self.speedup:.2f}",
        ]


HEADER = [
    "model",
    "engine",
    "median ms",
    "min ms",
    "ratio of medians",
    "ratio of minima",
    "largest error",
    "over 1 thread",
]


@dataclass(slots=True)
class RaceReport:
    """Rows as they come. With `scaling`, tables have a column for the speed over one thread."""

    threads: int
    rounds: int
    scaling: bool = False
    origin: Origin = field(default_factory=Origin)
    rows: list[RaceRow] = field(default_factory=list)

    def add(
        self,
        model: str,
        engine: str,
        *,
        version: str,
        load_seconds: float,
        rounds: list[list[float]],
        ratio: float,
        minimum_ratio: float,
        largest_error: float | None,
        speedup: float | None = None,
    ) -> None:
        """Add a result."""
        samples = tuple(tuple(times) for times in rounds)
        self.rows.append(
            RaceRow(
                model,
                engine,
                version,
                load_seconds,
                samples,
                ratio,
                minimum_ratio,
                largest_error,
                speedup,
            )
        )

    def add_failure(self, model: str, engine: str, error: str) -> None:
        """Add an engine that gave no result, and why."""
        self.rows.append(RaceRow(model, engine, error=error))

    def rows_of(self, model: str) -> str:
        """The table of one model."""
        return self._table([row for row in self.rows if row.model == model])

    def table(self) -> str:
        """The table of all models."""
        return self._table(self.rows)

    def _table(self, rows: list[RaceRow]) -> str:
        columns = len(HEADER) if self.scaling else len(HEADER) - 1
        return markdown_table(HEADER[:columns], [row.cells()[:columns] for row in rows], text=2)

    def summary(self) -> str:
        """Per engine, the geometric means over the models that it ran."""
        header = ["engine", "models", "ratio of medians", "ratio of minima", "over 1 thread"]
        cells = []
        for engine in dict.fromkeys(row.engine for row in self.rows):
            all_rows = [row for row in self.rows if row.engine == engine]
            ran = [row for row in all_rows if not row.error]
            means = ["", "", ""]
            if ran:
                means[0] = f"{geometric_mean([row.ratio for row in ran]):.3f}"
                means[1] = f"{geometric_mean([row.minimum_ratio for row in ran]):.3f}"
            speedups = [row.speedup for row in ran if row.speedup is not None]
            if speedups:
                means[2] = f"{geometric_mean(speedups):.2f}"
            cells.append([engine, f"{len(ran)} of {len(all_rows)}", *means])
        columns = len(header) if self.scaling else len(header) - 1
        return markdown_table(header[:columns], [row[:columns] for row in cells], text=1)


def geometric_mean(values: list[float]) -> float:
    """Of one positive value or more."""
    return math.exp(sum(map(math.log, values)) / len(values))


def write_data(path: Path, text: str) -> None:
    """Write JSON to a compressed file; equal texts give equal bytes."""
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def read_data(path: Path) -> Any:
    """The value in a file that `write_data` wrote.

    Raises:
        FileNotFoundError: if there is none.
    """
    return json.loads(gzip.decompress(path.read_bytes()))


def write_result(stem: Path, origin: Origin, data: Mapping[str, Any], page: str) -> None:
    """A result as data (`stem`.json.gz, with its origin) and as a page (`stem`.md)."""
    whole = {"origin": asdict(origin), **data}
    write_data(stem.with_suffix(".json.gz"), json.dumps(whole, indent=1) + "\n")
    stem.with_suffix(".md").write_text(page)


def markdown_table(header: list[str], rows: list[list[str]], text: int) -> str:
    """A table in Markdown, the first `text` columns to the left and all others to the right."""
    rules = ["---"] * text + ["---:"] * (len(header) - text)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [header, rules, *rows])


def write_report(report: RaceReport, folder: Path, name: str) -> None:
    """Write NAME.json.gz and NAME.md, after each model, so that a break loses one at most."""
    folder.mkdir(parents=True, exist_ok=True)
    write_data(folder / f"{name}.json.gz", _json(report))
    versions = sorted({f"{row.engine} {row.version}" for row in report.rows if row.version})
    clock = "CPU time of the process" if report.threads == 1 else "Wall time"
    lines = [
        f"# Race, {report.threads} thread{'s' if report.threads > 1 else ''}, batch 1",
        "",
        f"{report.origin.sentence()} {', '.join(versions)}.",
        "",
        f"{clock}; {report.rounds} rounds, engines in rotating order, one process an engine. "
        "Ratios are to ONNX Runtime: the median over the rounds of the ratio of the round's "
        "medians, and the ratio of the minima. The largest error is against ONNX Runtime, over "
        "the largest output.",
        "",
        "Geometric means over the models that an engine ran:",
        "",
        report.summary(),
        "",
        report.table(),
        "",
    ]
    (folder / f"{name}.md").write_text("\n".join(lines))


def _json(report: RaceReport) -> str:
    """The report as JSON, samples in nanoseconds' precision."""
    data = asdict(report)
    rows = data.pop("rows")
    for row in rows:
        row["rounds"] = [[round(seconds, 9) for seconds in times] for times in row["rounds"]]
    return rows_json(data, rows)


def rows_json(head: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """`head` with another entry `rows`, one line each."""
    text = json.dumps(head, indent=1).removesuffix("\n}")
    return text + ',\n "rows": [\n  ' + ",\n  ".join(map(json.dumps, rows)) + "\n ]\n}\n"


def cpu_name() -> str:
    """The CPU's name as Linux gives it, else what Python knows."""
    path = Path("/proc/cpuinfo")
    if path.exists():
        for line in path.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def commit(root: Path = ROOT) -> str:
    """Short hash of the checkout's commit, with a + when files differ from it.

    Those of results may: a benchmark that goes on has written some.
    """
    git = ["git", "-C", str(root)]
    others = ["--", ".", ":(exclude)benchmarks/results"]
    try:
        name = subprocess.run(
            [*git, "describe", "--always", "--abbrev=10"],
            capture_output=True,
            text=True,
            check=True,
        )
        changed = subprocess.run(
            [*git, "diff", "--quiet", "HEAD", *others], capture_output=True, check=False
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return name.stdout.strip() + ("+" if changed.returncode else "")
