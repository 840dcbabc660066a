"""Reports of benchmark results: compressed JSON with every sample, and Markdown tables.

`Origin` describes the machine and the code of a result.
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
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

LONGEST_ERROR = 160
"""Maximum number of characters of an engine's error in a table. The JSON file has the full text."""


ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Origin:
    """The machine, commit, time and command of a benchmark result.

    `options` are all options of the command, including defaults, such as the numbers of rounds and
    trials.
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
        """The origin of a result of this process, whose command has these options."""
        return cls(options={name: _plain(value) for name, value in sorted(vars(options).items())})

    def sentence(self) -> str:
        return (
            f"{self.date}, {self.cpu} ({self.cores} cores), commit {self.commit}, "
            f"Python {self.python}. `{self.command}`"
            + (f" ({_listed(self.options)})." if self.options else ".")
        )


def command() -> str:
    """The command line of this process. Absolute paths are shortened to the file's name."""
    return shlex.join(["python", *map(_elsewhere, sys.orig_argv[1:])])


def _elsewhere(word: str) -> str:
    """Shorten an absolute path in a word of a command to the file's name, also after `ENGINE=`."""
    before, equals, path = word.rpartition("=")
    return before + equals + Path(path).name if Path(path).is_absolute() else word


def _plain(value: Any) -> Any:
    """Convert an option to a value for JSON; a path becomes its name."""
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
    """Result of one engine on one model, in an interleaved timing of several engines.

    `ratio` is the engine's median time over ONNX Runtime's, computed per round; the median over the
    rounds is stored. `minimum_ratio` is the ratio of the fastest runs of all rounds. `rounds` has
    the seconds of each run. `speedup` is the speed-up over the same engine on one thread.
    `largest_error` is the difference of the outputs from ONNX Runtime's, relative to the largest
    output.
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
        """The row's cells in the order of HEADER.

        An unknown error or speed-up over one thread becomes an empty cell.
        """
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
    """Collects the rows of a race report.

    With `scaling`, tables have a column for the speed-up over one thread.
    """

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
        """Add the result of one engine on one model.

        `rounds` has the seconds of each run in each round. `ratio` is the median over the rounds of
        the engine's median time over ONNX Runtime's. `minimum_ratio` is the same ratio for the
        fastest runs. `largest_error` is relative to ONNX Runtime's outputs. `speedup` is the
        speed-up over the same engine on one thread.
        """
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
        """Add an engine that failed on a model, with its error."""
        self.rows.append(RaceRow(model, engine, error=error))

    def rows_of(self, model: str) -> str:
        """The results of one model as a Markdown table."""
        return self._table([row for row in self.rows if row.model == model])

    def table(self) -> str:
        """The results of all models as a Markdown table."""
        return self._table(self.rows)

    def _table(self, rows: list[RaceRow]) -> str:
        columns = len(HEADER) if self.scaling else len(HEADER) - 1
        return markdown_table(HEADER[:columns], [row.cells()[:columns] for row in rows], text=2)

    def summary(self) -> str:
        """A Markdown table with a row per engine, which summarises all models that the engine ran.

        The columns are geometric means of the ratios to ONNX Runtime and of the speed-ups over one
        thread.
        """
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
    """Geometric mean of at least one positive value."""
    return math.exp(sum(map(math.log, values)) / len(values))


def write_data(path: Path, text: str) -> None:
    """Write JSON text to a gzip-compressed file, which is replaced atomically.

    Equal texts give equal bytes.
    """
    written = path.with_name(f"{path.name}.new")
    written.write_bytes(gzip.compress(text.encode(), mtime=0))
    written.replace(path)


def read_data(path: Path) -> Any:
    """Read the JSON value from a file that `write_data` wrote.

    Raises:
        FileNotFoundError: if the file does not exist.
    """
    return json.loads(gzip.decompress(path.read_bytes()))


def write_lines(path: Path, rows: Iterable[Any]) -> None:
    """Write rows to a gzip-compressed file (`.jsonl.gz`) with one line of JSON per row."""
    write_data(path, "".join(json.dumps(row) + "\n" for row in rows))


def read_lines(path: Path) -> list[Any]:
    """Read the rows from a file that `write_lines` wrote.

    Raises:
        FileNotFoundError: if the file does not exist.
    """
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


def write_result(stem: Path, origin: Origin, data: Mapping[str, Any], page: str) -> None:
    """Write a result as data to `stem`.json.gz, and its report `page` to `stem`.md.

    The data include the origin.
    """
    whole = {"origin": asdict(origin), **data}
    write_data(stem.with_suffix(".json.gz"), json.dumps(whole, indent=1) + "\n")
    stem.with_suffix(".md").write_text(page)


def markdown_table(header: list[str], rows: list[list[str]], text: int) -> str:
    """A Markdown table with the first `text` columns left-aligned and all others right-aligned."""
    rules = ["---"] * text + ["---:"] * (len(header) - text)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [header, rules, *rows])


def write_report(report: RaceReport, folder: Path, name: str) -> None:
    """Write `name`.json.gz and `name`.md.

    Called after each model, so that an abort loses at most one result.
    """
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
        "Ratios are the engine's time over ONNX Runtime's: below 1, the engine is faster. The "
        "ratio of medians is the median over the rounds of the ratio of the round's medians. The "
        "largest error is against ONNX Runtime, over the largest output.",
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
    """The report as JSON text, with samples rounded to nanoseconds."""
    data = asdict(report)
    rows = data.pop("rows")
    for row in rows:
        row["rounds"] = [[round(seconds, 9) for seconds in times] for times in row["rounds"]]
    return rows_json(data, rows)


def rows_json(head: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """JSON text of `head` with an additional entry `rows`, which has one row per line."""
    text = json.dumps(head, indent=1).removesuffix("\n}")
    return text + ',\n "rows": [\n  ' + ",\n  ".join(map(json.dumps, rows)) + "\n ]\n}\n"


def cpu_name(information: Path = Path("/proc/cpuinfo")) -> str:
    """Name the CPU by its model name and, on x86, by family, model and stepping.

    Hypervisors shorten model names, for example to "AMD EPYC" for several generations; the numbers
    identify the generation. They come from `information`, in the format of /proc/cpuinfo. Without
    this file, the name comes from Python's `platform` module.
    """
    fields: dict[str, str] = {}
    if information.exists():
        for line in information.read_text().splitlines():
            key, _, value = line.partition(":")
            fields.setdefault(key.strip(), value.strip())
    name = fields.get("model name") or platform.processor() or platform.machine()
    numbers = {"family": "cpu family", "model": "model", "stepping": "stepping"}
    if not all(key in fields for key in numbers.values()):
        return name
    return " ".join([name, *(f"{word} {fields[key]}" for word, key in numbers.items())])


def commit(root: Path = ROOT) -> str:
    """Short hash of the checkout's commit, followed by "+" if files are modified.

    Without git, the result is "unknown". Modified files in benchmarks/results are ignored, because
    a benchmark may write several reports.
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
