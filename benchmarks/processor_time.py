"""Processor time of a simulation, by process.

On a shared machine, trials per second depend on the share of the CPU that was available. Processor
time per trial is the better measure: its inverse is the rate on an idle processor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from multiprocessing import active_children
from pathlib import Path

import psutil

SELF = "workers"
"""Name of this process in the result. It runs the simulated workers."""

DATABASE = "database"


def processor_seconds(folder: Path) -> Mapping[str, float]:
    """CPU seconds by process name: this process, each child with its descendants, and the
    PostgreSQL server in `folder`.
    """
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
