"""Memory of processes, read from /proc."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


class MemoryWatch:
    """Context manager that samples the memory of a process and its descendants in a thread.

    Args:
        process: returns the process id, or None while the process is not running.
        every_seconds: the interval between samples.
    """

    def __init__(self, process: Callable[[], int | None], every_seconds: float) -> None:
        self._process = process
        self._every_seconds = every_seconds
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._own = self._all = 0
        self._thread = threading.Thread(target=self._look, name="memory", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()

    def peaks(self) -> tuple[int, int]:
        """The peak memory in bytes since the previous call.

        The first number is for the process alone, and the second for the whole process tree.
        """
        with self._lock:
            peaks, self._own, self._all = (self._own, self._all), 0, 0
        return peaks

    def _look(self) -> None:
        while not self._over.wait(self._every_seconds):
            root = self._process()
            if root is None:
                continue
            own, together = resident_bytes(root), sum(map(resident_bytes, tree(root)))
            with self._lock:
                self._own, self._all = max(self._own, own), max(self._all, together)


def tree(root: int) -> Iterator[int]:
    """Yield a process id and the ids of all its living descendants."""
    yield root
    try:
        children = [
            child
            for path in Path(f"/proc/{root}/task").glob("*/children")
            for child in path.read_text().split()
        ]
    except OSError:
        return  # it ended meanwhile
    for child in children:
        yield from tree(int(child))


def resident_bytes(process: int) -> int:
    """Resident memory of a process in bytes, including shared pages; 0 if the process has ended."""
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * PAGE
    except (OSError, IndexError):
        return 0
