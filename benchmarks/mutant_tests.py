"""Records which tests execute which lines, so that a mutant is tested only by relevant tests.

A mutant is code with one deliberate mistake. The relevant tests execute the line of the mistake.

The tests of each file are recorded together in one forked process, because a fork per test function
would take longer than most tests. This has two consequences. If an earlier test fills a cache,
later tests do not execute the cached code. A test that passes only after other tests is noticed
only when it fails on a mutant.

Recordings are stored in a file per state of the code, one line per test. A recording is valid as
long as the packages, the shared test helpers and the test's file do not change.
"""

from __future__ import annotations

import hashlib
import io
import json
import tokenize
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.mutant_judges import CONTRACTS
from benchmarks.mutant_recorder import PACKAGES, Recording
from benchmarks.mutant_session import Reply, Request
from benchmarks.mutant_swap import differing_functions
from benchmarks.mutations import Mutant

SLOWEST_SECONDS = 10.0
"""A test that takes more processor time while it is recorded is not run on mutants."""

_NO_CODE = (tokenize.NL, tokenize.COMMENT, tokenize.INDENT, tokenize.DEDENT)

Spans = Mapping[str, Sequence[tuple[int, int]]]
"""Ranges of lines as (first, last), by path relative to the project root."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The tests to run on a mutant in order, with their processor times, and the number that
    exceeded the time limit.
    """

    tests: tuple[str, ...]
    seconds: tuple[float, ...]
    left_out: int


def basis(root: Path) -> str:
    """A digest of the files that recordings depend on: the packages, and files shared by tests."""
    digest = hashlib.sha256()
    files = [file for name in PACKAGES for file in (root / name).rglob("*.py")]
    files += [file for file in (root / "tests").rglob("*.py") if not file.match("test_*.py")]
    for file in sorted(files):
        digest.update(f"{file.relative_to(root)} {_digest(file)}\n".encode())
    return digest.hexdigest()[:16]


