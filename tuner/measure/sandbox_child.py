"""The sandbox's child process, as its keeper sees it: started, given jobs, watched, killed."""

from __future__ import annotations

import json
import os
import select
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from tuner.measure.interpreter import child_environment

START_LIMIT_SECONDS = 60.0
"""For a child to import NumPy on a busy machine."""


class Talked(Enum):
    """How a job ended that did not kill the child."""

    TO_THE_END = auto()
    CANCELLED = auto()
    OUT_OF_TIME = auto()


@dataclass(frozen=True, slots=True)
class Death:
    """The child died of a job; `signal` is the signal that killed it, 0 if none did."""

    how: str
    signal: int = 0


class SandboxChild:
    """A child process that is started when a job needs it, and again when it died.

    Args:
        python: the command that runs it (`tuner.measure.interpreter`).
    """

    def __init__(self, python: Sequence[str]) -> None:
        self._python = tuple(python)
        self._process: subprocess.Popen[bytes] | None = None
        self._pending = b""

    def talk(
        self,
        job: Mapping[str, Any],
        limit: float,
        take: Callable[[Mapping[str, Any]], float | None],
        cancelled: Callable[[], bool],
    ) -> Talked | Death:
        """Give the child a job and read its events until the job ends.

        `take` gets each event. It returns how many seconds the child has from then on, or None if
        the present limit goes on. The first limit is `limit` seconds. A child that has not answered
        in time, or whose job is cancelled, is killed.
        """
        self._start()
        process = self._process
        assert process is not None and process.stdin is not None
        try:
            process.stdin.write((json.dumps(job) + "\n").encode())
            process.stdin.flush()
        except OSError:
            return self._died()
        deadline = time.monotonic() + limit
        while True:
            if cancelled():
                self.close()
                return Talked.CANCELLED
            event = self._read(min(0.2, max(0.0, deadline - time.monotonic())))
            if event is None:
                if self._is_dead():
                    return self._died()
                if time.monotonic() >= deadline:
                    self.close()
                    return Talked.OUT_OF_TIME
                continue
            if event.get("event") == "done":
                return Talked.TO_THE_END
            seconds = take(event)
            if seconds is not None:
                deadline = time.monotonic() + seconds

    def _start(self) -> None:
        if self._process is not None and not self._is_dead():
            return
        self._pending = b""
        command = shlex.join(self._python)
        try:
            self._process = subprocess.Popen(
                [*self._python, "-m", "tuner.measure.sandbox_main"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=child_environment(),
                start_new_session=True,
            )
        except OSError as error:
            reason = error.strerror or str(error)
            raise RuntimeError(f"the sandbox's Python '{command}' cannot run: {reason}") from error
        deadline = time.monotonic() + START_LIMIT_SECONDS
        while time.monotonic() < deadline and not self._is_dead():
            if self._read(0.5) is not None:
                return
        self.close()
        raise RuntimeError(f"the sandbox's Python '{command}' did not get ready")

    def _read(self, timeout_seconds: float) -> dict[str, Any] | None:
        """The next event, or None if there is none in time or the child closed its end."""
        process = self._process
        assert process is not None and process.stdout is not None
        while b"\n" not in self._pending:
            ready, _, _ = select.select([process.stdout], [], [], timeout_seconds)
            if not ready:
                return None
            data = os.read(process.stdout.fileno(), 65536)
            if not data:
                return None
            self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        event = json.loads(line)
        return event if isinstance(event, dict) else {}

    def _is_dead(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def _died(self) -> Death:
        process = self._process
        assert process is not None
        code = process.wait()
        self._discard()
        if code < 0:
            return Death(f"killed by {signal.Signals(-code).name}", -code)
        return Death(f"exited with status {code}")

    def close(self) -> None:
        """Stop the process; the next job starts another one."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._discard()

    def _discard(self) -> None:
        if self._process is not None:
            for stream in (self._process.stdin, self._process.stdout):
                if stream is not None:
                    try:
                        stream.close()
                    except BrokenPipeError:
                        # What could not be written was meant for the dead child.
                        continue
        self._process = None
        self._pending = b""
