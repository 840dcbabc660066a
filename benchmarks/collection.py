"""`make collection`: run `tilewright tune` on real models, and check its result, time and memory.

Each model is tuned by `tilewright tune MODEL --seconds 20 -o DIR` with default options, an empty
database, and 8 GiB of memory for each process. A line of JSON is appended when a model is done, so
that an interrupted run can resume. The table of all models is rewritten each time.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from benchmarks.collection_models import Collected, collected, groups
from benchmarks.process_memory import MemoryWatch
from benchmarks.real_fetch import REPOSITORY, FetchError
from benchmarks.report import Origin, commit, read_lines, write_lines

FOLDER = Path(__file__).parent / "models" / "real"
RESULTS = Path(__file__).parent / "results"
LOOK_SECONDS = 0.05
TRACEBACK = "Traceback (most recent call last):"

WALL_SHARE, WALL_SPARE = 1.25, 10.0
"""Limit of a command's wall time: a factor on its tuning budget, plus seconds."""

MEMORY_BYTES, MEMORY_SHARE = 4 << 30, 3
"""Limit of the total memory of a command's processes: bytes, plus a factor on the model's size."""

BYTECODE = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(FOLDER / "bytecode")}
"""Environment variables by which Python caches bytecode, as on a user's machine. Without a cache,
each process of a command compiles its imports for 3 s."""

KILLED = "killed: it went on and on"


@dataclass(frozen=True, slots=True)
class Row:
    """Result of `tilewright tune` on one model.

    If the model could not be fetched, `problem` says why.
    """

    identity: str
    commit: str
    problem: str = ""
    model_bytes: int = 0
    exit_code: int | None = None
    wall_seconds: float = 0.0
    peak_bytes: int = 0
    profile: str = ""
    trials: int | None = None
    certificate: str = ""
    verified: bool = False
    ratio: float | None = None
    traceback: bool = False
    last_line: str = ""
    phases: str = ""
    scalar: str = ""
    too_scalar: bool = False

    def faults(self, seconds: float) -> list[str]:
        """Short texts that name the requirements which a run of `tilewright tune` violated.

        Examples are `exit 1` and `not verified`. `seconds` is the tuning budget, which determines
        the allowed wall time.
        """
        if self.problem:
            return [f"not tried: {self.problem}"]
        if self.exit_code is None:
            return [KILLED]
        checks = {
            f"exit {self.exit_code}": self.exit_code != 0,
            "traceback": self.traceback,
            "not verified": not self.verified,
            f"scalar {self.scalar}": self.too_scalar,
            f"{self.peak_bytes / 2**30:.1f} GiB": self.peak_bytes > memory_limit(self.model_bytes),
            f"{self.wall_seconds:.0f} s": self.wall_seconds > WALL_SHARE * seconds + WALL_SPARE,
        }
        return [fault for fault, wrong in checks.items() if wrong]

    def cells(self, seconds: float) -> list[str]:
        """The cells of the model's row in the table, with `|` escaped and line breaks removed.

        `seconds` is the tuning budget. One cell says whether the run took too long for this budget.
        """
        cells = [
            self.identity,
            self.commit[:8],
            "; ".join(self.faults(seconds)) or "ok",
            self.profile,
            f"{self.wall_seconds:.0f}",
            f"{self.peak_bytes / 2**30:.2f}",
            "-" if self.trials is None else str(self.trials),
            self.certificate,
            "-" if self.ratio is None else f"{self.ratio:.3f}",
            self.scalar or "-",
            self.phases.removeprefix("time: "),
            self.last_line,
        ]
        return [cell_text(cell) for cell in cells]


def memory_limit(model_bytes: int) -> int:
    """Limit in bytes for the total memory of a command's processes, for this size of model."""
    return MEMORY_BYTES + MEMORY_SHARE * model_bytes


def cell_text(text: str) -> str:
    """Make a text fit into a cell of a Markdown table.

    The result is one line of at most 200 characters, in which `|` is escaped.
    """
    return " ".join(text.split()).replace("|", "\\|")[:200]


def stored_bytes(file: Path) -> int:
    """Size in bytes of a model's file and its external data."""
    return sum(path.stat().st_size for path in file.parent.glob(f"{file.name}*"))


HEADER = (
    *("model", "commit", "verdict", "profile", "wall s", "peak GiB", "trials", "certificate"),
    *("ratio", "scalar", "phases", "last line"),
)


