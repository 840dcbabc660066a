"""Checks of the memory that is available on this machine.

Linux grants more memory than exists, and kills a process that uses too much. Therefore, code that
needs much memory checks here first, and raises an error instead.
"""

from __future__ import annotations

from pathlib import Path

from tilewright.compiler.errors import OutOfMemoryError

SMALL_BYTES = 1 << 28
"""Size in bytes below which a request for memory is not checked."""


def check_memory(needed_bytes: int, what: str, root: Path = Path("/")) -> None:
    """Check that `needed_bytes` of memory are available.

    Requests below `SMALL_BYTES` pass without a check, and all requests pass if the available memory
    is unknown. `what` states the purpose in the error message, such as "to read the model". `root`
    is the folder that contains `proc` and `sys`; only tests pass another one.

    Raises:
        OutOfMemoryError: if less memory is available.
    """
    if needed_bytes < SMALL_BYTES:
        return
    available = available_bytes(root)
    if available is not None and needed_bytes > available:
        raise OutOfMemoryError(
            f"there is not enough memory {what}: {needed_bytes} bytes are needed, "
            f"{available} are available"
        )


def available_bytes(root: Path = Path("/")) -> int | None:
    """Return the number of bytes that this process can use without swapping.

    The memory limit of a container is taken into account. The result is None if the number is
    unknown. `root` is the folder that contains `proc` and `sys`; only tests pass another one.
    """
    found = [_of_machine(root / "proc/meminfo"), _of_container(root / "sys/fs/cgroup")]
    return min((size for size in found if size is not None), default=None)


def total_bytes(root: Path = Path("/")) -> int | None:
    """Return the memory of this machine in bytes, or the container's memory limit if that is less.

    The result is None if both are unknown. `root` is the folder that contains `proc` and `sys`;
    only tests pass another one.
    """
    limit = _read(root / "sys/fs/cgroup/memory.max").strip()
    found = [
        _of_machine(root / "proc/meminfo", "MemTotal"),
        int(limit) if limit.isdigit() else None,
    ]
    return min((size for size in found if size is not None), default=None)


def _of_machine(path: Path, field: str = "MemAvailable") -> int | None:
    for line in _read(path).splitlines():
        name, _, rest = line.partition(":")
        if name == field:
            return int(rest.split()[0]) * 1024
    return None


def _of_container(folder: Path) -> int | None:
    """Return the free bytes within the memory limit of a container (control groups, version 2).

    File caches that the kernel can reclaim count as free. The result is None if there is no limit.
    """
    limit, used = _read(folder / "memory.max").strip(), _read(folder / "memory.current").strip()
    if not limit.isdigit() or not used.isdigit():
        return None
    counts = dict(line.split() for line in _read(folder / "memory.stat").splitlines())
    return int(limit) - int(used) + int(counts.get("inactive_file", 0))


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
