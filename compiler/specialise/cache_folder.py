"""What was made once on a machine, kept in a folder that its processes share.

An entry is a folder named by the digest of what it was made from. It appears complete or not at
all, so that readers need no lock; of two processes that make the same entry, one keeps it. The
entries used longest ago go first, when all together are larger than the limit.
"""

from __future__ import annotations

import ctypes
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

_KEY = re.compile(r"[0-9a-f]{64}")
_REST = re.compile(r"\.(new|old)\.[0-9a-f]{16}")
_HERE, _EXCHANGE = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of Linux
_ABANDONED_SECONDS = 86_400.0
"""Half-made entries of processes that died are removed when they are so old."""


class KeptFolder:
    """A bounded folder of entries.

    Entries may hold machine code. A folder that others may write, or that is another user's, is
    not used. Neither is such an entry: it was put there while others could write into the folder.
    Where the system does not say whose a folder is (Windows), none is used.

    Args:
        path: the folder, made when the first entry is kept.
        limit_bytes: of all entries together, as their files' sizes count.
        clock: gives seconds since 1970.
    """

    def __init__(
        self, path: str | Path, limit_bytes: int, clock: Callable[[], float] = time.time
    ) -> None:
        self.path = Path(path)
        self.limit_bytes = limit_bytes
        self._clock = clock

    @property
    def is_trusted(self) -> bool:
        """Whether the folder is there, and nobody else may have written into it."""
        try:
            status = self.path.stat()
        except OSError:
            return False
        return _is_own(status)

    def find(self, key: str) -> Path | None:
        """The folder of an entry, which counts as used now; None if it is not kept, or the folder
        cannot be trusted.

        Another process may remove it at any time. What is mapped or open stays readable.
        """
        entry = self._entry(key)
        try:
            if not self.is_trusted:
                return None
            status = entry.lstat()
            if not (stat.S_ISDIR(status.st_mode) and _is_own(status)):
                self._drop(entry)
                return None
            now = self._clock()
            os.utime(entry, (now, now))
        except OSError:
            return None
        return entry

    def keep(
        self, key: str, make: Callable[[Path], object], *, replacing: bool = False
    ) -> Path | None:
        """Keep what `make` writes into the folder that it is given; the entry that is there then.

        An entry that is there already stays, or is replaced: then it is there until what `make`
        wrote is complete, and stays if that fails.

        None if the folder cannot be trusted, the entry alone is larger than the limit, or it cannot
        be written: a full disk must not stop who only wants the result. What `make` raises comes
        through, but for OSError.
        """
        entry = self._entry(key)
        staging = self.path / f".new.{secrets.token_hex(8)}"
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self.is_trusted:
                return None
            staging.mkdir(mode=0o700)
            make(staging)
            size = _bytes_below(staging)
            if size > self.limit_bytes:
                return None
            self._shrink(self.limit_bytes - size, entry if replacing else None)
            now = self._clock()
            os.utime(staging, (now, now))
            self._put(staging, entry, replacing)
            return self.find(key)
        except OSError:
            return None
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    def remove(self, key: str) -> None:
        """Remove an entry, if it is there: one that proved to be damaged."""
        self._drop(self._entry(key))

    def entries(self) -> Iterator[tuple[float, int, Path]]:
        """Of each entry when it was used last, in seconds since 1970, its bytes and its folder."""
        with suppress(OSError):
            for entry in os.scandir(self.path):
                if _KEY.fullmatch(entry.name):
                    with suppress(OSError):  # it was removed meanwhile
                        yield entry.stat().st_mtime, _bytes_below(Path(entry.path)), Path(entry)

    def _entry(self, key: str) -> Path:
        if not _KEY.fullmatch(key):
            raise ValueError(f"'{key}' is no SHA-256 in hexadecimal digits")
        return self.path / key

    def _put(self, staging: Path, entry: Path, replacing: bool) -> None:
        """Give a complete folder the name of an entry."""
        with suppress(OSError):  # another process kept the same meanwhile
            staging.rename(entry)
            return
        if not replacing:
            return
        if _exchange(staging, entry):
            self._drop(staging)  # what was replaced
            return
        self._drop(entry)  # a system that cannot exchange two folders: for a moment there is none
        with suppress(OSError):
            staging.rename(entry)

    def _shrink(self, most: int, replaced: Path | None) -> None:
        """Remove the entries used longest ago until no more than so many bytes are left, and what
        processes left behind that died while they wrote. The entry that is replaced takes none."""
        for entry in os.scandir(self.path):
            if _REST.fullmatch(entry.name):
                with suppress(OSError):
                    if self._clock() - entry.stat().st_mtime > _ABANDONED_SECONDS:
                        shutil.rmtree(entry.path, ignore_errors=True)
        kept = sorted(entry for entry in self.entries() if entry[2] != replaced)
        total = sum(size for _, size, _ in kept)
        for _, size, path in kept:
            if total <= most:
                return
            self._drop(path)
            total -= size

    def _drop(self, entry: Path) -> None:
        """Take an entry away as a whole: nobody finds half of it."""
        aside = self.path / f".old.{secrets.token_hex(8)}"
        with suppress(OSError):  # another process was first
            entry.rename(aside)
        with suppress(OSError):  # a file, or a link: nothing that was kept
            aside.unlink()
        shutil.rmtree(aside, ignore_errors=True)


def _is_own(status: os.stat_result) -> bool:
    """Whether it is this user's, and nobody else may write into it.

    Windows tells neither by the status of a file: there nothing is known to be one's own.
    """
    if not hasattr(os, "getuid"):
        return False
    return status.st_uid == os.getuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _exchange(one: Path, other: Path) -> bool:
    """Let two folders have each other's name at once; false if the system cannot."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    if rename is None:
        return False
    names = os.fsencode(one.absolute()), os.fsencode(other.absolute())
    return bool(rename(_HERE, names[0], _HERE, names[1], _EXCHANGE) == 0)


def _bytes_below(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())
