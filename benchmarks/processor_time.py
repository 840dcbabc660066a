"""Processor time of a simulation, by what took it.

On a machine that others use, too, trials a second say how much of it was left. What a trial takes
of a processor says more: so many of them fit into a second of one that is ours alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from multiprocessing import active_children
from pathlib import Path

import psutil

SELF = "workers"
"""What this process simulates."""

DATABASE = "database"


def processor_seconds(folder: Path) -> Mapping[str, float]:
    """Of this process, of its children by their names, and of the PostgreSQL over a folder."""
    found = {SELF: _seconds([psutil.Process()]), DATABASE: _seconds(_database(folder))}
    for child in active_children():
        assert child.pid is not None
        process = psutil.Process(child.pid)
        taken = _seconds([process, *process.children(recursive=True)])
        found[child.name] = found.get(child.name, 0.0) + taken
    return found


def _database(folder: Path) -> Iterable[psutil.Process]:
    for process in psutil.process_iter(["name", "cmdline"]):
        named = process.info["name"] == "postgres"
        if named and any(str(folder) in part for part in process.info["cmdline"] or ()):
            yield from (process, *process.children(recursive=True))


def _seconds(processes: Iterable[psutil.Process]) -> float:
    total = 0.0
    for process in processes:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:  # it ended meanwhile
            continue
        total += times.user + times.system
    return total
