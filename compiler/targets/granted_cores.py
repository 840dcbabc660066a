"""The number of cores that a process may keep busy, within the CPU limit of its container."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from tilewright.compiler.targets.core_kinds import read_text
from tilewright.compiler.targets.device import available_cores


def granted_cores(root: Path = Path("/")) -> int:
    """Return the number of cores that this process may keep busy, at least 1.

    This is the number of cores on which the process may run, but at most the CPU quota of its Linux
    control groups (version 1 or 2), converted to cores and rounded down. `root` is the folder that
    contains `proc` and `sys`.
    """
    granted = float(len(available_cores()))
    for group in _control_groups(root):
        for words in (
            read_text(group / "cpu.max").split(),
            [read_text(group / f"cpu.cfs_{each}_us").strip() for each in ("quota", "period")],
        ):
            if len(words) == 2 and all(_is_number(word) for word in words):
                granted = min(granted, int(words[0]) / max(1, int(words[1])))
    return max(1, int(granted))


def _control_groups(root: Path) -> Sequence[Path]:
    """The folders of the control groups that limit this process: its own group and the enclosing
    ones."""
    found: list[Path] = []
    for line in read_text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, name = rest.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        inner = PurePosixPath("/", *(part for part in PurePosixPath(name).parts if part != ".."))
        mount = root / "sys/fs/cgroup" / controllers
        found += [mount / each.relative_to("/") for each in (inner, *inner.parents)]
    return found


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) < 19
