"""A cache folder that the processes of a machine share.

An entry is a folder, named by a digest of everything that determines its content. An entry appears
complete or not at all, so that readers need no lock. If two processes make the same entry, one copy
is kept. The least recently used entries are removed when the total size exceeds the limit.
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
_HERE, _EXCHANGE = -100, 2  # AT_FDCWD and RENAME_EXCHANGE on Linux
_ABANDONED_SECONDS = 86_400.0
"""Age in seconds at which the incomplete cache entry of a dead process is removed."""


class CacheFolder:
    """A cache folder of bounded size.

    Entries may hold machine code. The folder, and each entry in it, is used only if it belongs to
    this user and no other user may write to it. Where the system does not report ownership
    (Windows), no folder is used.

    Args:
        path: the folder, created with the first entry.
        limit_bytes: maximum total size of all entries, summed over their files.
        clock: returns seconds since 1970.
    """

    def __init__(
        self, path: str | Path, limit_bytes: int, clock: Callable[[], float] = time.time
    ) -> None:
        self.path = Path(path)
        self.limit_bytes = limit_bytes
        self._clock = clock

    @property
    def is_trusted(self) -> bool:
        """Whether the folder exists, belongs to this user, and only this user may write to it."""
        try:
            status = self.path.stat()
        except OSError:
            return False
        return _is_own(status)

    def find(self, key: str) -> Path | None:
        """Return the folder of an entry, and mark the entry as used now.

        Returns None if the entry does not exist or the folder is not trusted. Another process may
        remove the entry at any time. Files that are mapped or open stay readable.
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
        """Add an entry, and return its folder; `make` writes the files into the folder it is given.

        An existing entry is left unchanged unless `replacing`. A replaced entry remains available
        until `make` has written its successor, and is kept if that fails.

        Returns None if the folder is not trusted, the entry alone exceeds the limit, or an OSError
        prevents writing: a full disk must not stop a caller that only needs the result. Other
        exceptions of `make` propagate.
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
        """Remove an entry, such as a damaged one, if it exists."""
        self._drop(self._entry(key))

    def entries(self) -> Iterator[tuple[float, int, Path]]:
        """Yield (time of last use in seconds since 1970, size in bytes, folder) of each entry."""
        with suppress(OSError):
            for entry in os.scandir(self.path):
                if _KEY.fullmatch(entry.name):
                    with suppress(OSError):  # another process removed it
                        yield entry.stat().st_mtime, _bytes_below(Path(entry.path)), Path(entry)

    def _entry(self, key: str) -> Path:
        if not _KEY.fullmatch(key):
            raise ValueError(f"'{key}' is not a SHA-256 in hexadecimal digits")
        return self.path / key

    def _put(self, staging: Path, entry: Path, replacing: bool) -> None:
        """Rename a complete folder to the name of its entry."""
        with suppress(OSError):  # another process added the same entry first
            staging.rename(entry)
            return
        if not replacing:
            return
        if _exchange(staging, entry):
            self._drop(staging)  # the replaced entry
            return
        self._drop(entry)  # the system cannot exchange two folders: the entry is briefly missing
        with suppress(OSError):
            staging.rename(entry)

    def _shrink(self, most: int, replaced: Path | None) -> None:
        """Remove the least recently used entries until at most `most` bytes are left.

        The entry `replaced`, which is about to be replaced, does not count. Incomplete entries of
        processes that died are removed too.
        """
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
        """Remove an entry atomically, so that no reader finds part of it."""
        aside = self.path / f".old.{secrets.token_hex(8)}"
        with suppress(OSError):  # another process removed it first
            entry.rename(aside)
        with suppress(OSError):  # a file or a link, which is not an entry
            aside.unlink()
        shutil.rmtree(aside, ignore_errors=True)


def _is_own(status: os.stat_result) -> bool:
    """Whether the file belongs to this user and only this user may write to it.

    False on Windows, where the status of a file does not state this.
    """
    if not hasattr(os, "getuid"):
        return False
    return status.st_uid == os.getuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange the names of two folders atomically; return whether the system supports this."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    if rename is None:
        return False
    names = os.fsencode(one.absolute()), os.fsencode(other.absolute())
    return bool(rename(_HERE, names[0], _HERE, names[1], _EXCHANGE) == 0)


def _bytes_below(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())
