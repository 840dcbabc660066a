"""The harness for this machine; its blobs are removed when it ends."""

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
"""Free bytes of the disk that blobs never take."""

LEAST_CACHE_BYTES = 1 << 30
"""The size of the cache of blobs on a disk that is almost full."""

HERE = "{}"
"""The command that starts the harness of this machine."""


@contextmanager
def harness_here(log: Log, device: Mapping[str, Any] | None = None) -> Iterator[Harness]:
    """Start a harness on this machine whose candidates may use all cores, and yield it.

    Args:
        log: receives log lines for the user.
        device: properties stored in every measurement; None to let the harness detect them.

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
    """Return the size in bytes for a blob cache: the free disk space, at most this machine's
    memory.

    A run never needs more blobs than fit into memory.
    """
    free = free_bytes(folder) - SPARE_BYTES
    memory = total_bytes()
    return max(free if memory is None else min(free, memory), LEAST_CACHE_BYTES)


def free_bytes(folder: Path) -> int:
    """Return the number of free bytes on the folder's file system that this user may fill."""
    return shutil.disk_usage(folder).free


def sweep(folder: Path) -> None:
    """Remove the blobs of harnesses that are no longer running, for example after a kill.

    Each harness locks the file `lock` of its numbered folder while it runs (`cache.c`).
    """
    for lock in folder.glob("*/lock"):
        with suppress(OSError), lock.open("rb") as held:  # it may be in use
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for blob in (*lock.parent.glob("blobs/*"), lock.with_name("arriving")):
                blob.unlink(missing_ok=True)


def local_readings(count: int) -> Sequence[Speed]:
    """Time the reference kernel `count` times on this machine, under the same conditions as
    candidates.

    Raises:
        HarnessError, OSError, RuntimeError: if the harness is missing, or cannot run a sandbox.
    """
    with harness_here(_ignored) as harness:
        return harness.readings(count)


def _ignored(_: str) -> None:
    """Discard log lines."""
