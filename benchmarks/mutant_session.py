"""Runs tests on one mutant after the other, each in a fork; `benchmarks.mutants` starts it.

The session imports third-party libraries once, which takes longer than most tests. It imports no
module of this project, so that each fork imports the mutant. Its working directory is a copy of the
project. Requests come on standard input, one JSON object a line, and each is answered by one line.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.util import cache_from_source
from pathlib import Path

LIBRARIES = (
    *("numpy", "ml_dtypes", "onnx.reference", "onnxruntime", "llvmlite.binding"),
    *("pytest", "_pytest.assertion.rewrite", "hypothesis.strategies"),
)
"""What most tests import; what a fork does not find here it imports itself."""

POLL_SECONDS = 0.02
TAIL_LINES = 12


@dataclass(frozen=True, slots=True)
class Request:
    """Run pytest with `arguments`, with the file at `path` holding `text` ("": nothing changes).

    After `limit_seconds` the run ends.
    """

    arguments: tuple[str, ...]
    limit_seconds: float
    path: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class Reply:
    """What pytest returned (None: it was ended at its limit, or died), and its last lines."""

    code: int | None
    seconds: float
    timed_out: bool
    tail: str


def run(request: Request) -> Reply:
    """Run the tests on a request's mutant and put the file back."""
    if not request.path:
        return _forked(request)
    path = Path(request.path)
    original = path.read_bytes()
    # Compiled code is judged by size and whole seconds: a mutant's must be neither read nor kept.
    Path(cache_from_source(str(path.resolve()))).unlink(missing_ok=True)
    try:
        path.write_text(request.text)
        return _forked(request)
    finally:
        path.write_bytes(original)


def _forked(request: Request) -> Reply:
    started = time.monotonic()
    with tempfile.TemporaryFile() as log:
        child = os.fork()
        if child == 0:
            _child(request, log.fileno())
        status, timed_out = _wait(child, started + request.limit_seconds)
        seconds = time.monotonic() - started
        log.seek(0)
        lines = log.read().decode(errors="replace").splitlines()
    code = os.WEXITSTATUS(status) if os.WIFEXITED(status) and not timed_out else None
    return Reply(code, round(seconds, 2), timed_out, "\n".join(lines[-TAIL_LINES:]))


def _child(request: Request, log: int) -> None:
    """Run pytest in a process group of its own, and end."""
    code = 70
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        if request.path:
            sys.dont_write_bytecode = True
            os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        import pytest

        code = int(pytest.main(list(request.arguments)))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _wait(child: int, deadline: float) -> tuple[int, bool]:
    """The status of a child, and whether it had to be ended; what it started ends with it."""
    ended, status = 0, 0
    try:
        while not ended and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
            ended, status = os.waitpid(child, os.WNOHANG)
    finally:
        with suppress(ProcessLookupError):  # where nothing is left of its group
            os.killpg(child, signal.SIGKILL)
    if not ended:
        _, status = os.waitpid(child, 0)
    return status, not ended


def main() -> None:
    """Answer requests until standard input ends."""
    sys.path[0] = os.getcwd()  # this file's own folder is no place for modules
    for name in LIBRARIES:
        importlib.import_module(name)
    for line in sys.stdin:
        fields = json.loads(line)
        request = Request(**(fields | {"arguments": tuple(fields["arguments"])}))
        print(json.dumps(asdict(run(request))), flush=True)


if __name__ == "__main__":
    main()
