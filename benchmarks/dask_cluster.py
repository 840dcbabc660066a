"""Local Dask clusters for tests and benchmarks, with scheduler and workers as processes.

It also has a slow build function for the workers.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tilewright.tuner.measure.builder import compile_with_compiler

PATIENCE_SECONDS = 120.0
ROOT = Path(__file__).parents[1]


def until(true: Callable[[], bool], what: str) -> None:
    """Wait until the condition is true.

    Raises AssertionError with `what` in its message after 120 s.
    """
    ends = time.monotonic() + PATIENCE_SECONDS
    while not true():
        assert time.monotonic() < ends, f"no {what}"
        time.sleep(0.02)


@dataclass
class Cluster:
    """A Dask scheduler and its workers as child processes, whose logs go to `folder`."""

    folder: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    port: int = 0

    @property
    def address(self) -> str:
        return f"tcp://127.0.0.1:{self.port}"

    def scheduler(self) -> subprocess.Popen[bytes]:
        """Start the scheduler on a free port; return its process when it accepts connections."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        process = self._start("scheduler", "--host", "127.0.0.1", "--port", str(self.port))
        until(self._answers, "scheduler")
        return process

    def worker(self) -> subprocess.Popen[bytes]:
        """Start a worker with one thread that connects to the scheduler, and return its process."""
        return self._start("worker", self.address, "--nthreads", "1", "--no-nanny")

    def close(self) -> None:
        """Kill all processes of the cluster."""
        for process in self.processes:
            process.kill()
            process.wait()

    def _answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), 1.0).close()
        except OSError:
            return False
        return True

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "dask", *arguments, "--no-dashboard"]
        paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        with (self.folder / f"dask-{len(self.processes)}.log").open("wb") as log:
            process = subprocess.Popen(
                command,
                env={**os.environ, "PYTHONPATH": paths},
                cwd=self.folder,
                stdout=log,
                stderr=log,
            )
        self.processes.append(process)
        return process


def stretched(text: str, schedule: Mapping[str, Any], mode: Mapping[str, Any]) -> Mapping[str, Any]:
    """Compile a candidate after a sleep of one second, as on a slower machine.

    `text` is the workload's graph as text. The function is in a module of its own, because Dask
    workers import functions by module name. They cannot import functions of the program that was
    started (`__main__`).
    """
    time.sleep(1.0)
    return compile_with_compiler(text, schedule, mode)
