"""LLVM in a process of its own, for code that it may abort on or never finish.

LLVM ends its process if it finds no instruction for an operation ("Cannot select"), and for a few
operations it never finishes. So one child process compiles for this one. Code that kills the child
gets an error, and the next code gets a new child.
"""

from __future__ import annotations

import atexit
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
from multiprocessing.connection import Connection, Pipe
from typing import IO

from compiler.errors import CompilerError
from compiler.target import Target

LIMIT_SECONDS = 30
"""CPU time that one text may take; kernels take less than one second."""

_COMMAND = (
    "import sys; sys.path[:] = sys.argv[2:]; "
    "from compiler.codegen.apart import serve; serve(int(sys.argv[1]))"
)


def emit_object(ir_text: str, target: Target) -> bytes:
    """`object.emit_object` in another process.

    Raises:
        CompilerError: as there, or if LLVM aborts or does not end in `LIMIT_SECONDS`.
    """
    made = _ask(ir_text, target, as_text=False)
    assert isinstance(made, bytes)
    return made


def emit_assembly(ir_text: str, target: Target) -> str:
    """`object.emit_assembly` in another process; errors as `emit_object`."""
    made = _ask(ir_text, target, as_text=True)
    assert isinstance(made, str)
    return made


def serve(descriptor: int) -> None:
    """Answer requests until the pipe is closed: what the other process runs."""
    from compiler.codegen import object

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with Connection(descriptor) as pipe:
        while True:
            try:
                as_text, text, target, seconds = pipe.recv()
            except EOFError:
                return
            _limit_time(seconds)
            try:
                if as_text:
                    pipe.send(object.emit_assembly(text, target))
                else:
                    pipe.send(object.emit_object(text, target))
            except CompilerError as error:
                pipe.send(error)


def _limit_time(seconds: int) -> None:
    """End this process so many seconds of CPU time from now, also when nobody waits for it."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    used = int(usage.ru_utime + usage.ru_stime) + 1
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (used + seconds, hard))


class _Process:
    """A process that serves, and this end of its pipe."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.pipe, theirs = Pipe()
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process is
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _COMMAND, str(theirs.fileno()), *sys.path],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                pass_fds=[theirs.fileno()],
            )

    def close(self) -> None:
        """Let it end, and wait for that."""
        self.pipe.close()
        self._process.wait()
        self._errors.close()

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self.close()

    def reason(self) -> str:
        """Why it ended before it answered."""
        if self._process.wait() == -signal.SIGXCPU:
            return f"it does not end in {LIMIT_SECONDS} s"
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").splitlines()
        said = [line for line in lines if "LLVM ERROR" in line] or lines[-1:]
        return said[0].removeprefix("LLVM ERROR: ") if said else "its process ended"


_lock = threading.Lock()
_process: _Process | None = None


def _ask(ir_text: str, target: Target, *, as_text: bool) -> bytes | str:
    global _process
    with _lock:
        # After a fork, the pipe is still the parent's.
        if _process is None or _process.owner != os.getpid():
            _process = _Process()
        try:
            _process.pipe.send((as_text, ir_text, target, LIMIT_SECONDS))
            answer: bytes | str | CompilerError = _process.pipe.recv()
        except (EOFError, OSError):
            failed, _process = _process, None
            reason = failed.reason()
            failed.close()
            raise CompilerError(
                f"LLVM cannot compile the code for target '{target.name}': {reason}"
            ) from None
        except BaseException:
            # Interrupted: the pending answer must not be taken for that of the next question.
            interrupted, _process = _process, None
            interrupted.kill()
            raise
    if isinstance(answer, CompilerError):
        raise answer
    return answer


@atexit.register
def close() -> None:
    """End the process; the next code gets a new one."""
    global _process
    with _lock:
        process, _process = _process, None
    if process is not None and process.owner == os.getpid():
        process.close()
