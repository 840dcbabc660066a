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
"""The settings of coverage for the Python processes that a test starts."""


@dataclass(frozen=True, slots=True)
class Recording:
    """A test, whether it passed, its seconds, and the lines of the project that it executed.

    The seconds are of processor time, also that of processes that it waited for: a clock's would
    say how busy the machine was. The lines are by path, as the first and last of each run without a
    gap.
    """

    test: str
    passed: bool
    seconds: float
    lines: dict[str, list[tuple[int, int]]]


class Recorder:
    """A plugin of pytest: which lines tests execute, those in processes that they start as well.

    What lasts longer than a test counts for all tests here: fixtures of a module, processes that
    have not ended with it.
    """

    def __init__(self, folder: Path) -> None:
        """Start without recordings; `folder` exists."""
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
        """Stop, and write a file with a `Recording` a test."""
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
        """The lines of other processes that have ended since this was asked."""
        found: dict[str, set[int]] = {}
        for file in self._folder.glob("lines.*"):
            with suppress(coverage.CoverageException):  # of a process that was killed as it wrote
                child = coverage.CoverageData(str(file))
                child.read()
                _add(found, lines_by_context(child)[""])
            file.unlink(missing_ok=True)
        return found


def _processor_seconds() -> float:
    """Of this process and of those that it waited for."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def included() -> list[str]:
    """The files whose lines are recorded. As `source`, all of them would be looked at each time."""
    return [str(Path("tilewright", name).absolute() / "*") for name in PACKAGES]


def lines_by_context(data: coverage.CoverageData) -> dict[str, dict[str, set[int]]]:
    """The lines that ran, by context and by path from the root."""
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
    """Numbers as the first and last of each run without a gap."""
    spans: list[tuple[int, int]] = []
    for line in sorted(lines):
        if spans and spans[-1][1] == line - 1:
            spans[-1] = spans[-1][0], line
        else:
            spans.append((line, line))
    return spans
