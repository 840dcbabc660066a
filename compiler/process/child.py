"""A child process that serves requests over a pipe, for work that may crash or exhaust memory.

`multiprocessing.Process` is not used, because a daemonic process cannot start one, and because it
would import the program's main module again in the child.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from multiprocessing.connection import Connection, Pipe
from typing import IO

PARENT_DIES = 1
"""Linux's PR_SET_PDEATHSIG: the option of `prctl` that sends a signal to a process when its parent
dies."""

_WITH_PARENT = (
    f"import ctypes; ctypes.CDLL(None).prctl({PARENT_DIES}, {int(signal.SIGKILL)}); "
    "os.getppid() == int(sys.argv[2]) or os._exit(1); "
    if sys.platform == "linux"
    else ""
)
"""First statements of a child's program, which make the child end with its parent. Loading the
compiler takes seconds on a busy machine, and the parent may end meanwhile. If the parent ended
before the call of `prctl`, the last statement ends the child."""


class ChildProcess:
    """A Python child process, and this process's end of a pipe to it.

    Attributes:
        pipe: sends and receives picklable values. The child's function must return when the pipe is
            closed.
        owner: id of the process that started the child. After a fork, only this process may use the
            pipe.
    """

    def __init__(self, module: str, function: str, *, with_parent: bool = False) -> None:
        """Start a process that calls `module.function` with the child's end of the pipe.

        Args:
            module, function: names of the module and of its function.
            with_parent: whether Linux kills the child when the thread that starts it ends. On other
                systems, the child ends when it reads from the closed pipe.
        """
        self.owner = os.getpid()
        self.pipe: Connection
        self.pipe, theirs = Pipe()
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as it is
        command = (
            f"import os, sys; {_WITH_PARENT if with_parent else ''}sys.path[:] = sys.argv[3:]; "
            "from multiprocessing.connection import Connection; "
            f"from {module} import {function}; "
            f"{function}(Connection(int(sys.argv[1])))"
        )
        with theirs:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-c",
                    command,
                    str(theirs.fileno()),
                    str(self.owner),
                    *sys.path,
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                pass_fds=[theirs.fileno()],
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        """Close the pipe and wait until the child ends."""
        self.pipe.close()
        self._process.wait()
        self._errors.close()

    def kill(self) -> None:
        """Kill the child, and release the pipe and the process handle."""
        self.stop()
        self.close()

    def stop(self) -> None:
        """Kill the child; any thread may call this.

        A thread that reads from the pipe then gets EOFError.
        """
        self._process.kill()

    def wait(self) -> int:
        """Wait for the child to end and return its exit status: -N if signal N ended it."""
        return self._process.wait()

    def error_lines(self) -> list[str]:
        """Return the lines that the child has written to standard error."""
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace").splitlines()