def tried(model: Collected, options: argparse.Namespace) -> Row:
    """Run `tilewright tune` on one model in a subprocess; return the model's row of the report."""
    try:
        file = model.file(options.folder)
    except FetchError as error:
        return Row(model.identity, commit(), str(error))
    size = stored_bytes(file)
    with tempfile.TemporaryDirectory(prefix="tilewright-collection-") as folder:
        # the JSON goes to standard output, and what a person reads to standard error
        command = [sys.executable, "-m", "tilewright.service.cli", "tune", str(file)]
        command += ["--seconds", f"{options.seconds:g}", "-o", f"{folder}/artifact", "--json"]
        environment = {**os.environ, "TILEWRIGHT_DATA_FOLDER": f"{folder}/data"}
        done = run(command, environment, options.memory_gb, options.limit_seconds)
        manifest = Path(folder, "artifact", "manifest.json").exists()
        shutil.rmtree(Path(folder, "data"), ignore_errors=True)
    found = facts(done.printed)
    scalar = scalar_share(file, options) if done.exit_code == 0 else {}
    return Row(
        identity=model.identity,
        commit=commit(),
        model_bytes=size,
        exit_code=done.exit_code,
        wall_seconds=round(done.seconds, 1),
        peak_bytes=done.peak_bytes,
        profile=found.get("profile", ""),
        trials=found.get("trials"),
        certificate=found.get("certificate", ""),
        verified=bool(found.get("verified")) and manifest,
        ratio=found.get("ratio"),
        traceback=done.traceback,
        last_line=done.last_line,
        phases=found.get("phases", ""),
        **scalar,
    )


