"""Computes references in a child of this process, which ends at once when nobody wants them.

A thread inside NumPy cannot be stopped, and memory that it takes is the whole process's. The child
has limits of its own; what it does not survive is data.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from compiler.child import ChildProcess
from compiler.process import settle_process

if TYPE_CHECKING:
    from tuner.measure.oracle import ExpectedOutput

LIMIT_SECONDS = 120.0
"""How long one reference may take. Those of most workloads take milliseconds."""

START_SECONDS = 120.0
"""How long a child may take to load the compiler, on a machine that is busy."""

NICENESS = 5
"""The niceness of the child, as of the builders: measurements go first."""

OWN_BYTES = 512 << 20
"""What the child holds beside the arrays of a reference: Python and the compiler."""


class ReferenceChild:
    """One child, started when it is first needed, and anew after it died.

    One thread asks it; any thread may stop it.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._child: ChildProcess | None = None
        self._stopped = False
        self._lock = threading.Lock()

    def compute(self, text: str, draw: int) -> ExpectedOutput | str:
        """The reference of a workload's text for a draw, or why there is none."""
        child: ChildProcess | None = None
        try:
            child = self._ready()
            if child is None:
                return "is not wanted any more"
            if child.pipe.poll(START_SECONDS):
                child.pipe.recv()  # it says that it is ready for another
                child.pipe.send((text, draw, self._limit_bytes))
                if child.pipe.poll(LIMIT_SECONDS):
                    answer: ExpectedOutput | str = child.pipe.recv()
                    return answer
            why = f"takes more than {LIMIT_SECONDS:g} s"
        except (EOFError, OSError) as error:
            why = f"cannot be computed: {error}" if child is None else _reason(child)
        except MemoryError:
            why = "does not fit the memory of this process"
        if child is not None:
            self._drop(child)
        return why

    def stop(self) -> None:
        """End the child at once, for good. Who waits in `compute` is told."""
        with self._lock:
            self._stopped = True
            if self._child is not None:
                self._child.stop()

    def close(self) -> None:
        """Clear away what is left after `stop`, when no thread is in `compute`."""
        if self._child is not None:
            self._drop(self._child)

    def _ready(self) -> ChildProcess | None:
        with self._lock:
            if self._child is None and not self._stopped:
                self._child = ChildProcess("tuner.measure.reference_child", "serve")
            return None if self._stopped else self._child

    def _drop(self, child: ChildProcess) -> None:
        with self._lock:
            self._child = None
            child.kill()


def serve(pipe: Connection) -> None:
    """Compute what comes through the pipe until it is closed: what the child runs.

    It answers what is expected to fail. Any other error ends it, and its last line says why.
    """
    settle_process()
    from compiler.errors import CompilerError
    from compiler.workload import Workload
    from tuner.measure.oracle import make_reference

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is for its parent
    os.nice(NICENESS)
    with pipe:
        try:
            while True:
                pipe.send("ready")
                text, draw, limit_bytes = pipe.recv()
                _limit(limit_bytes)
                answer: ExpectedOutput | str
                try:
                    answer = make_reference(Workload.parse(text), draw)
                except CompilerError as error:
                    answer = f"cannot be computed: {error}"
                except MemoryError as error:
                    answer = f"takes more memory than it may: {error}"
                pipe.send(answer)
        except (EOFError, BrokenPipeError):
            return


def _limit(limit_bytes: int) -> None:
    """Only Linux counts what a process allocates against such a limit."""
    if sys.platform == "linux":
        import resource

        most = limit_bytes + OWN_BYTES
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _reason(child: ChildProcess) -> str:
    """Why it ended before it answered."""
    status = child.wait()
    if status < 0:
        return f"cannot be computed: its process was ended by {signal.Signals(-status).name}"
    words = child.last_words()
    return f"cannot be computed: {words[-1] if words else f'its process ended with {status}'}"
