"""A child process that answers questions, for work that may kill who does it.

It is no `multiprocessing` process: those may not be started from a daemon, and run the program's
main module again.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from multiprocessing.connection import Connection, Pipe
from typing import IO


class ChildProcess:
    """A Python process, and this end of a pipe to it.

    Attributes:
        pipe: sends it picklable values and receives some. It ends when the pipe is closed.
        owner: the process that started it; after a fork, the pipe is still the parent's.
    """

    def __init__(self, module: str, function: str) -> None:
        """Start a process that calls a function of a module with its end of the pipe."""
        self.owner = os.getpid()
        self.pipe: Connection
        self.pipe, theirs = Pipe()
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as it is
        command = (
            "import sys; sys.path[:] = sys.argv[2:]; "
            "from multiprocessing.connection import Connection; "
            f"from {module} import {function}; "
            f"{function}(Connection(int(sys.argv[1])))"
        )
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", command, str(theirs.fileno()), *sys.path],
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
