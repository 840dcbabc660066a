"""Runs the service as local processes with separate logs, which tests may kill."""

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
    """Find a free TCP port on the loopback interface."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(condition: Callable[[], bool], what: str, seconds: float = PATIENCE_SECONDS) -> None:
    """Wait until a condition holds.

    Raises AssertionError with `what` in its message after `seconds`.
    """
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, f"{what}: it never happened"
        time.sleep(0.002)


def answers(url: str) -> bool:
    """Whether the service at `url` responds and can use its database."""
    try:
        with Client(url, "", timeout_seconds=10.0) as client:
            client.health()
    except ClientError:
        return False
    return True


class Fleet:
    """Named processes, each in its own session, which log to files in a folder.

    Args:
        folder: the folder of the logs.
        commands: arguments of Python by process name, in the order in which they are started.
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
        """Start all processes that are not running.

        Returns the names of those that ended unexpectedly, without those that `kill` ended.
        """
        ended = [name for name, process in self._running.items() if process.poll() is not None]
        for name in ended:
            del self._running[name]
        for name in self._commands:
            if name not in self._running:
                self.start(name)
        return ended

    def kill(self, name: str) -> None:
        """Kill one process by SIGKILL without its children, as an out-of-memory killer does."""
        process = self._running.pop(name)
        assert process.poll() is None, f"{name} ended by itself: {self.log(name).read_text()}"
        process.send_signal(signal.SIGKILL)
        process.wait()

    def pid(self, name: str) -> int:
        """Process id of the running process with this name."""
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
        """How often a worker finished each request, by request id, according to its log."""
        log = self.log(worker)
        return Counter(re.findall(r"measured (\w+)", log.read_text() if log.exists() else ""))
