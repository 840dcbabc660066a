"""Find mistakes that no test detects, by mutation testing.

    python -m benchmarks.mutants compiler/passes --count 300

A mutant is a package with one small mistake (`mutations.py`). The tests that execute the changed
line are run on the mutant (`mutant_tests.py`). The fastest case of each test function comes first.
A mutant is caught if a test fails or exceeds its time limit; otherwise it survives. Tests run in a
copy of the working tree (`mutant_session.py`). The report contains the last run of each package,
with the surviving mutants (`mutant_report.py`).

An interrupted run resumes when the command is repeated, as long as the packages are unchanged. With
`--again`, the current tests run on the survivors of the last run; caught mutants stay caught. With
`--by FILES` in addition, only the tests of these files run. A mutant that survives them keeps its
earlier result.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.mutant_judges import JUDGES
from benchmarks.mutant_report import Judged, Outcome, read_results, write_results
from benchmarks.mutant_session import Reply, Request
from benchmarks.mutant_tests import Recordings, basis
from benchmarks.mutations import Mutant, sample
from benchmarks.race import RESULTS_FOLDER
from benchmarks.report import Origin

ROOT = Path(__file__).parent.parent
RECORDINGS = ROOT / "build" / "mutants"

LIBRARIES = ("mutmut", "libcst", "coverage", "pytest", "hypothesis")


class Session:
    """A child process that runs tests in a copy of the project (`benchmarks.mutant_session`)."""

    def __init__(self, kind: str, copy: Path, tests: Sequence[str]) -> None:
        command = [sys.executable, "-m", "benchmarks.mutant_session", kind, str(copy), *tests]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True)
        self.hello: dict[str, Any] = self._read()

    def ask(self, request: Request) -> Reply:
        """Run the tests of a request, and return the reply."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asdict(request)) + "\n")
        self._process.stdin.flush()
        return Reply(**self._read())

    def close(self) -> None:
        """Terminate the process, including a run in progress."""
        self._process.terminate()
        self._process.communicate()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("the session that runs the tests has ended")
        found: dict[str, Any] = json.loads(line)
        return found


class Judge:
    """Tests mutants in a copy of the project, one after the other."""

    def __init__(self, copy: Path, tests: Sequence[str], folder: Path) -> None:
        """Start a process that imports the project in `copy` once, and collects `tests`.

        Recordings (the executed lines of each test) are stored in `folder`.
        """
        self._warm = Session("warm", copy, tests)
        self._copy = copy
        self._fresh: Session | None = (
            None  # one is started for the first mutant that acts at import
        )
        hello = self._warm.hello
        self._recordings = Recordings(folder, copy, hello["tests"], hello["imports"])
        self._alone: dict[str, bool] = {}

    def record(self, folders: Sequence[str]) -> None:
        """Record which lines each test in these folders executes.

        From then on, only these tests are run on mutants.
        """
        self._recordings.complete(folders, self._warm.ask, lambda text: print(text, flush=True))

    def judge(self, mutant: Mutant, limit_seconds: float) -> Judged:
        """Run the tests that execute a mutant's line, until one fails.

        `limit_seconds` limits the total processor time that the chosen tests had when they were
        recorded. If the failed test also fails alone on the unchanged project, the test is
        excluded, and the mutant is tested again. Returns the mutant with its outcome.
        """
        one = Judged.of(mutant, Outcome.NOT_EXECUTED)
        while (choice := self._recordings.choose(mutant, limit_seconds)).tests:
            request = Request(choice.tests, choice.seconds, mutant.path, mutant.text)
            reply = self._warm.ask(request)
            if not reply.possible:
                self._fresh = self._fresh or Session("fresh", self._copy, ())
                reply = self._fresh.ask(request)
            caught = reply.timed_out or reply.code != 0
            test = choice.tests[max(reply.test, 0)]
            if caught and not self._passes_alone(test, choice.seconds[max(reply.test, 0)]):
                self._recordings.dismiss(test)
                continue
            outcome = Outcome.TIMED_OUT if reply.timed_out else Outcome.CAUGHT
            return replace(
                one,
                outcome=outcome if caught else Outcome.SURVIVED,
                seconds=reply.seconds,
                test=test if caught else "",
                tests=len(choice.tests),
                left_out=choice.left_out,
            )
        return one

    def _passes_alone(self, test: str, seconds: float) -> bool:
        if test not in self._alone:
            self._alone[test] = self._warm.ask(Request((test,), (seconds,))).code == 0
        return self._alone[test]

    def close(self) -> None:
        """Terminate the sessions' processes."""
        self._warm.close()
        if self._fresh is not None:
            self._fresh.close()


