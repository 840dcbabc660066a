"""pytest plugin that records the project lines which each test executes.

It runs in a forked child of a pytest session. Coverage records the lines with the test as context,
both in the test's process and in processes that the test starts.
"""

from __future__ import annotations

import json
import os
import resource
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import coverage
import pytest

PACKAGES = ("compiler", "tuner", "db", "service")
RECORDED = "recorded.json"

CHILDREN = """[run]
include = {include}
data_file = {folder}/lines
parallel = true
concurrency = multiprocessing, thread
patch = _exit, fork
sigterm = true
disable_warnings = no-data-collected, module-not-measured, no-ctracer
"""
"""Coverage's settings for Python processes that a test starts."""


@dataclass(frozen=True, slots=True)
class Recording:
    """A recorded test, with its processor time in seconds and the lines that it executed.

    Processor time, which includes child processes that were waited for, is independent of other
    load on the machine. `lines` maps a path to ranges of consecutive lines, each as (first, last).
    """

    test: str
    passed: bool
    seconds: float
    lines: dict[str, list[tuple[int, int]]]


class Recorder:
    """pytest plugin that records the lines which each test and its child processes execute.

    Lines that cannot be attributed to one test count for all tests of this recording. These are
    lines of fixtures with a scope wider than a function, and of processes that outlive a test.
    """

    def __init__(self, folder: Path) -> None:
        """Start to record executed lines with Coverage.

        `folder` must exist. The plugin writes all its files to this folder: the settings of
        Coverage, the data of child processes, and the result.
        """
        self._folder = folder
        settings = self._folder / "coverage.ini"
        settings.write_text(CHILDREN.format(include=",".join(included()), folder=self._folder))
        os.environ["COVERAGE_PROCESS_START"] = str(settings)
        self._coverage = coverage.Coverage(data_file=None, config_file=False, include=included())
        self._coverage.start()
        self._begun = 0.0
        self._test = ""
        self._seconds: dict[str, float] = {}
        self._failed: set[str] = set()
        self._elsewhere: dict[str, dict[str, set[int]]] = {}

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._test, self._begun = nodeid, _processor_seconds()
        self._coverage.switch_context(nodeid)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        if fixturedef.scope == "function":
            return (yield)
        self._coverage.switch_context("")
        try:
            return (yield)
        finally:
            self._coverage.switch_context(self._test)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.add(report.nodeid)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._seconds[nodeid] = _processor_seconds() - self._begun
        self._elsewhere[nodeid] = self._of_ended_processes()

    def write(self) -> None:
        """Stop recording, and write a `Recording` per test to a JSON file."""
        self._coverage.stop()
        by_test = lines_by_context(self._coverage.get_data())
        shared = by_test[""]
        _add(shared, self._of_ended_processes())
        recorded = []
        for test, seconds in self._seconds.items():
            lines = by_test[test]
            _add(lines, shared)
            _add(lines, self._elsewhere[test])
            spans = {path: as_spans(found) for path, found in lines.items()}
            recorded.append(
                asdict(Recording(test, test not in self._failed, round(seconds, 6), spans))
            )
        (self._folder / RECORDED).write_text(json.dumps(recorded))

    def _of_ended_processes(self) -> dict[str, set[int]]:
        """Lines executed by child processes that have ended since the previous call, by path."""
        found: dict[str, set[int]] = {}
        for file in self._folder.glob("lines.*"):
            with suppress(coverage.CoverageException):  # of a process that was killed as it wrote
                child = coverage.CoverageData(str(file))
                child.read()
                _add(found, lines_by_context(child)[""])
            file.unlink(missing_ok=True)
        return found


def _processor_seconds() -> float:
    """Processor time in seconds of this process and of all child processes that it waited for."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def included() -> list[str]:
    """Glob patterns of the files whose lines are recorded, for coverage's option `include`.

    The option `source` would make coverage inspect all files at each start.
    """
    return [str(Path("tilewright", name).absolute() / "*") for name in PACKAGES]


def lines_by_context(data: coverage.CoverageData) -> dict[str, dict[str, set[int]]]:
    """The executed lines, by context (a test, or "") and by path relative to the project root."""
    root = Path.cwd().resolve()
    found: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    for file in data.measured_files():
        # modules are imported through the links in tilewright/
        path = Path(file).resolve().relative_to(root).as_posix()
        for line, contexts in data.contexts_by_lineno(file).items():
            for context in contexts:
                found[context][path].add(line)
    return found


def _add(lines: dict[str, set[int]], others: Mapping[str, set[int]]) -> None:
    for path, found in others.items():
        lines.setdefault(path, set()).update(found)


def as_spans(lines: Iterable[int]) -> list[tuple[int, int]]:
    """Convert line numbers to ranges of consecutive numbers, each as (first, last)."""
    spans: list[tuple[int, int]] = []
    for line in sorted(lines):
        if spans and spans[-1][1] == line - 1:
            spans[-1] = spans[-1][0], line
        else:
            spans.append((line, line))
    return spans
