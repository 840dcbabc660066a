"""Children that work for this process within limits (`compiler.process.bounded`)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from tilewright.compiler.process import bounded

LOADED_SECONDS = 0.8
"""Processor time after which a child has loaded the compiler and works on its question."""


def bounded_children() -> set[int]:
    """The ids of the children that live."""
    return {child for child in _children() if bounded.__name__ in _text(f"/proc/{child}/cmdline")}


def works(child: int) -> bool:
    """Whether a child has loaded the compiler, and so is in the middle of its work."""
    fields = _text(f"/proc/{child}/stat").rpartition(")")[2].split()
    ticks = sum(map(int, fields[11:13]))
    return ticks >= LOADED_SECONDS * os.sysconf("SC_CLK_TCK")


def _children() -> Iterator[int]:
    for thread in Path("/proc/self/task").iterdir():
        yield from map(int, _text(f"{thread}/children").split())


def _text(path: str) -> str:
    """The text of a file of /proc, which is empty if its process or thread has ended."""
    try:
        return Path(path).read_text()
    except OSError:
        return ""
