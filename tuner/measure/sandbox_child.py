"""The sandbox's child process, as its keeper sees it: started, given jobs, watched, killed."""

from __future__ import annotations

import contextlib
import json
import math
import os
import resource
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from tilewright.tuner.measure.confinement import Confinement, Guards
from tilewright.tuner.measure.interpreter import child_environment

LONGEST_EVENT_BYTES = 1 << 28
"""A result of a run may hold outputs of 16 MiB and the times of thousands of instructions."""

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


@dataclass(frozen=True, slots=True)
class Budget:
    """Most that a job can take with everything that it may do: on the clock, and on all cores."""

    seconds: float
    threads: int

    @property
    def processor_seconds(self) -> float:
        return self.seconds * (self.threads + 1)


_REASONS = {
    signal.SIGSYS: ": it asked the system for what candidates may not have",
    signal.SIGXCPU: ": it used more processor time than its job can take",
}


class SandboxChild:
    """A child process that is started when a job needs it, and again when it died.

    Args:
        python: the command that runs it (`tuner.measure.interpreter`).
        confinement: what it may do.
    """

    def __init__(self, python: Sequence[str], confinement: Confinement) -> None:
        self._python = tuple(python)
        self._confinement = confinement
        self._guards: dict[str, str] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._pending = b""

    def guards(self) -> Guards:
        """What confines the process, which is started for that if need be.

        Raises:
            OSError, RuntimeError: if it cannot be started.
        """
        self._start()
        return self._guards

    def talk(
        self,
        job: Mapping[str, Any],
        limit: float,
        take: Callable[[Mapping[str, Any]], float | None],
        cancelled: Callable[[], bool],
        budget: Budget,
    ) -> Talked | Death:
        """Give the child a job and read its events until the job ends.

        `take` gets each event. It returns how many seconds the child has from then on, or None if
        the present limit goes on. The first limit is `limit` seconds. A child that has not answered
        in time, or whose job is cancelled, is killed. So is one that goes on for longer than its
        `budget`, whatever it says: candidates share its memory and may speak in its name.
        """
        self._start()
        process = self._process
        assert process is not None and process.stdin is not None
        self._allow(budget)
        try:
            process.stdin.write((json.dumps(job) + "\n").encode())
            process.stdin.flush()
        except OSError:
            return self._died()
        started = time.monotonic()
        deadline = started + limit
        while True:
            if cancelled():
                self.close()
                return Talked.CANCELLED
            try:
                event = self._read(min(0.2, max(0.0, deadline - time.monotonic())))
            except ValueError:
                return self._nonsense()
            if event is None:
                if self._is_dead():
                    return self._died()
                if time.monotonic() >= deadline:
                    self.close()
                    return Talked.OUT_OF_TIME
                continue
            if event.get("event") == "done":
                return Talked.TO_THE_END
            try:
                seconds = take(event)
            except (KeyError, ValueError, TypeError, AttributeError):
                return self._nonsense()
            if seconds is not None:
                deadline = min(time.monotonic() + seconds, started + budget.seconds)

    def _nonsense(self) -> Death:
        """A candidate wrote where only this process's own code should."""
        self.close()
        return Death("said what is no event")

    def _allow(self, budget: Budget) -> None:
        """Let the process use so much processor time from now on, and no more."""
        assert self._process is not None
        if sys.platform != "linux":
            return
        try:
            used = _processor_seconds(self._process.pid)
            limit = math.ceil(used + budget.processor_seconds)
            pid = self._process.pid
            resource.prlimit(pid, resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))
        except (OSError, ValueError):
            return  # it died, or another user's limits may not be set: the deadline holds

    def _start(self) -> None:
        if self._process is not None and not self._is_dead():
            return
        self._pending = b""
        self._confinement.open_folder()
        command = shlex.join(self._python)
        try:
            self._process = subprocess.Popen(
                [*self._python, "-m", "tilewright.tuner.measure.sandbox_main"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=child_environment(),
                start_new_session=True,
            )
        except OSError as error:
            reason = error.strerror or str(error)
            raise RuntimeError(f"the sandbox's Python '{command}' cannot run: {reason}") from error
        self._introduce()
        deadline = time.monotonic() + START_LIMIT_SECONDS
        while time.monotonic() < deadline and not self._is_dead():
            event = self._read(0.5)
            if event is not None:
                self._guards = event["guards"]
                return
        self.close()
        raise RuntimeError(f"the sandbox's Python '{command}' did not get ready")

    def _introduce(self) -> None:
        assert self._process is not None and self._process.stdin is not None
        line = json.dumps(self._confinement.to_json()) + "\n"
        with contextlib.suppress(BrokenPipeError):  # it died: what comes next says so
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()

    def _read(self, timeout_seconds: float) -> dict[str, Any] | None:
        """The next event, or None if there is none in time or the child closed its end.

        Raises ValueError for what is no event.
        """
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
            if len(self._pending) > LONGEST_EVENT_BYTES:
                raise ValueError("an event has no end")
        line, _, self._pending = self._pending.partition(b"\n")
        try:
            event = json.loads(line)
        except RecursionError as error:
            raise ValueError("an event is nested too deeply") from error
        if not isinstance(event, dict):
            raise ValueError("an event is no object")
        return event

    def _is_dead(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def _died(self) -> Death:
        process = self._process
        assert process is not None
        code = process.wait()
        self._discard()
        if code < 0:
            why = _REASONS.get(signal.Signals(-code), "")
            return Death(f"killed by {signal.Signals(-code).name}{why}", -code)
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


def _processor_seconds(pid: int) -> float:
    """What a process has used of its cores so far. Raises OSError, ValueError."""
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
