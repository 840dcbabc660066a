"""`pytest --jobs N` runs the tests in N forks of the process that collected them.

Importing the test modules and collecting 20,000 tests takes as long as many of the tests together:
forks share one collection. A fork starts with an equal share of consecutive tests, so that it sets
up few fixtures of modules again. A fork that has run its share takes half of the largest remaining
one.
"""

from __future__ import annotations

import multiprocessing
import signal
import sys
import warnings
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count, pairwise
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import pytest
from _pytest._io import TerminalWriter

JOBS = "--jobs"
FOLDER = "fork-"
"""Prefix of the folders of temporary files, one per fork, in the folder of the run."""

_FORK = multiprocessing.get_context("fork")


def run_tests(session: pytest.Session) -> bool | None:
    """Run the collected tests, as `pytest_runtestloop`, if `--jobs` says more than one process."""
    config = session.config
    jobs = min(config.getoption(JOBS), len(session.items))
    if jobs < 2 or config.option.collectonly or session.testsfailed:
        return None
    config.pluginmanager.getplugin("capturemanager").stop_global_capturing()
    config._tmp_path_factory.getbasetemp()  # made once, before it has a folder for each fork
    _Run(session).play(jobs)
    return True


@dataclass(slots=True)
class _Fork:
    """A fork, from the parent's side.

    Attributes:
        share: positions of tests that it will be given.
        given: positions of tests that it was given and has not reported: the test that runs, and
            the next one, which decides the fixtures that are torn down in between.
        complete: whether it has received the end of the tests.
    """

    process: BaseProcess
    connection: Connection
    share: deque[int]
    given: deque[int]
    complete: bool = False


class _Run:
    """The parent's side: it hands out tests and takes reports."""

    def __init__(self, session: pytest.Session) -> None:
        self._session = session
        self._hook = session.config.hook
        self._numbers = count()
        self._forks: dict[Connection, _Fork] = {}

    def play(self, jobs: int) -> None:
        """Run all tests.

        Raises:
            pytest.Session.Failed: after as many failures as `--maxfail` says.
        """
        session, tests = self._session, len(self._session.items)
        try:
            for low, high in pairwise(tests * number // jobs for number in range(jobs + 1)):
                self._start(range(low, high))
            while self._forks:
                for connection in wait(list(self._forks)):
                    self._hear(self._forks[connection])
                if session.shouldfail:
                    raise session.Failed(session.shouldfail)
                if session.shouldstop:
                    raise session.Interrupted(session.shouldstop)
        finally:
            for fork in self._forks.values():
                fork.connection.close()
            for fork in self._forks.values():
                fork.process.join()

    def _start(self, share: Iterable[int]) -> None:
        ours, theirs = _FORK.Pipe()
        number = next(self._numbers)
        others = [*self._forks, ours]
        process = _FORK.Process(target=_work, args=(self._session, number, theirs, others))
        process.start()
        theirs.close()
        fork = self._forks[ours] = _Fork(process, ours, deque(share), deque())
        self._give(fork)
        self._give(fork)

    def _give(self, fork: _Fork) -> None:
        """Send the position of another test, or None if each has been given to a fork."""
        if fork.complete:
            return
        if not fork.share:
            largest = max((each.share for each in self._forks.values()), key=len)
            fork.share.extendleft([largest.pop() for _ in range((len(largest) + 1) // 2)])
        fork.complete = not fork.share
        if not fork.complete:
            fork.given.append(fork.share.popleft())
        fork.connection.send(None if fork.complete else fork.given[-1])

    def _hear(self, fork: _Fork) -> None:
        """Pass on the reports of a test, and give the fork another one."""
        try:
            reports, recorded = fork.connection.recv()
        except (EOFError, ConnectionError):
            self._ended(fork)
            return
        fork.given.popleft()
        with suppress(ConnectionError):  # if it has ended since, its connection says so next
            self._give(fork)
        config = self._session.config
        for name, text, file, line, context in recorded:
            message = warnings.WarningMessage(text, type(name, (Warning,), {}), file, line)
            self._hook.pytest_warning_recorded.call_historic(
                kwargs={"warning_message": message, **context}
            )
        for data in reports:
            report = self._hook.pytest_report_from_serializable(config=config, data=data)
            self._hook.pytest_runtest_logreport(report=report)

    def _ended(self, fork: _Fork) -> None:
        """Fail the test that ended its process, and have another fork run the remaining ones."""
        del self._forks[fork.connection]
        fork.connection.close()
        fork.process.join()
        if not fork.given:
            return
        item = self._session.items[fork.given.popleft()]
        status = fork.process.exitcode
        how = signal.Signals(-status).name if status and status < 0 else f"status {status}"
        text = f"the process of this test ended with {how}"
        report = pytest.TestReport(item.nodeid, item.location, {}, "failed", text, "call")
        self._hook.pytest_runtest_logreport(report=report)
        if remaining := [*fork.given, *fork.share]:
            self._start(remaining)


def _work(
    session: pytest.Session, number: int, connection: Connection, others: Sequence[Connection]
) -> None:
    """Run the tests whose positions arrive, and send the reports and warnings of each.

    Args:
        others: the parent's ends of connections. While a fork holds one, the fork at its other end
            does not see that the parent has ended.
    """
    for each in others:
        each.close()
    config, items = session.config, session.items
    # A child that is spawned imports the main module of its parent: it need not import pytest.
    sys.modules["__main__"] = type(sys)("__main__")
    capture = config.pluginmanager.getplugin("capturemanager")
    capture.start_global_capturing()
    capture.suspend_global_capture()
    temporary = config._tmp_path_factory
    temporary._basetemp = temporary.getbasetemp() / f"{FOLDER}{number}"
    temporary._basetemp.mkdir(mode=0o700)
    for name in ("terminalprogress-plugin", "terminalreporter"):
        if plugin := config.pluginmanager.getplugin(name):
            config.pluginmanager.unregister(plugin)
    reporter = _Reporter(config)
    config.pluginmanager.register(reporter, "terminalreporter")
    reporter.take()  # pytest repeats the warnings of the collection, which the parent has
    try:
        current = connection.recv()
        while current is not None:
            following = connection.recv()
            after = None if following is None else items[following]
            config.hook.pytest_runtest_protocol(item=items[current], nextitem=after)
            connection.send(reporter.take())
            current = following
    except (EOFError, ConnectionError):  # the parent stops the run
        session._setupstate.teardown_exact(None)


class _Reporter:
    """Collects reports and warnings, in place of the reporter that writes to the terminal."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._tw = TerminalWriter(sys.stderr)  # pytest-timeout writes stacks to it
        self._reports: list[Any] = []
        self._warnings: list[Any] = []

    def take(self) -> tuple[list[Any], list[Any]]:
        """The reports and warnings since the last call."""
        found = self._reports, self._warnings
        self._reports, self._warnings = [], []
        return found

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        serialise = self._config.hook.pytest_report_to_serializable
        self._reports.append(serialise(config=self._config, report=report))

    def pytest_warning_recorded(
        self,
        warning_message: warnings.WarningMessage,
        when: str,
        nodeid: str,
        location: tuple[str, int, str] | None,
    ) -> None:
        context = {"when": when, "nodeid": nodeid, "location": location}
        name, text = warning_message.category.__name__, str(warning_message.message)
        file, line = warning_message.filename, warning_message.lineno
        self._warnings.append((name, text, file, line, context))