class Recordings:
    """Recorded data of the tests: processor times, and the tests that execute each line."""

    def __init__(self, folder: Path, root: Path, tests: Iterable[str], imports: Spans) -> None:
        """Load the recordings (executed lines of each test) from `folder`.

        Recordings of tests whose file has changed are ignored. `tests` are all collected tests.
        `imports` has the lines that run at import, as ranges by path.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"{basis(root)}.jsonl"
        self._root = root
        self._tests = list(tests)
        files = {_file_of(test) for test in self._tests}
        self._files = {file: _digest(root / file) for file in files}
        self._imports = {path: set(_numbers(spans)) for path, spans in imports.items()}
        self._seconds: dict[str, float] = {}
        self._done: set[str] = set()
        self._judges: set[str] = set()
        self._by_line: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        there = set(self._tests)
        for line in self._path.read_text().splitlines() if self._path.exists() else ():
            row = json.loads(line)
            if row["test"] in there and row["file"] == self._files[_file_of(row["test"])]:
                self._take(row)

    def complete(
        self,
        folders: Sequence[str],
        ask: Callable[[Request], Reply],
        say: Callable[[str], None],
    ) -> None:
        """Record which lines the tests in these files or folders execute.

        Tests with a valid recording are skipped. From then on, only tests in these files or folders
        are chosen for mutants. `ask` runs tests in a child process and returns the reply, and `say`
        reports progress.
        """
        self._judges = {test for test in self._tests if test.startswith(tuple(folders))}
        missing = [test for test in self._tests if test in self._judges - self._done]
        with self._path.open("a") as file:
            for number, (name, found) in enumerate(groupby(missing, _file_of), 1):
                tests = list(found)
                say(f"recording {len(tests)} tests of {name}, the {number}. file")
                for recording, tail in _recorded(tests, ask):
                    row = asdict(recording) | {"file": self._files[name]}
                    print(json.dumps(row), file=file, flush=True)
                    self._take(row)
                    if not recording.passed:
                        say(f"{recording.test} judges nothing: it does not pass\n{tail}")

    def dismiss(self, test: str) -> None:
        """Exclude a test from the tests that are chosen for mutants."""
        self._judges.discard(test)

    def choose(self, mutant: Mutant, limit_seconds: float) -> Choice:
        """Choose the tests to run on a mutant; there may be none.

        They are the tests that execute the mutant's line. If the mutant affects code that runs at
        import, all tests that execute any line of the module are chosen. Tests in files that import
        the module, and the tests of `CONTRACTS`, then come first.

        Within each group, the fastest case of each test function comes first, in order of time, and
        then the second case of each. Different functions detect more mistakes than further cases of
        the same function. Tests that exceed the remaining `limit_seconds` of processor time are
        left out, but at least one test is chosen.
        """
        before = (self._root / mutant.path).read_text()
        by_line = self._by_line.get(mutant.path, {})
        span = logical_line(before, mutant.line)
        at_import = differing_functions(before, mutant.text, mutant.path) is None
        tests: set[str] = set().union(*(by_line.get(line, ()) for line in span))
        if at_import or not self._imports.get(mutant.path, set()).isdisjoint(span):
            contract = CONTRACTS.get(mutant.path.split("/")[0], "")
            near = self._importing(mutant.path) | self._of_file(contract)
            tests.update(near, *by_line.values())
        else:
            near = frozenset()
        turns: Counter[str] = Counter()
        keys: dict[str, tuple[bool, int, float]] = {}
        for test in sorted(tests & self._judges, key=lambda test: (self._seconds[test], test)):
            function = test.split("[")[0]
            turns[function] += 1
            keys[test] = (test not in near, turns[function], self._seconds[test])
        ordered = sorted(keys, key=keys.__getitem__)
        chosen: list[str] = []
        left = limit_seconds
        for test in ordered:
            if not chosen or self._seconds[test] <= left:
                chosen.append(test)
                left -= self._seconds[test]
        seconds = tuple(self._seconds[test] for test in chosen)
        return Choice(tuple(chosen), seconds, len(ordered) - len(chosen))

    def _importing(self, path: str) -> frozenset[str]:
        """The recorded tests in files that import from a module."""
        name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        files = {
            file
            for file in self._files
            if file.endswith(".py")
            and f"from tilewright.{name} import" in (self._root / file).read_text()
        }
        return self._of_file(*files)

    def _of_file(self, *files: str) -> frozenset[str]:
        return frozenset(test for test in self._seconds if _file_of(test) in files)

    def _take(self, row: Mapping[str, Any]) -> None:
        test, seconds, lines = row["test"], row["seconds"], row["lines"]
        self._done.add(test)
        if not row["passed"] or seconds > SLOWEST_SECONDS:
            return
        self._seconds[test] = seconds
        for path, spans in lines.items():
            of_path = self._by_line[path]
            for line in _numbers(spans):
                of_path[line].add(test)


def logical_line(text: str, line: int) -> range:
    """The range of lines of the statement that contains a line; of a compound statement, its head.

    Coverage does not record all lines of a multi-line statement: lines that contain only constants
    are never executed separately.
    """
    start = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NEWLINE:
            if start <= line <= token.end[0]:
                return range(start, token.end[0] + 1)
            start = 0
        elif not start and token.type not in _NO_CODE:
            start = token.start[0]
    return range(line, line + 1)


def _recorded(
    tests: Sequence[str], ask: Callable[[Request], Reply]
) -> Iterator[tuple[Recording, str]]:
    """Record the executed lines of some tests, which run together in one process.

    Yields a recording per test, with the end of the process's output. If the process crashes, each
    half of the tests is recorded separately, and so on.
    """
    reply = ask(Request(tuple(tests), (SLOWEST_SECONDS,) * len(tests), record=True))
    if reply.recorded is not None:
        for fields in reply.recorded:
            yield Recording(**fields), reply.tail
    elif len(tests) > 1:
        middle = len(tests) // 2
        yield from _recorded(tests[:middle], ask)
        yield from _recorded(tests[middle:], ask)
    else:
        yield Recording(tests[0], False, reply.seconds, {}), reply.tail


def _file_of(test: str) -> str:
    return test.split("::")[0]


def _numbers(spans: Iterable[tuple[int, int]]) -> Iterator[int]:
    for first, last in spans:
        yield from range(first, last + 1)


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]
