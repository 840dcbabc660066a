"""Finds mistakes that no test notices: `python -m benchmarks.mutants compiler/passes --count 300`.

A mutant is a package with one small mistake (`mutations.py`). The tests of its package judge it: a
test that fails, or a run past its limit, has caught it. Everything happens in a copy of the working
tree. The report keeps the last run of each package, with its survivors. With `--again`, only the
last run's survivors are judged once more; mutants that it caught count as caught. A run may be
ended at any time: the mutants judged by then are a sample, too.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.mutant_session import Reply, Request
from benchmarks.mutations import Mutant, sample
from benchmarks.race import RESULTS_FOLDER
from benchmarks.report import Origin, markdown_table

ROOT = Path(__file__).parent.parent
NAME = "mutants"

JUDGES: dict[str, tuple[str, ...]] = {
    "compiler/passes": ("tests/golden/passes", "tests/unit/passes", "tests/unit/plan"),
    "compiler/ops": ("tests/unit/ops", "tests/unit/frontend"),
    "compiler/schedule": ("tests/unit/schedule", "tests/golden/kernels"),
    "compiler/codegen": ("tests/unit/codegen", "tests/golden/kernels"),
    "tuner": ("tests/unit/tuner",),
    "db": ("tests/unit/db",),
    "service": ("tests/unit/service",),
}
"""A package, and the tests that judge it, the quickest first."""

OPTIONS = ("-q", "-x", "--no-header", "--tb=line", "-p", "no:cacheprovider", "--hypothesis-seed=0")

BASELINE_LIMIT_SECONDS = 1200.0
SPARE_SECONDS = 20.0
TIMES_BASELINE = 2.0
"""A mutant has this many times the seconds that the tests take without one, and some to spare."""


Key = tuple[str, str, str]


class Outcome(StrEnum):
    """What became of a mutant."""

    CAUGHT = "caught"
    TIMED_OUT = "timed out"
    SURVIVED = "survived"


@dataclass(frozen=True, slots=True)
class Judged:
    """A mutant and what became of it; `reading` is what a person found out about a survivor."""

    path: str
    line: int
    operator: str
    change: str
    outcome: str  # an Outcome, as JSON has it too
    seconds: float
    reading: str = ""

    def key(self) -> Key:
        """The same for the same mistake, wherever its line moved to."""
        return self.path, self.operator, self.change


class Session:
    """A process that runs tests in a copy of the project."""

    def __init__(self, copy: Path, tests: Sequence[str]) -> None:
        self._arguments = (*OPTIONS, *tests)
        self._process = subprocess.Popen(
            [sys.executable, "benchmarks/mutant_session.py"],
            cwd=copy,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, limit_seconds: float, mutant: Mutant | None = None) -> Reply:
        """Run the tests, on a mutant if one is given."""
        path, text = (mutant.path, mutant.text) if mutant else ("", "")
        request = Request(self._arguments, limit_seconds, path, text)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(asdict(request)) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("the session that runs the tests has ended")
        return Reply(**json.loads(line))

    def close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()


@contextmanager
def copied() -> Iterator[Path]:
    """A copy of what git knows of the working tree, and of the compiled runtime beside it."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "-co", "--exclude-standard"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    names = [Path(name) for name in listed.split("\0") if name]
    names += [p.relative_to(ROOT) for p in (ROOT / "compiler" / "runtime").glob("*.so")]
    with tempfile.TemporaryDirectory(prefix="tilewright-mutants-") as folder:
        for name in names:
            if (ROOT / name).is_file():
                (Path(folder) / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, Path(folder) / name)
        yield Path(folder)


def judge(session: Session, mutant: Mutant, limit_seconds: float) -> Judged:
    """Run the tests on a mutant."""
    reply = session.ask(limit_seconds, mutant)
    if reply.timed_out:
        outcome = Outcome.TIMED_OUT
    else:
        outcome = Outcome.SURVIVED if reply.code == 0 else Outcome.CAUGHT
    return Judged(mutant.path, mutant.line, mutant.operator, mutant.change, outcome, reply.seconds)


