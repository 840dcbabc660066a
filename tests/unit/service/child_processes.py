"""Children that work for this process within limits (`compiler.process.bounded`)."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.processes import children_of, processor_seconds, text_of
from tilewright.compiler.process import bounded
from tilewright.compiler.process.bounded import BoundedChild, NoAnswer, Stop
from tilewright.compiler.process.child import ChildProcess

LOADED_SECONDS = 0.8
"""Processor time after which a child has loaded the compiler and works on its question."""


def bounded_children() -> set[int]:
    """The ids of the children that live."""
    return {
        child
        for child in children_of(os.getpid())
        if bounded.__name__ in text_of(Path(f"/proc/{child}/cmdline"))
    }


def works(child: int) -> bool:
    """Whether a child has loaded the compiler, and so is in the middle of its work."""
    return processor_seconds(child) >= LOADED_SECONDS


def halt_first(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Halt the first child that begins to work within this limit, in seconds.

    It then exceeds the limit without processor time.
    """
    halted: list[int] = []
    wait = BoundedChild._wait

    def halting(
        self: BoundedChild, child: ChildProcess, left: float, stop: Stop | None
    ) -> NoAnswer | None:
        if left == seconds and not halted:
            halted.append(child.pid)
            os.kill(child.pid, signal.SIGSTOP)
        return wait(self, child, left, stop)

    monkeypatch.setattr(BoundedChild, "_wait", halting)
