"""Stores the results of mutants in `mutants.json.gz`, and a readable report in `mutants.md`.

    python -m benchmarks.mutant_report FILE

merges the results in FILE, which may be compressed or not, into the stored results, and writes the
report again. Results of a run elsewhere are added in this way, and edited readings stored.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from benchmarks.mutations import Mutant
from benchmarks.race import RESULTS_FOLDER
from benchmarks.report import Origin, markdown_table, read_data, write_data

NAME = "mutants"


class Outcome(StrEnum):
    """Result of running the tests on a mutant."""

    CAUGHT = "caught"
    TIMED_OUT = "timed out"
    SURVIVED = "survived"
    NOT_EXECUTED = "not executed"
    """The mutant survived without a run, because no test executes its line."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A mutant and its result.

    `tests` is the number of tests chosen to run, and `test` is the one that failed. `left_out` is
    the number of further tests that execute the mutant but did not fit into the time limit.
    `reading` is a person's explanation of why the mutant survived.
    """

    path: str
    line: int
    operator: str
    change: str
    outcome: str  # an Outcome, as JSON has it too
    seconds: float = 0.0
    reading: str = ""
    test: str = ""
    tests: int = 0
    left_out: int = 0

    @classmethod
    def of(cls, mutant: Mutant, outcome: Outcome) -> Judged:
        """A `Judged` with the outcome of a mutant; its other fields have their defaults."""
        return cls(mutant.path, mutant.line, mutant.operator, mutant.change, outcome)

    def key(self, same_lines: bool) -> tuple[str, int, str, str]:
        """Key by which the same mistake is recognised in another run.

        Without `same_lines`, the line number is ignored, because the code may have moved.
        """
        return self.path, self.line * same_lines, self.operator, self.change

    def survived(self) -> bool:
        """Whether no test detected the mutant."""
        return self.outcome in (Outcome.SURVIVED, Outcome.NOT_EXECUTED)


def write_results(folder: Path, results: dict[str, Any]) -> None:
    """Write `mutants.json.gz` and `mutants.md` to `folder`. Each is replaced atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    write_data(_data(folder), json.dumps(results, indent=1) + "\n")
    written = folder / f"{NAME}.md.new"
    written.write_text(report(results))
    written.replace(folder / f"{NAME}.md")


def read_results(folder: Path) -> dict[str, Any]:
    """Read the results of each package from `folder`; without the file, an empty dictionary."""
    path = _data(folder)
    return read_data(path) if path.exists() else {}


def merged(stored: Mapping[str, Any], added: Mapping[str, Any]) -> dict[str, Any]:
    """The results of both, by package. If both have a package, the later run is taken.

    Of two results of the same run, the added one is taken, because its readings may be edited.
    """
    newer = {
        package: result
        for package, result in added.items()
        if package not in stored or _date(result) >= _date(stored[package])
    }
    return {**stored, **newer}


def _date(result: Mapping[str, Any]) -> datetime:
    return datetime.fromisoformat(result["origin"]["date"])


def _data(folder: Path) -> Path:
    return folder / f"{NAME}.json.gz"


def report(results: dict[str, Any]) -> str:
    """The benchmark's report in Markdown: a summary, then statistics and survivors of each
    package.
    """
    lines = [
        "# Mutants",
        "",
        "Small mistakes, one at a time, and whether a test notices: "
        "[CONTRIBUTING.md](../../CONTRIBUTING.md) says how.",
        "",
        _summary(results),
        "",
    ]
    for package, result in sorted(results.items()):
        rows = [Judged(**row) for row in result["rows"]]
        versions = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
        lines += [
            f"## {package}",
            "",
            f"`{result['command']}`: {Origin(**result['origin']).sentence()} {versions}. "
            f"{len(rows)} of {result['count']} mutants, drawn from {result['places']} places, "
            f"judged by the tests of {', '.join(result['tests'])} that execute their lines.",
            "",
            _by_operator(rows),
            "",
            *[_survivor(one) for one in rows if one.survived()],
            "",
        ]
    return "\n".join(lines)


def _survivor(one: Judged) -> str:
    said = [str(one.outcome)] * (one.outcome == Outcome.NOT_EXECUTED)
    said += [one.reading] * bool(one.reading)
    return f"- `{one.path}:{one.line}` `{one.change}`" + ": ".join(["", *said])


def _summary(results: dict[str, Any]) -> str:
    table = []
    for package, result in sorted(results.items()):
        rows = [Judged(**row) for row in result["rows"]]
        outcomes = Counter(row.outcome for row in rows)
        caught = sum(not row.survived() for row in rows)
        table.append(
            [
                package,
                str(len(rows)),
                str(caught),
                str(outcomes[Outcome.TIMED_OUT]),
                str(outcomes[Outcome.SURVIVED]),
                str(outcomes[Outcome.NOT_EXECUTED]),
                f"{caught / max(len(rows), 1):.1%}",
            ]
        )
    header = [
        "package",
        "mutants",
        "caught",
        "of those by the limit",
        "survived",
        "not executed",
        "caught",
    ]
    return markdown_table(header, table, 1)


def _by_operator(rows: Sequence[Judged]) -> str:
    total = Counter(row.operator for row in rows)
    alive = Counter(row.operator for row in rows if row.survived())
    cells = [[name, str(n), str(n - alive[name])] for name, n in total.most_common()]
    return markdown_table(["mistake", "mutants", "caught"], cells, 1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line: merge a file of results into the stored ones."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, help="results to merge: .json, or .json.gz")
    parser.add_argument("--output", type=Path, default=RESULTS_FOLDER)
    options = parser.parse_args(arguments)
    compressed = options.file.suffix == ".gz"
    added = read_data(options.file) if compressed else json.loads(options.file.read_text())
    write_results(options.output, merged(read_results(options.output), added))
    return 0


if __name__ == "__main__":
    sys.exit(main())
