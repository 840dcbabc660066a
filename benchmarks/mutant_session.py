"""Runs tests on one mutant after the other, each in a forked process.

`benchmarks.mutants` starts this program. It works in a copy of the project. There are two kinds of
sessions. A warm session has collected the tests, and therefore imported the project. Its forks
replace the functions that differ (`mutant_swap.py`) and can start testing at once. A fresh session
has imported only third-party libraries. Its forks import the mutant, which takes seconds. After
each fork, its remaining processes and files are removed.

Standard input has one JSON request per line, and standard output one reply per line. A warm session
first prints a line with the collected tests and the lines that were executed at import.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import resource
import select
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

import coverage
import psutil
import pytest

from benchmarks.mutant_recorder import RECORDED, Recorder, as_spans, included, lines_by_context
from benchmarks.mutant_swap import Functions, Pair, differing_functions

LIBRARIES = (
    *("numpy", "ml_dtypes", "onnx.reference", "onnxruntime", "llvmlite.binding", "xgboost"),
    *("_pytest.assertion.rewrite", "hypothesis.strategies", "sqlalchemy.orm", "alembic.command"),
    *("fastapi.testclient", "typer.testing", "uvicorn", "pydantic_settings", "structlog"),
)
"""Third-party modules that most tests import. A fork of a fresh session imports all others."""

OPTIONS = (
    *("-q", "-s", "--no-header", "--tb=line", "-p", "no:cacheprovider", "--hypothesis-seed=0"),
    *("-k", "not postgresql"),
)
"""Arguments of pytest. Tests with PostgreSQL are excluded, because a server takes longer to start
than all tests of a mutant."""

FOLDER = Path(".mutants")
"""Folder in the copy for a fork's temporary files and its output."""

POLL_SECONDS = 0.25
TAIL_LINES = 12
MEMORY_BYTES = 8 << 30
"""Memory limit of a fork. A mutant that allocates more is caught, and cannot exhaust the machine's
memory."""

IMPORT_SECONDS = 10.0
SPARE_CPU_SECONDS = 5.0
SPARE_SECONDS = 25.0
TIMES = 3.0
"""The time limit of a test is this factor on its recorded time, plus spare seconds.

The spare CPU time is small, because other programs do not add to it. The spare wall time is larger,
for tests that wait. An import has a limit of its own (IMPORT_SECONDS).
"""


@dataclass(frozen=True, slots=True)
class Request:
    """Request to run `tests` in order until one fails.

    `seconds` is the known processor time of each. During the run, the file at `path` contains
    `text`; an empty path leaves all files unchanged. With `record`, all tests run, and the reply
    contains the lines that each executed.
    """

    tests: tuple[str, ...]
    seconds: tuple[float, ...]
    path: str = ""
    text: str = ""
    record: bool = False


@dataclass(frozen=True, slots=True)
class Reply:
    """Result of a request to run tests.

    Attributes:
        code: the exit status of the tests: 0 if all passed, None if the process was killed or
            crashed.
        seconds: the wall time of the run.
        timed_out: whether a test exceeded its time limit.
        test: the index of the last test that ran.
        tail: the end of the output.
        possible: False if the tests did not run, because the mutant (changed code) differs in code
            that runs at import. The process had already imported the project, so that a new import
            is required.
        recorded: one `Recording` (executed lines) per test, if requested.
    """

    code: int | None = None
    seconds: float = 0.0
    timed_out: bool = False
    test: int = 0
    tail: str = ""
    possible: bool = True
    recorded: list[dict[str, Any]] | None = None


