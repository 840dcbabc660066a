"""Compilation of candidates in a child process, one at a time.

If the compiler crashes or hangs, only the child process ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import TimeoutError as BuildTimeoutError
from multiprocessing.connection import Connection
from typing import Any

from pebble import ProcessExpired

from tilewright.compiler.errors import CompilerError
from tilewright.compiler.process.child import ChildProcess
from tilewright.tuner.measure.builder import (
    Compile,
    compile_with_compiler,
    load_compiler,
    timed_compile,
)

START_SECONDS = 120.0
"""Time limit in seconds for a child process to load the compiler, which suffices on a busy
machine."""


class BuildChild:
    """Builds candidates in one child process, which is started on demand and replaced if it dies.

    Only one thread at a time may use the object.
    """

    def __init__(self, compile_candidate: Compile) -> None:
        self._compile = compile_candidate
        self._child: ChildProcess | None = None

    def build(
        self,
        text: str,
        schedule: Mapping[str, Any],
        mode: Mapping[str, Any],
        limit_seconds: float,
    ) -> Mapping[str, Any]:
        """Build one candidate in the child process, and return the compile function's result.

        Args:
            text: the workload's text (`Workload.text`).
            schedule: the schedule as JSON.
            mode: the mode as JSON.
            limit_seconds: the time limit; after it, the child is killed.

        Raises:
            BuildTimeoutError: if the build exceeded its time limit.
            ProcessExpired: if the child process does not start, or died.
            CompilerError: if the compiler rejects the candidate.
            RuntimeError: if the compile function raised another exception.
        """
        child = self._ready()
        try:
            child.pipe.send((self._compile, text, schedule, mode))
            late = not child.pipe.poll(limit_seconds)
            answer: Any = None if late else child.pipe.recv()
        except (EOFError, OSError):
            status = child.wait()
            self._drop(kill=False)
            raise ProcessExpired(f"exit status {status}", status) from None
        if late:
            self._drop(kill=True)
            raise BuildTimeoutError
        if isinstance(answer, Exception):
            raise answer
        made: Mapping[str, Any] = answer
        return made

    def close(self) -> None:
        """Kill the child process."""
        self._drop(kill=True)

    def _ready(self) -> ChildProcess:
        if self._child is None:
            child = ChildProcess("tilewright.tuner.measure.build_child", "serve")
            try:
                child.pipe.send(self._compile is compile_with_compiler)
                if not child.pipe.poll(START_SECONDS):
                    child.kill()
                    raise ProcessExpired("it does not start", 1)
                child.pipe.recv()
            except (EOFError, OSError):
                status = child.wait()
                child.close()
                raise ProcessExpired(f"exit status {status}", status) from None
            self._child = child
        return self._child

    def _drop(self, *, kill: bool) -> None:
        child, self._child = self._child, None
        if child is not None:
            if kill:
                child.kill()
            else:
                child.close()


def serve(pipe: Connection) -> None:
    """Run the child process: build each candidate received from `pipe`, until the pipe is closed.

    The first message is a boolean: whether to load the compiler. Every other message has a compile
    function and its arguments; the reply is its result or an exception.
    """
    with pipe:
        if pipe.recv():
            load_compiler()
        pipe.send("ready")
        while True:
            try:
                compile_candidate, *arguments = pipe.recv()
            except EOFError:
                return
            try:
                answer: object = timed_compile(compile_candidate, *arguments)
            except CompilerError as error:
                answer = CompilerError(str(error))  # subclasses need not pickle
            except Exception as error:  # noqa: BLE001 - a bug in one candidate's lowering is recorded
                answer = RuntimeError(f"{type(error).__name__}: {error}")
            pipe.send(answer)
