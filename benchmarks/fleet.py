"""The service as processes of this machine, that may be killed: each has a log of its own."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tilewright.service.client import Client, ClientError

ROOT = Path(__file__).parents[1]
PATIENCE_SECONDS = 180.0


def free_port() -> int:
    """A free port of the loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(condition: Callable[[], bool], what: str, seconds: float = PATIENCE_SECONDS) -> None:
    """Wait for something. Raises AssertionError if it does not come."""
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, f"{what}: it never happened"
        time.sleep(0.002)


def answers(url: str) -> bool:
    """Whether a service and its database work."""
    try:
        with Client(url, "", timeout_seconds=10.0) as client:
            client.health()
    except ClientError:
        return False
    return True


class Fleet:
    """Processes by name, each in a session of its own, with their logs in a folder.

    Args:
        folder: of the logs.
        commands: arguments of Python, by name, in the order of the starts.
        environment: variables added to those of this process.
    """

    def __init__(
        self, folder: Path, commands: Mapping[str, Sequence[str]], environment: Mapping[str, str]
    ) -> None:
        self.folder = folder
        self._commands = commands
        paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        self._environment = {
            **os.environ,
            "PYTHONPATH": paths,
            "PYTHONUNBUFFERED": "1",
            **environment,
        }
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def start(self, name: str) -> None:
        with self.log(name).open("ab") as log:
            self._running[name] = subprocess.Popen(
                [sys.executable, *self._commands[name]],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,
            )

    def start_missing(self) -> list[str]:
        """Start processes that were killed or ended unexpectedly; returns the names of the
        latter."""
        ended = [name for name, process in self._running.items() if process.poll() is not None]
        for name in ended:
            del self._running[name]
        for name in self._commands:
            if name not in self._running:
                self.start(name)
        return ended

    def kill(self, name: str) -> None:
        """The process alone, as a kernel short of memory would: its children must cope."""
        process = self._running.pop(name)
        assert process.poll() is None, f"{name} ended by itself: {self.log(name).read_text()}"
        process.send_signal(signal.SIGKILL)
        process.wait()

    def pid(self, name: str) -> int:
        """The process of this name, which runs."""
        return self._running[name].pid

    def runs(self, name: str) -> bool:
        return name in self._running and self._running[name].poll() is None

    def stop(self) -> None:
        for process in self._running.values():
            process.terminate()
        for process in self._running.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._running.clear()

    def measured(self, worker: str) -> Counter[str]:
        """How often a worker finished each request: it logs each that lies in its spool."""
        log = self.log(worker)
        return Counter(re.findall(r"measured (\w+)", log.read_text() if log.exists() else ""))
