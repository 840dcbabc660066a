"""The harness that runs candidates on this machine."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tilewright.compiler.runtime.memory import total_bytes
from tilewright.tuner.measure.harness.build import harness_folder, local_harness
from tilewright.tuner.measure.harness.command import DeviceCommand
from tilewright.tuner.measure.harness.driver import Harness, HarnessLimits, Log
from tilewright.tuner.measure.speed import Speed

SPARE_BYTES = 1 << 30
"""Number of bytes on the disk that the blob cache leaves free."""

LEAST_CACHE_BYTES = 1 << 30
"""Minimum size of the blob cache in bytes, which applies even on an almost full disk."""

HERE = "{}"
"""Command of the harness on this machine. The placeholder `{}` stands for this machine's
harness."""


@contextmanager
def harness_here(log: Log, device: Mapping[str, Any] | None = None) -> Iterator[Harness]:
    """Provide a harness that runs candidates on all cores of this machine.

    At exit, the harness is ended, and its blobs are deleted.

    Args:
        log: called with each log line.
        device: the device's properties to store in every measurement; None to let the harness
            detect them.

    Raises:
        HarnessError: if this machine has no harness; the message names the remedy.
    """
    built = harness_folder(os.environ)
    local_harness(built)
    blobs = built / "local"
    blobs.mkdir(exist_ok=True)
    sweep(blobs)
    command = DeviceCommand(HERE, built, log, {}, blobs)
    limits = HarnessLimits(cache_room(blobs), all_cores=True)
    harness = Harness(command, limits, log, device=device)
    try:
        yield harness
    finally:
        harness.close()
        sweep(blobs)


def cache_room(folder: Path) -> int:
    """Return how many bytes a blob cache in `folder` may occupy.

    This is the free disk space less SPARE_BYTES, but at most the size of this machine's memory,
    because all blobs of a run must fit into memory. It is at least LEAST_CACHE_BYTES.
    """
    free = free_bytes(folder) - SPARE_BYTES
    memory = total_bytes()
    return max(free if memory is None else min(free, memory), LEAST_CACHE_BYTES)


def free_bytes(folder: Path) -> int:
    """Return the free space in bytes that this user may fill on the folder's file system."""
    return shutil.disk_usage(folder).free


def sweep(folder: Path) -> None:
    """Delete the blobs of harnesses that are no longer running, for example after a kill.

    Each harness stores its blobs in a numbered subfolder of `folder`, and holds a lock on the file
    `lock` in it while it runs (`cache.c`).
    """
    for lock in folder.glob("*/lock"):
        with suppress(OSError), lock.open("rb") as held:  # it may be in use
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for blob in (*lock.parent.glob("blobs/*"), lock.with_name("arriving")):
                blob.unlink(missing_ok=True)


def local_readings(count: int) -> Sequence[Speed]:
    """Measure this machine's speed `count` times, under the same conditions as candidates.

    Raises:
        HarnessError, OSError, RuntimeError: if the harness is missing, or cannot run a sandbox.
    """
    with harness_here(_ignored) as harness:
        return harness.readings(count)


def _ignored(_: str) -> None:
    """Discard a log line."""
