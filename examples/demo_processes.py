"""The processes of the demo: they write logs to a folder, and are stopped when the demo ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import TracebackType


class ProcessDied(Exception):
    """A process of the demo ended unexpectedly; the message names its log."""


class Processes:
    """A context that starts processes, and stops all of them on exit, the most recent first."""

    def __init__(self, log_folder: Path, environment: Mapping[str, str]) -> None:
        self.log_folder = log_folder
        self._environment = {**os.environ, **environment}
        self._running: list[tuple[str, subprocess.Popen[bytes]]] = []
        log_folder.mkdir(parents=True, exist_ok=True)

    def start(self, name: str, command: Sequence[str]) -> None:
        """Start `command`. Its output is written to `NAME.log` in the log folder."""
        with (self.log_folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                # in a new session, Ctrl-C only reaches the demo, which stops processes in order
                start_new_session=True,
            )
        self._running.append((name, process))

    def check(self) -> None:
        """Raise ProcessDied if one of the processes has ended."""
        for name, process in self._running:
            if process.poll() is not None:
                log = self.log_folder / f"{name}.log"
                tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
                raise ProcessDied(
                    f"{name} ended with status {process.returncode}; the end of {log}:\n{tail}"
                )

    def stop(self, keep: Collection[str] = ()) -> None:
        """Stop all processes except those named in `keep`, the most recent first.

        Each process gets SIGTERM and, if it has not ended after five seconds, SIGKILL.
        """
        kept = [entry for entry in self._running if entry[0] in keep]
        ending = [entry for entry in self._running if entry[0] not in keep]
        self._running = kept
        while ending:
            _, process = ending.pop()
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def __enter__(self) -> Processes:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def tilewright(*arguments: str) -> list[str]:
    """Return the command that runs `tilewright` of this Python environment with these arguments."""
    return [str(Path(sys.executable).with_name("tilewright")), *arguments]


def free_port() -> int:
    """Return an unused TCP port of the loopback interface."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until_answering(url: str, processes: Processes, seconds: float = 30.0) -> None:
    """Wait until a GET request for `url` returns the status 200.

    Raises:
        ProcessDied: if a process of the demo ends.
        TimeoutError: if there is no such response within `seconds`.
    """
    deadline = time.monotonic() + seconds
    while True:
        processes.check()
        try:
            with urllib.request.urlopen(url, timeout=2) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            pass  # not listening yet
        if time.monotonic() > deadline:
            raise TimeoutError(f"{url} did not answer within {seconds:.0f} s")
        time.sleep(0.1)
