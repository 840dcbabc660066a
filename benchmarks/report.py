"""What a race leaves behind: one JSON file with every sample and one Markdown table."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

HEADER = (
    "| model | engine | median ms | min ms | ratio of medians | ratio of minima | largest error |\n"
    "| --- | --- | ---: | ---: | ---: | ---: | ---: |"
)


@dataclass(frozen=True, slots=True)
class RaceRow:
    """One engine on one model; ratios are to ONNX Runtime, seconds are a run's."""

    model: str
    engine: str
    version: str = ""
    load_seconds: float = 0.0
    rounds: tuple[tuple[float, ...], ...] = ()
    ratio: float = 0.0
    minimum_ratio: float = 0.0
    largest_error: float | None = None
    error: str = ""

    def line(self) -> str:
        """The row as Markdown."""
        if self.error:
            return f"| {self.model} | {self.engine} | failed: {self.error} | | | | |"
        middle = median(median(samples) for samples in self.rounds) * 1e3
        least = min(min(samples) for samples in self.rounds) * 1e3
        error = "" if self.largest_error is None else f"{self.largest_error:.1e}"
        return (
            f"| {self.model} | {self.engine} | {middle:.3f} | {least:.3f} "
            f"| {self.ratio:.3f} | {self.minimum_ratio:.3f} | {error} |"
        )


@dataclass(slots=True)
class RaceReport:
    """Rows as they come, and the machine that they were measured on."""

    threads: int
    rounds: int
    date: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    cpu: str = field(default_factory=lambda: cpu_name())
    cores: int = field(default_factory=lambda: os.cpu_count() or 1)
    python: str = field(default_factory=platform.python_version)
    commit: str = field(default_factory=lambda: commit())
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
    ) -> None:
        """Add a result."""
        samples = tuple(tuple(times) for times in rounds)
        self.rows.append(
            RaceRow(
                model, engine, version, load_seconds, samples, ratio, minimum_ratio, largest_error
            )
        )

    def add_failure(self, model: str, engine: str, error: str) -> None:
        """Add an engine that gave no result, and why."""
        self.rows.append(RaceRow(model, engine, error=error))

    def rows_of(self, model: str) -> str:
        """The table of one model."""
        return "\n".join([HEADER, *(row.line() for row in self.rows if row.model == model)])


def write_report(report: RaceReport, folder: Path, name: str) -> None:
    """Write NAME.json and NAME.md; called after each model, so that a break loses one at most."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(_json(report))
    versions = sorted({f"{row.engine} {row.version}" for row in report.rows if row.version})
    clock = "CPU time of the process" if report.threads == 1 else "wall time"
    lines = [
        f"# Race, {report.threads} thread{'s' if report.threads > 1 else ''}, batch 1, float32",
        "",
        f"{report.date}, {report.cpu} ({report.cores} cores), commit {report.commit}, "
        f"Python {report.python}. {', '.join(versions)}.",
        "",
        f"{clock}; {report.rounds} rounds, engines in rotating order, one process an engine. "
        "Ratios are to ONNX Runtime: the median over the rounds of the ratio of the round's "
        "medians, and the ratio of the minima. The largest error is against ONNX Runtime, over "
        "the largest output.",
        "",
        HEADER,
        *(row.line() for row in report.rows),
        "",
    ]
    (folder / f"{name}.md").write_text("\n".join(lines))


def _json(report: RaceReport) -> str:
    """One line a row; samples in nanoseconds' precision."""
    data = asdict(report)
    rows = data.pop("rows")
    for row in rows:
        row["rounds"] = [[round(seconds, 9) for seconds in times] for times in row["rounds"]]
    head = json.dumps(data, indent=1).removesuffix("\n}")
    return head + ',\n "rows": [\n  ' + ",\n  ".join(map(json.dumps, rows)) + "\n ]\n}\n"


def cpu_name() -> str:
    """The CPU's name as Linux gives it, else what Python knows."""
    path = Path("/proc/cpuinfo")
    if path.exists():
        for line in path.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def commit() -> str:
    """Short hash of the checkout's commit, with a + when files differ from it."""
    root = Path(__file__).parent.parent
    command = ["git", "-C", str(root), "describe", "--always", "--dirty=+", "--abbrev=10"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()
