"""The harness of this machine, in a folder of its own that goes with it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tilewright.tuner.measure.harness.build import harness_folder, local_harness
from tilewright.tuner.measure.harness.command import DeviceCommand
from tilewright.tuner.measure.harness.driver import Harness, HarnessLimits, Log
from tilewright.tuner.measure.speed import Speed

CACHE_BYTES = 16 << 30
"""Most of the blobs that a harness keeps while it runs."""

HERE = "{}"
"""The command that starts the harness of this machine."""


@contextmanager
def harness_here(log: Log, device: Mapping[str, Any] | None = None) -> Iterator[Harness]:
    """A harness whose candidates run on all cores.

    Args:
        log: receives log lines for the user.
        device: facts that go into every measurement; None for the facts that the harness finds.

    Raises:
        HarnessError: if this machine has no harness; the message names the remedy.
    """
    built = harness_folder(os.environ)
    local_harness(built)
    with tempfile.TemporaryDirectory(prefix="tilewright-runner-", ignore_cleanup_errors=True) as at:
        command = DeviceCommand(HERE, built, log, {}, Path(at))
        harness = Harness(command, HarnessLimits(CACHE_BYTES, all_cores=True), log, device=device)
        try:
            yield harness
        finally:
            harness.close()


def local_readings(count: int) -> Sequence[Speed]:
    """Times of the reference kernel on this machine, where candidates run.

    Raises:
        HarnessError, OSError, RuntimeError: if the harness is missing, or runs no sandbox.
    """
    with harness_here(_ignored) as harness:
        return harness.readings(count)


def _ignored(_: str) -> None:
    """Discard log lines."""
