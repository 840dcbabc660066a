"""The interface of places that store the bytes of blobs, and temporary files for arriving bytes.

A place maps digests to bytes. The purpose, age and deletion of a blob are decided by
`db.stores.blobs`.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Protocol

from tilewright.db.engine import os_storage_error

CHUNK_BYTES = 1 << 18

_DIGEST = re.compile(r"[0-9a-f]{64}")


def is_digest(text: str) -> bool:
    """Whether a text is a SHA-256 in lower-case hex."""
    return _DIGEST.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class StoredBytes:
    """A stored blob: its digest, size and time of modification."""

    digest: str
    bytes: int
    modified_at: float  # seconds since the epoch


@dataclass(frozen=True, slots=True)
class Staged:
    """Complete bytes in a temporary file, before they are stored under their digest."""

    path: Path
    digest: str
    bytes: int


@dataclass(frozen=True, slots=True)
class QuarantinedBytes:
    """The name of bytes that a sweep has moved aside before it deletes them.

    Lookups by digest do not find these bytes, but they can be restored.
    """

    digest: str
    nonce: str

    @staticmethod
    def of(digest: str) -> QuarantinedBytes:
        """Create a new unique name for the bytes of a digest."""
        return QuarantinedBytes(digest, secrets.token_hex(8))

    @staticmethod
    def parse(name: str) -> QuarantinedBytes | None:
        """Convert a `name` back to its parts; None for any other text."""
        digest, _, nonce = name.partition("-")
        return QuarantinedBytes(digest, nonce) if is_digest(digest) and nonce else None

    @property
    def name(self) -> str:
        return f"{self.digest}-{self.nonce}"


class TooManyBytesError(ValueError):
    """More bytes arrived than allowed."""


class BlobBytes(Protocol):
    """A place that stores bytes by digest, such as a folder or a bucket.

    Every method raises StorageError if the place fails.
    """

    @property
    def staging(self) -> Path:
        """Return the local folder for temporary files of arriving bytes."""
        ...

    def keep(self, staged: Staged) -> None:
        """Store staged bytes under their digest, completely or not at all.

        The file may be moved.
        """
        ...

    def size(self, digest: str) -> int | None:
        """Return the number of bytes of a digest; None if it is missing, or not a digest."""
        ...

    def read(self, digest: str, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """Yield the bytes from `start` up to but excluding `end`, in chunks, without verification.

        Raises:
            NotFoundError: at the call, before the first chunk, if no blob has the digest.
        """
        ...

    def local(self, digest: str) -> AbstractContextManager[Path]:
        """Open a context that yields a local file with the bytes, for reading only.

        Raises:
            NotFoundError: if no blob has the digest.
        """
        ...

    def quarantine(self, digests: Sequence[str]) -> Sequence[QuarantinedBytes]:
        """Move bytes to new, unique names, so that lookups by digest miss them; return the names.

        Missing bytes are skipped. `restore_quarantined` reverts it, and `discard` deletes the
        bytes.
        """
        ...

    def restore_quarantined(self, aside: Sequence[QuarantinedBytes]) -> None:
        """Store quarantined bytes under their digests again.

        Bytes that already exist under the digest are equal.
        """
        ...

    def discard(self, aside: Sequence[QuarantinedBytes]) -> None:
        """Delete quarantined bytes; missing ones are not an error."""
        ...

    def all_quarantined(self) -> Sequence[QuarantinedBytes]:
        """Return the names of all quarantined bytes."""
        ...

    def list(self) -> Iterator[StoredBytes]:
        """Yield all stored blobs, ordered by digest."""
        ...

    def remove_left_overs(self, older_than: float) -> int:
        """Delete temporary files from before a time, left by killed processes.

        Return the freed bytes.
        """
        ...


class Staging:
    """A temporary file for bytes that arrive in chunks. It is deleted at the end unless moved.

    Every method raises StorageError if the disk fails.
    """

    def __init__(self, folder: Path, max_bytes: int | None = None) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._hasher = hashlib.sha256()
        self._bytes = 0
        with os_errors(folder):
            handle, name = tempfile.mkstemp(dir=folder)
        self._path = Path(name)
        self._file = os.fdopen(handle, "wb", buffering=0)

    def write(self, chunk: bytes) -> None:
        """Append a chunk.

        Raises:
            TooManyBytesError: if the chunks together exceed the limit of bytes.
        """
        self._bytes += len(chunk)
        if self._max_bytes is not None and self._bytes > self._max_bytes:
            raise TooManyBytesError(f"more than {self._max_bytes} bytes")
        self._hasher.update(chunk)
        with os_errors(self._folder):
            _write_all(self._file, chunk)

    def finish(self) -> Staged:
        """Flush the bytes to the disk, and return them as `Staged`."""
        with os_errors(self._folder):
            os.fsync(self._file.fileno())
        return Staged(self._path, self._hasher.hexdigest(), self._bytes)

    def close(self) -> None:
        """Remove the temporary file, unless it was moved."""
        self._file.close()
        self._path.unlink(missing_ok=True)


@contextmanager
def stage(folder: Path, chunks: Iterable[bytes], max_bytes: int | None = None) -> Iterator[Staged]:
    """Open a context that yields the concatenated chunks in a temporary file.

    The file is deleted at the end unless it was moved. Errors of the iterable pass unchanged.

    Raises:
        StorageError: if the disk fails.
        TooManyBytesError: if there are more than `max_bytes`.
    """
    staging = Staging(folder, max_bytes)
    try:
        for chunk in chunks:
            staging.write(chunk)
        yield staging.finish()
    finally:
        staging.close()


def remove_old_files(folder: Path, older_than: float) -> int:
    """Delete files that were modified before a time.

    Return the freed bytes.

    Raises:
        StorageError: if a file cannot be deleted.
    """
    freed = 0
    for path in folder.iterdir():
        try:
            status = path.stat()
        except FileNotFoundError:  # another sweep was faster
            continue
        if status.st_mtime < older_than:
            with os_errors(path):
                path.unlink(missing_ok=True)
            freed += status.st_size
    return freed


@contextmanager
def os_errors(path: Path) -> Iterator[None]:
    """Turn errors of the file system into StorageError."""
    try:
        yield
    except OSError as error:
        raise os_storage_error(error, path) from error


def _write_all(file: FileIO, chunk: bytes) -> None:
    """Write all bytes; a single unbuffered write may be partial, mainly if the disk is
    almost full.
    """
    rest = memoryview(chunk)
    while rest:
        rest = rest[file.write(rest) :]
