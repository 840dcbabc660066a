"""A child process that answers questions, for work that may kill who does it.

It is no `multiprocessing` process: those may not be started from a daemon, and run the program's
main module again.
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
"""What Linux calls PR_SET_PDEATHSIG."""

_WITH_PARENT = (
    f"import ctypes; ctypes.CDLL(None).prctl({PARENT_DIES}, {int(signal.SIGKILL)}); "
    "os.getppid() == int(sys.argv[2]) or os._exit(1); "
    if sys.platform == "linux"
    else ""
)
"""The first words of a child that ends with its parent: to load the compiler takes seconds on a
busy machine, in which its parent may end, and so may it before Linux was told."""


class ChildProcess:
    """A Python process, and this end of a pipe to it.

    Attributes:
        pipe: sends it picklable values and receives some. It ends when the pipe is closed.
        owner: the process that started it; after a fork, the pipe is still the parent's.
    """

    def __init__(self, module: str, function: str, *, with_parent: bool = False) -> None:
        """Start a process that calls a function of a module with its end of the pipe.

        Args:
            module, function: what it calls.
            with_parent: whether Linux ends it with the thread that starts it. Elsewhere it ends
                when it reads from the pipe.
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
        """Let it end, and wait for that."""
        self.pipe.close()
        self._process.wait()
        self._errors.close()

    def kill(self) -> None:
        """End it at once."""
        self.stop()
        self.close()

    def stop(self) -> None:
        """End it at once, from any thread: the one that reads from the pipe finds its end."""
        self._process.kill()

    def wait(self) -> int:
        """Its exit status; negative is the signal that ended it."""
        return self._process.wait()

    def last_words(self) -> list[str]:
        """What it has written to standard error, by lines."""
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace").splitlines()