class Warm:
    """pytest plugin that answers requests to run tests, after pytest has collected all tests.

    The session is called warm, because the project is imported already. A test run on a mutant
    (code with a deliberate mistake) only forks the process and replaces functions.
    """

    def __init__(self, serve: Callable[[Callable[[Request], Reply], Any], None]) -> None:
        self._serve = serve
        self._imports = coverage.Coverage(data_file=None, config_file=False, include=included())
        self._imports.start()

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Replace pytest's run loop: answer requests to run tests until standard input ends."""
        self._imports.stop()
        if session.testsfailed:
            raise session.Interrupted("tests cannot be collected")
        self._items = {item.nodeid: item for item in session.items}
        self._session = session
        self._functions = Functions()
        gc.collect()
        gc.freeze()  # so that no fork's collector touches, and thereby copies, what all share
        lines = lines_by_context(self._imports.get_data())[""]
        spans = {path: as_spans(found) for path, found in lines.items()}
        hello = {"tests": list(self._items), "imports": spans}
        self._serve(self._answer, hello)
        return True

    def _answer(self, request: Request) -> Reply:
        pairs: list[list[Pair]] = []
        if request.path:
            path = Path(request.path)
            file = as_imported(path)
            differing = differing_functions(path.read_text(), request.text, file)
            if _imported(file):
                if differing is None or not all(map(self._functions.has, differing)):
                    return Reply(possible=False)
                pairs = differing

        def work(begin: Callable[[int], None]) -> int:
            for function in pairs:
                self._functions.swap(function)
            return self._run(request, begin)

        return mutated(request, work)

    def _run(self, request: Request, begin: Callable[[int], None]) -> int:
        items = [self._items[test] for test in request.tests]
        recorder = Recorder(FOLDER.resolve()) if request.record else None
        if recorder is not None:
            self._session.config.pluginmanager.register(recorder)
        for number, item in enumerate(items):
            begin(number)
            after = items[number + 1] if number + 1 < len(items) else None
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
            if self._session.testsfailed and recorder is None:
                break
        if recorder is not None:
            recorder.write()
        code = pytest.ExitCode.TESTS_FAILED if self._session.testsfailed else pytest.ExitCode.OK
        # what fixtures of the session started ends
        self._session.config.hook.pytest_sessionfinish(session=self._session, exitstatus=code)
        return int(code)


class Chosen:
    """pytest plugin that runs the given tests in the given order.

    Before each test, it calls `begin` with the test's index.
    """

    def __init__(self, tests: Sequence[str], begin: Callable[[int], None]) -> None:
        self._numbers = {test: number for number, test in enumerate(tests)}
        self._begin = begin

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if item.nodeid in self._numbers]
        items.sort(key=lambda item: self._numbers[item.nodeid])

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._begin(self._numbers[nodeid])


def fresh(request: Request) -> Reply:
    """Run the tests of a request in a forked process that imports the project anew.

    This is slower than a fork of a process that has already imported the project. It also tests
    changes in code that runs at import. Returns the result of the tests.
    """
    files = list(dict.fromkeys(test.split("::")[0] for test in request.tests))

    def work(begin: Callable[[int], None]) -> int:
        return int(pytest.main([*_options(), "-x", *files], plugins=[Chosen(request.tests, begin)]))

    return mutated(request, work)


def as_imported(path: Path) -> str:
    """Absolute path by which Python imports a source file of the project.

    The folder tilewright/ has symbolic links to the packages, so the path leads through it.
    """
    return str(Path("tilewright", path).absolute())


def mutated(request: Request, work: Callable[[Callable[[int], None]], int]) -> Reply:
    """Call `work` in a forked process while the request's file contains the mutant.

    The mutant is the changed source text. The file is restored afterwards. Returns the result of
    the tests that `work` runs.
    """
    if not request.path:
        return _forked(request, work)
    path = Path(request.path)
    original = path.read_bytes()
    # Compiled code is judged by size and whole seconds: a mutant's must be neither read nor kept.
    Path(cache_from_source(as_imported(path))).unlink(missing_ok=True)
    try:
        path.write_text(request.text)
        return _forked(request, work)
    finally:
        path.write_bytes(original)


def _forked(request: Request, work: Callable[[Callable[[int], None]], int]) -> Reply:
    shutil.rmtree(FOLDER, ignore_errors=True)
    (FOLDER / "tmp").mkdir(parents=True)
    FOLDER.chmod(0o755)
    started = time.monotonic()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _child(request, work, writing)
    os.close(writing)
    try:
        status, number = _watch(child, reading, request.seconds)
    finally:
        os.close(reading)
        _end_descendants()
    seconds = round(time.monotonic() - started, 2)
    code = os.WEXITSTATUS(status) if status is not None and os.WIFEXITED(status) else None
    text = (FOLDER / "log").read_text(errors="replace") if (FOLDER / "log").exists() else ""
    said = FOLDER / RECORDED
    recorded = json.loads(said.read_text()) if said.exists() else None
    tail = "\n".join(text.splitlines()[-TAIL_LINES:])
    return Reply(code, seconds, status is None, number, tail, recorded=recorded)


