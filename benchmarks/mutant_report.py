"""Stores the results of mutants in `mutants.json`, and a readable report in `mutants.md`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from benchmarks.mutations import Mutant
from benchmarks.report import Origin, markdown_table

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
    """Write `mutants.json` and `mutants.md` to `folder`. Each is replaced atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {"json": json.dumps(results, indent=1) + "\n", "md": report(results)}
    for suffix, text in texts.items():
        written = folder / f"{NAME}.{suffix}.new"
        written.write_text(text)
        written.replace(folder / f"{NAME}.{suffix}")


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