def run(package: str, mutants: Sequence[Mutant], known: Mapping[Key, Judged]) -> Iterator[Judged]:
    """Judge mutants in a copy, one after the other; those that were caught before are not run.

    Raises:
        SystemExit: if the tests fail without a mutant.
    """
    with copied() as copy, closing(Session(copy, JUDGES[package])) as session:
        baseline = session.ask(BASELINE_LIMIT_SECONDS)
        if baseline.code != 0:
            raise SystemExit(f"the tests fail without a mutant:\n{baseline.tail}")
        print(f"{baseline.seconds:.0f} s without a mutant", flush=True)
        limit = SPARE_SECONDS + TIMES_BASELINE * baseline.seconds
        for number, mutant in enumerate(mutants, 1):
            before = known.get((mutant.path, mutant.operator, mutant.change))
            if before is not None and before.outcome != Outcome.SURVIVED:
                yield replace(before, line=mutant.line)
                continue
            judged = judge(session, mutant, limit)
            if judged.outcome == Outcome.SURVIVED and before is not None:
                judged = replace(judged, reading=before.reading)
            place = f"{number}/{len(mutants)} {mutant.path}:{mutant.line}"
            print(f"{place} {judged.outcome} {judged.seconds:.0f} s: {mutant.change}", flush=True)
            yield judged


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("package", choices=sorted(JUDGES))
    parser.add_argument("--count", type=int, default=300, help="mutants to draw")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--again", action="store_true", help="judge the last run's survivors again")
    parser.add_argument("--output", type=Path, default=RESULTS_FOLDER)
    arguments = parser.parse_args()
    package, count, seed = arguments.package, arguments.count, arguments.seed
    path = arguments.output / f"{NAME}.json"
    results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    last = [Judged(**row) for row in results.get(package, {}).get("rows", [])]
    if arguments.again:
        if not last:
            parser.error(f"no run of {package} is kept in {path}")
        count, seed = len(last), results[package]["seed"]
    mutants, places = sample(ROOT, package, count, seed)
    rows: list[dict[str, Any]] = []
    results[package] = {
        "origin": asdict(Origin.of(arguments)),
        "command": f"make mutants ARGS='{package} --count {count} --seed {seed}'",
        "tests": JUDGES[package],
        "versions": {name: version(name) for name in ("mutmut", "libcst", "pytest", "hypothesis")},
        "count": count,
        "seed": seed,
        "places": places,
        "survived_before": sum(one.outcome == Outcome.SURVIVED for one in last) * arguments.again,
        "rows": rows,
    }
    # of two that look alike, the one that survived is the one to judge again
    survivors_last = sorted(last, key=lambda one: one.outcome == Outcome.SURVIVED)
    known = {one.key(): one for one in survivors_last if arguments.again or one.reading}
    for judged in run(package, mutants, known):
        rows.append(asdict(judged))
        rows.sort(key=lambda row: (row["path"], row["line"]))
        _write(arguments.output, results)


def _write(folder: Path, results: dict[str, Any]) -> None:
    """Both files after each mutant, so that a run can be ended at any time."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{NAME}.json").write_text(json.dumps(results, indent=1) + "\n")
    (folder / f"{NAME}.md").write_text(report(results))


def report(results: dict[str, Any]) -> str:
    """The last run of each package, then its survivors, in Markdown."""
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
            f"judged by {', '.join(result['tests'])}."
            + f" {result['survived_before']} survived the run before."
            * bool(result["survived_before"]),
            "",
            _by_operator(rows),
            "",
            *[
                f"- `{one.path}:{one.line}` `{one.change}`"
                + (f": {one.reading}" * bool(one.reading))
                for one in rows
                if one.outcome == Outcome.SURVIVED
            ],
            "",
        ]
    return "\n".join(lines)


def _summary(results: dict[str, Any]) -> str:
    table = []
    for package, result in sorted(results.items()):
        rows = [Judged(**row) for row in result["rows"]]
        outcomes = Counter(row.outcome for row in rows)
        caught = len(rows) - outcomes[Outcome.SURVIVED]
        table.append(
            [
                package,
                str(len(rows)),
                str(caught),
                str(outcomes[Outcome.TIMED_OUT]),
                str(outcomes[Outcome.SURVIVED]),
                f"{caught / max(len(rows), 1):.1%}",
            ]
        )
    header = ["package", "mutants", "caught", "of those by the limit", "survived", "caught"]
    return markdown_table(header, table, 1)


def _by_operator(rows: Sequence[Judged]) -> str:
    total = Counter(row.operator for row in rows)
    alive = Counter(row.operator for row in rows if row.outcome == Outcome.SURVIVED)
    cells = [[name, str(n), str(n - alive[name])] for name, n in total.most_common()]
    return markdown_table(["mistake", "mutants", "caught"], cells, 1)


if __name__ == "__main__":
    main()