def scalar_share(file: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Estimate the share of a tuned model's time that is spent in scalar code (without SIMD).

    The estimate is made by `benchmarks.scalar_share` in a subprocess. Returns the fields `scalar`
    (the share as text) and `too_scalar` for the model's row. If the subprocess fails, `too_scalar`
    is true: an estimate must be possible for every model that was tuned.
    """
    command = [sys.executable, "-m", "benchmarks.scalar_share", "--json", str(file)]
    done = run(command, os.environ, options.memory_gb, options.limit_seconds)
    if done.exit_code != 0:
        code = KILLED if done.exit_code is None else f"exit {done.exit_code}"
        return {"scalar": f"unknown: {code}", "too_scalar": True}
    fields: dict[str, Any] = json.loads(done.printed)
    return fields


def facts(printed: str) -> dict[str, Any]:
    """Extract the fields of a report row from the output of `tilewright tune --json`.

    The dictionary is empty if the output is not JSON.
    """
    from tilewright.service.show.messages import phases_text, result_lines

    try:
        report = json.loads(printed)
    except ValueError:
        return {}
    compared = (report.get("end_to_end") or {}).get("comparison")
    checked = [line for line in result_lines(report) if "verified:" in line]
    return {
        "profile": "; ".join(report.get("ranges", ())),
        "trials": report["trials"],
        "certificate": checked[-1] if checked else "",
        "verified": report["verified"],
        "ratio": compared and compared["ratio"],
        "phases": phases_text(report.get("phases") or {}),
    }


@dataclass(frozen=True, slots=True)
class Done:
    """Result of a command that was run in a subprocess.

    `exit_code` is None if it was killed at its time limit. `printed` is its standard output, and
    `said` its standard error. `cpu_seconds` is the processor time of the process and of those
    descendants that were waited for.
    """

    exit_code: int | None
    printed: str
    said: str
    seconds: float
    peak_bytes: int
    cpu_seconds: float = 0.0

    @property
    def traceback(self) -> bool:
        return TRACEBACK in self.said

    @property
    def last_line(self) -> str:
        """The last line of a failed command's standard error, or "" if the command succeeded.

        After a traceback, it is the exception and the line that raised it.
        """
        if self.traceback:
            lines = self.said.rpartition(TRACEBACK)[2].strip("\n").splitlines()
            frames = sum(1 for _ in takewhile(lambda line: line.startswith(" "), lines))
            return " ".join(line.strip() for line in lines[max(0, frames - 2) : frames + 1])
        return (self.said.strip().splitlines() or [""])[-1] if self.exit_code else ""


def run(
    command: Sequence[str], environment: Mapping[str, str], memory_gb: float, seconds: float
) -> Done:
    """Run a command in a new session, with limits of memory (GiB per process) and wall time.

    All processes of the session are killed at the end.
    """
    with tempfile.TemporaryFile("w+") as printed, tempfile.TemporaryFile("w+") as said:
        began, before = time.monotonic(), _waited_seconds()
        process = subprocess.Popen(
            command,
            cwd=REPOSITORY,
            env={**environment, **BYTECODE, "PYTHONPATH": str(REPOSITORY)},
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=said,
            start_new_session=True,
            preexec_fn=limited(memory_gb),
        )
        code: int | None = None
        with MemoryWatch(lambda: process.pid, LOOK_SECONDS) as watch:
            with suppress(subprocess.TimeoutExpired):
                code = process.wait(seconds)
            took = time.monotonic() - began
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        printed.seek(0)
        said.seek(0)
        used = _waited_seconds() - before
        return Done(code, printed.read(), said.read(), took, watch.peaks()[1], used)


def _waited_seconds() -> float:
    """Processor time in seconds of all child processes that have ended and were waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def limited(memory_gb: float) -> Callable[[], None]:
    """A `preexec_fn` for `subprocess.Popen` that limits the child's address space, in GiB."""

    def limit() -> None:
        size = int(memory_gb * 2**30)
        resource.setrlimit(resource.RLIMIT_AS, (size, size))

    return limit


def report(rows: Sequence[Row], origin: Origin, seconds: float) -> str:
    """The benchmark's report in Markdown: a summary sentence, then a row per model.

    `seconds` is the tuning budget.
    """
    tried_ = [row for row in rows if not row.problem]
    good = sum(not row.faults(seconds) for row in tried_)
    verified = sum(row.verified and row.exit_code == 0 for row in tried_)
    lines = ["# The main command on the models that people have", "", origin.sentence(), ""]
    lines.append(
        f"{len(rows)} models, {len(tried_)} of them tried: {verified} ended with a verified "
        f"artifact, {good} also within {WALL_SHARE * seconds + WALL_SPARE:.0f} s and "
        f"{MEMORY_BYTES >> 30} GiB plus {MEMORY_SHARE} times the model, without a traceback."
    )
    lines += ["", "| " + " | ".join(HEADER) + " |", "|" + " --- |" * len(HEADER)]
    lines += ["| " + " | ".join(row.cells(seconds)) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def written(path: Path, any_commit: bool = False) -> list[dict[str, Any]]:
    """Read the rows that an earlier run wrote to `path`.

    Only rows of the current commit are returned, unless `any_commit` is set.
    """
    if not path.exists():
        return []
    now = commit().removesuffix("+")
    rows = read_lines(path)
    return [row for row in rows if any_commit or row["commit"].removesuffix("+") == now]


def sharded(models: Sequence[Collected], shard: str) -> list[Collected]:
    """Every n-th model, beginning with the k-th, for a `shard` "k/n"; k counts from 1.

    Raises ValueError if k is not in 1..n.
    """
    number, of = (int(part) for part in shard.split("/"))
    if not 1 <= number <= of:
        raise ValueError(f"--shard {shard}: expected such as 1/4, the first of four")
    return list(models[number - 1 :: of])


def common_options(description: str | None, name: str) -> argparse.ArgumentParser:
    """Create the argument parser shared by the collection tools.

    `name` is the default base name of the result files.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--groups", nargs="+", choices=groups(), default=groups())
    parser.add_argument("--only", nargs="+", default=[], help="these models of the groups")
    parser.add_argument("--limit", type=int, help="try so many models that are not done yet")
    parser.add_argument("--shard", default="1/1", help="2/4: the second of four equal parts")
    parser.add_argument(
        "--any-commit", action="store_true", help="what another commit wrote is not done again"
    )
    parser.add_argument("--memory-gb", type=float, default=8.0, help="the most for a process")
    parser.add_argument("--limit-seconds", type=float, default=300.0, help="the most for a command")
    parser.add_argument("--fetch-seconds", type=float, default=1800.0)
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where models are kept")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the report goes")
    parser.add_argument("--name", default=name, help="of the results")
    return parser


def chosen_models(options: argparse.Namespace) -> list[Collected]:
    """The models that `--groups`, `--shard` and `--only` select, in the order of the list."""
    models = sharded(collected(options.groups, options.fetch_seconds), options.shard)
    return [model for model in models if not options.only or model.name in options.only]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = common_options(__doc__, "collection")
    parser.add_argument("--seconds", type=float, default=20.0, help="the budget of each model")
    options = parser.parse_args(arguments)
    origin = Origin.of(options)
    options.results.mkdir(parents=True, exist_ok=True)
    path = options.results / f"{options.name}.jsonl.gz"
    rows = [Row(**line) for line in written(path, options.any_commit)]
    write_lines(path, map(asdict, rows))
    done = {row.identity for row in rows}
    left = [model for model in chosen_models(options) if model.identity not in done]
    for model in left[: options.limit]:
        row = tried(model, options)
        rows.append(row)
        write_lines(path, map(asdict, rows))
        table = report(rows, origin, options.seconds)
        (options.results / f"{options.name}.md").write_text(table)
        print(f"{row.identity}: {'; '.join(row.faults(options.seconds)) or 'ok'}", flush=True)


if __name__ == "__main__":
    main()