def _child(request: Request, work: Callable[[Callable[[int], None]], int], pipe: int) -> None:
    """Body of the forked process: call `work` with a memory limit, and exit with its return value.

    The output goes to a log file. `work` gets a function that it calls with the index of each test
    when the test starts. The function writes the index to `pipe`, so that the parent can limit the
    test's time.
    """
    code = 70
    end = os._exit  # before coverage puts its own in that place
    try:
        os.setsid()
        log = os.open(FOLDER / "log", os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 1)
        os.dup2(log, 2)
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
        if request.path:
            sys.dont_write_bytecode = True
            os.environ["PYTHONDONTWRITEBYTECODE"] = "1"

        def begin(number: int) -> None:
            os.write(pipe, number.to_bytes(4, "little"))

        code = work(begin)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        end(code)


def _watch(child: int, pipe: int, seconds: Sequence[float]) -> tuple[int | None, int]:
    """Wait for a child, and kill it if a test exceeds its limit of CPU or wall time.

    Returns the wait status (None if a limit was exceeded) and the index of the last test that ran.
    """
    process = psutil.Process(child)
    number, begun, begun_cpu = -1, time.monotonic(), 0.0
    handle = os.pidfd_open(child)
    try:
        while True:
            ready, _, _ = select.select([handle, pipe], [], [], POLL_SECONDS)
            if pipe in ready and (said := os.read(pipe, 1 << 16)):
                number = int.from_bytes(said[-4:], "little")
                begun, begun_cpu = time.monotonic(), _cpu_seconds(process)
            elif handle in ready:
                return os.waitpid(child, 0)[1], number
            else:
                usual = TIMES * (seconds[number] if number >= 0 else IMPORT_SECONDS)
                if (
                    time.monotonic() - begun > SPARE_SECONDS + usual
                    or _cpu_seconds(process) - begun_cpu > SPARE_CPU_SECONDS + usual
                ):
                    return None, number
    finally:
        os.close(handle)


def _cpu_seconds(process: psutil.Process) -> float:
    with suppress(psutil.Error):
        times = process.cpu_times()
        return float(times.user + times.system + times.children_user + times.children_system)
    return 0.0


def _end_descendants() -> None:
    """Kill all descendants of this process, including daemons that it adopted as subreaper."""
    while children := psutil.Process().children(recursive=True):
        for one in children:
            with suppress(psutil.Error):
                one.kill()
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _imported(file: str) -> bool:
    return any(getattr(module, "__file__", None) == file for module in list(sys.modules.values()))


def _options() -> tuple[str, ...]:
    return *OPTIONS, f"--basetemp={(FOLDER / 'tests').resolve()}"


def main() -> None:
    """Answer requests to run tests until standard input ends.

    The command-line arguments are the kind of session, the folder of the project's copy, and the
    tests. The kind is "warm" (the project is imported once) or "fresh" (it is imported for each
    request).
    """
    kind, copy, *tests = sys.argv[1:]
    # This process, tests and their child processes import the project from the copy.
    for name in [name for name in sys.modules if name.split(".")[0] == "benchmarks"]:
        del sys.modules[name]
    sys.path[:] = [copy, *(path for path in sys.path if path != os.getcwd())]
    os.chdir(copy)
    os.environ["PYTHONPATH"] = copy
    os.environ["TMPDIR"] = str((FOLDER / "tmp").resolve())
    (FOLDER / "tmp").mkdir(parents=True, exist_ok=True)
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: daemons come to this process
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started this session ends it
    requests, replies = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    for name in LIBRARIES:
        with suppress(ModuleNotFoundError):
            importlib.import_module(name)

    def serve(answer: Callable[[Request], Reply], hello: Any) -> None:
        print(json.dumps(hello), file=replies, flush=True)
        for line in requests:
            fields = json.loads(line)
            lists = {name: tuple(fields[name]) for name in ("tests", "seconds")}
            reply = answer(Request(**(fields | lists)))
            print(json.dumps(asdict(reply)), file=replies, flush=True)

    if kind == "warm":
        raise SystemExit(pytest.main([*_options(), *tests], plugins=[Warm(serve)]))
    serve(fresh, {})


if __name__ == "__main__":
    main()
