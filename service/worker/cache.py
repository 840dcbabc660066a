"""Caches blobs on the worker's disk, in files named by digest, within a size limit."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import threading
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

_DIGEST = re.compile(r"[0-9a-f]{64}")
_PARTIAL = re.compile(r"\.[0-9a-f]{64}")


def is_digest(text: object) -> bool:
    """Whether `text` is the digest of a blob (64 hexadecimal digits).

    Such a text is a safe file name.
    """
    return isinstance(text, str) and _DIGEST.fullmatch(text) is not None


_State = tuple[int, int, int]


def _state(path: Path) -> _State:
    """Return the inode, size and change time of a file, which reveal any change of its content.

    The kernel updates the change time at every write, and no program can set it.
    """
    found = path.stat()
    return found.st_ino, found.st_size, found.st_ctime_ns


def partial_file(target: Path) -> Path:
    """Return the temporary path for the download of `target`.

    A complete download is renamed to `target`.
    """
    return target.with_name(f".{target.name}")


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


class BlobCache:
    """A folder of blobs with a size limit; the least recently used blobs are deleted first.

    Partial downloads count towards the limit. They are kept when the process ends, so that the next
    process resumes them.

    Args:
        folder: the folder.
        limit_bytes: the size limit in bytes.
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._seen: dict[str, _State] = {}
        for left_over in folder.glob(".*"):
            if _PARTIAL.fullmatch(left_over.name) is None:
                left_over.unlink()

    def path(self, digest: str) -> Path:
        return self._folder / digest

    def __contains__(self, digest: str) -> bool:
        """Whether a blob is in the cache. The call marks the blob as recently used."""
        path = self.path(digest)
        try:
            seen = self._seen.get(digest) == _state(path)
            os.utime(path)
            if seen:
                self._seen[digest] = _state(path)
        except FileNotFoundError:
            return False
        return True

    def verified(self, digest: str) -> Path:
        """Verify the digest of a blob, and return the path of its file.

        Call this method before each use of the file. The file is read again only if it has changed
        since the last verification. A damaged file is deleted.

        Raises:
            OSError: if the file does not exist, cannot be read, or is damaged.
        """
        path = self.path(digest)
        if self._seen.get(digest) == _state(path):
            return path
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
            state = _state(path)
        if found != digest:
            path.unlink(missing_ok=True)
            raise OSError(f"blob {digest} was damaged on the disk of this device")
        self._seen[digest] = state
        return path

    def refusal(self, blobs: Mapping[str, int]) -> str | None:
        """Return why the cache cannot hold these blobs together; None if it can.

        The reason is the limit of the cache or the free disk space.

        Args:
            blobs: the size in bytes of each blob, by digest.
        """
        wanted = sum(blobs.values())
        if wanted > self._limit_bytes:
            return (
                f"the run needs {wanted} bytes of blobs, the cache of this worker holds "
                f"{self._limit_bytes} (--cache-mib)"
            )
        missing, free = self._missing(blobs), shutil.disk_usage(self._folder).free
        held = self._held_bytes()
        if missing > free + held:
            return f"the run needs {missing} bytes on the disk, which has {free + held} for it"
        return None

    def make_room(self, blobs: Mapping[str, int], keep: Collection[str]) -> bool:
        """Delete the least recently used files until `blobs` fit into the size limit of the cache.

        Only the bytes of `blobs` that are not downloaded yet need room.

        Args:
            blobs: the size in bytes of each blob, by digest; files of these blobs are not deleted.
            keep: the digests of other blobs that must not be deleted.

        Returns:
            whether the blobs fit.
        """
        return self._shrink(self._missing(blobs), {*keep, *blobs})

    def trim(self, keep: Collection[str]) -> None:
        """Delete the least recently used files until the cache is within its limit.

        Args:
            keep: the digests of blobs that must not be deleted.
        """
        self._shrink(0, keep)

    def _shrink(self, coming: int, keep: Collection[str]) -> bool:
        with self._lock:
            files = self._files()
            total = sum(stat.st_size for stat, _ in files) + coming
            for stat, path in sorted(files, key=lambda item: item[0].st_mtime):
                if total <= self._limit_bytes:
                    break
                if path.name.removeprefix(".") not in keep:
                    path.unlink(missing_ok=True)
                    total -= stat.st_size
            return total <= self._limit_bytes

    def _missing(self, blobs: Mapping[str, int]) -> int:
        """Return the number of bytes of the blobs that are still to be downloaded.

        Args:
            blobs: the size in bytes of each blob, by digest.
        """
        missing = 0
        for digest, size in blobs.items():
            path = self.path(digest)
            for found in (path, partial_file(path)):
                if (there := _size(found)) is not None:
                    size -= there
                    break
            missing += max(0, size)
        return missing

    def _held_bytes(self) -> int:
        return sum(stat.st_size for stat, _ in self._files())

    def _files(self) -> list[tuple[os.stat_result, Path]]:
        """Return all files of the cache with their stat results.

        Files that another thread renames or deletes during the call are left out.
        """
        found = []
        for path in self._folder.iterdir():
            with suppress(FileNotFoundError):
                found.append((path.stat(), path))
        return found