@contextmanager
def copied() -> Iterator[Path]:
    """Context with a temporary copy of the files that git lists or setup.py builds."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "-co", "--exclude-standard"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    names = [Path(name) for name in listed.split("\0") if name]
    for built in (
        *("compiler/runtime/*.so", "service/client/blocking/*.py"),
        "tuner/measure/harness/harness-*",
    ):
        names += [path.relative_to(ROOT) for path in ROOT.glob(built)]
    with tempfile.TemporaryDirectory(prefix="tilewright-mutants-") as folder:
        for name in names:
            if (ROOT / name).is_symlink():
                (Path(folder) / name).parent.mkdir(parents=True, exist_ok=True)
                (Path(folder) / name).symlink_to((ROOT / name).readlink())
            elif (ROOT / name).is_file():
                (Path(folder) / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, Path(folder) / name)
        yield Path(folder)


def main() -> None:
    """Command line: record the tests and run them on random mutants of each package."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("packages", nargs="+", choices=["all", *JUDGES], metavar="PACKAGE")
    parser.add_argument("--count", type=int, default=300, help="mutants to draw of each package")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--again", action="store_true", help="judge the last run's survivors again")
    parser.add_argument("--by", nargs="+", default=[], metavar="TESTS", help="with --again: files")
    parser.add_argument("--seconds", type=float, default=20.0, help="of processor time, a mutant")
    parser.add_argument("--output", type=Path, default=RESULTS_FOLDER)
    arguments = parser.parse_args()
    if arguments.by and not arguments.again:
        parser.error("--by judges survivors: it needs --again")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the copy goes, as after an interrupt
    packages = tuple(JUDGES) if "all" in arguments.packages else tuple(arguments.packages)
    judges = {package: tuple(arguments.by) or JUDGES[package] for package in packages}
    tests = dict.fromkeys(folder for folders in judges.values() for folder in folders)
    with copied() as copy, closing(Judge(copy, list(tests), RECORDINGS)) as judge:
        for package in packages:
            judge.record(judges[package])
            run(package, judge, copy, arguments)


def run(package: str, judge: Judge, copy: Path, arguments: argparse.Namespace) -> None:
    """Test the mutants of a package, and write both result files after each mutant."""
    results = read_results(arguments.output)
    mutants, places = sample(copy, package, arguments.count, arguments.seed)
    before = results.get(package, {})
    now = basis(copy)
    same = (before.get("basis"), before.get("seed")) == (now, arguments.seed)
    last = [Judged(**row) for row in before.get("rows", [])]
    # of two that look alike, the one that survived is the one to judge again
    known = {one.key(same): one for one in sorted(last, key=Judged.survived)}
    by = tuple(arguments.by)
    kept: dict[str, Judged] = {}
    pending: list[Mutant] = []
    readings: dict[str, str] = {}
    for mutant in mutants:
        found = known.get(Judged.of(mutant, Outcome.NOT_EXECUTED).key(same))
        if found is not None:
            readings[mutant.text] = found.reading
        if found is not None and (same or arguments.again):
            kept[mutant.text] = replace(found, line=mutant.line)
        survived = mutant.text in kept and kept[mutant.text].survived()
        if (arguments.again and survived) or (mutant.text not in kept and not by):
            pending.append(mutant)
    command = f"{package} --count {arguments.count} --seed {arguments.seed}"
    results[package] = result = {
        "origin": asdict(Origin.of(arguments)),
        "command": f"make mutants ARGS='{command}'",
        "basis": now,
        "tests": list(dict.fromkeys((*before.get("tests", ()), *by) if by else JUDGES[package])),
        "versions": {name: version(name) for name in LIBRARIES},
        "count": len(mutants),
        "seed": arguments.seed,
        "places": places,
        "rows": [],
    }
    for number, mutant in enumerate(pending, 1):
        judged = judge.judge(mutant, arguments.seconds)
        reading = readings.get(mutant.text, "") if judged.survived() else ""
        if not (by and judged.survived()):
            kept[mutant.text] = replace(judged, reading=reading)
        place = f"{number}/{len(pending)} {mutant.path}:{mutant.line}"
        print(f"{place} {judged.outcome} {judged.seconds} s: {mutant.change}", flush=True)
        rows = sorted(kept.values(), key=lambda row: (row.path, row.line))
        result["rows"] = [asdict(row) for row in rows]
        write_results(arguments.output, results)


if __name__ == "__main__":
    main()
