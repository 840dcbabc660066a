"""Processes of Linux, as `/proc` shows them: children, processor time, and whether one ended."""

from __future__ import annotations

import os
from pathlib import Path

ENDLESS_SECONDS = 0.3
"""Processor time after which a child of the harness is in an endless loop. The other work of these
children, such as a speed probe, takes less."""


def children_of(process: int) -> set[int]:
    """The ids of the processes that a process started, from any of its threads."""
    lists = Path(f"/proc/{process}/task").glob("*/children")
    return {int(child) for each in lists for child in text_of(each).split()}


def processor_seconds(process: int) -> float:
    """The processor time that a process has used; 0 if it does not exist."""
    fields = _fields(process)
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def ended(process: int) -> bool:
    """Whether a process has ended, including one whose exit status was not collected."""
    return (_fields(process) or ["Z"])[0] == "Z"


def hangs_below(process: int) -> bool:
    """Whether a child of a harness is in an endless loop.

    The harness is a child of `process`, as that of a worker or of a `LocalRunner` is.
    """
    return any(
        processor_seconds(child) >= ENDLESS_SECONDS
        for harness in children_of(process)
        for child in children_of(harness)
    )


def text_of(file: Path) -> str:
    """The text of a file of `/proc`, which is empty if its process or thread has ended."""
    try:
        return file.read_text()
    except OSError:
        return ""


def _fields(process: int) -> list[str]:
    """The fields of `/proc/PID/stat` from the state on; none if the process does not exist."""
    return text_of(Path(f"/proc/{process}/stat")).rpartition(")")[2].split()
