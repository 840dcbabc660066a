"""`BlobBytes`, the interface of stores for the bytes of blobs, and temporary files for uploads.

Such a store maps digests to bytes. `db.stores.blobs` decides which blobs are kept and when they are
deleted.
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
    """Whether a text is a SHA-256 digest in lower-case hex."""
    return _DIGEST.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class StoredBytes:
    """A stored blob: its digest, size and time of modification."""

    digest: str
    bytes: int
    modified_at: float  # seconds since the epoch


@dataclass(frozen=True, slots=True)
class Staged:
    """A completely received blob in a temporary file, before it is stored under its digest."""

    path: Path
    digest: str
    bytes: int


@dataclass(frozen=True, slots=True)
class QuarantinedBytes:
    """The temporary name of a blob's bytes while the clean-up deletes them.

    Lookups by digest do not find the bytes under this name, but they can still be restored.
    """

    digest: str
    nonce: str

    @staticmethod
    def of(digest: str) -> QuarantinedBytes:
        """Create a new unique name for the bytes of the blob `digest`."""
        return QuarantinedBytes(digest, secrets.token_hex(8))

    @staticmethod
    def parse(name: str) -> QuarantinedBytes | None:
        """Parse a `name` of this class, such as a file name. Return None for any other text."""
        digest, _, nonce = name.partition("-")
        return QuarantinedBytes(digest, nonce) if is_digest(digest) and nonce else None

    @property
    def name(self) -> str:
        return f"{self.digest}-{self.nonce}"


class TooManyBytesError(ValueError):
    """An upload exceeded its limit of bytes."""


class BlobBytes(Protocol):
    """A store of bytes by digest, such as a folder or a bucket.

    Every method raises StorageError if the store fails.
    """

    @property
    def staging(self) -> Path:
        """Return the local folder for temporary files of blobs that are being received."""
        ...

    def keep(self, staged: Staged) -> None:
        """Store a received blob under its digest, completely or not at all.

        The call may move the temporary file `staged.path` to its final place.
        """
        ...

    def size(self, digest: str) -> int | None:
        """Return the size of a blob in bytes; None if it is not stored or not a digest."""
        ...

    def read(self, digest: str, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """Yield a blob's bytes from `start` up to but excluding `end`, in chunks.

        `end` None means the end of the blob. The digest is not verified.

        Raises:
            NotFoundError: if no blob has the digest; raised by the call, not by the iterator.
        """
        ...

    def local(self, digest: str) -> AbstractContextManager[Path]:
        """Open a context that yields the path of a local file with a blob's bytes.

        Only read the file.

        Raises:
            NotFoundError: if no blob has the digest.
        """
        ...

    def quarantine(self, digests: Sequence[str]) -> Sequence[QuarantinedBytes]:
        """Move blobs to new, unique names, so that lookups by digest do not find them.

        Blobs that are not stored are skipped. `restore_quarantined` moves the bytes back, and
        `discard` deletes them. Return the names.
        """
        ...

    def restore_quarantined(self, aside: Sequence[QuarantinedBytes]) -> None:
        """Move quarantined bytes back to their digests.

        If a digest was stored again meanwhile, its bytes are the same, so replacing them is
        harmless.
        """
        ...

    def discard(self, aside: Sequence[QuarantinedBytes]) -> None:
        """Delete quarantined bytes. Names that no longer exist are ignored."""
        ...

    def all_quarantined(self) -> Sequence[QuarantinedBytes]:
        """Return the names of all quarantined bytes, including those that killed processes left."""
        ...

    def list(self) -> Iterator[StoredBytes]:
        """Yield all stored blobs, without quarantined ones."""
        ...

    def remove_left_overs(self, older_than: float) -> int:
        """Delete temporary files that killed processes left behind.

        Files modified before `older_than` (seconds since the epoch) are deleted. Return the freed
        bytes.
        """
        ...


class Staging:
    """A temporary file for a blob that arrives in chunks. `close` deletes it unless it was moved.

    Every method raises StorageError if the disk fails.

    Args:
        folder: the folder in which the file is created.
        max_bytes: the largest size of the file; None for no limit.
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
        """Append a chunk to the file.

        Raises:
            TooManyBytesError: if all chunks together exceed `max_bytes`.
        """
        self._bytes += len(chunk)
        if self._max_bytes is not None and self._bytes > self._max_bytes:
            raise TooManyBytesError(f"more than {self._max_bytes} bytes")
        self._hasher.update(chunk)
        with os_errors(self._folder):
            _write_all(self._file, chunk)

    def finish(self) -> Staged:
        """Flush the file to the disk. Return its path, digest and size."""
        with os_errors(self._folder):
            os.fsync(self._file.fileno())
        return Staged(self._path, self._hasher.hexdigest(), self._bytes)

    def close(self) -> None:
        """Remove the temporary file, unless it was moved."""
        self._file.close()
        self._path.unlink(missing_ok=True)


@contextmanager
def stage(folder: Path, chunks: Iterable[bytes], max_bytes: int | None = None) -> Iterator[Staged]:
    """Open a context that yields a temporary file in `folder` with all chunks, one after the other.

    The file is deleted at the end of the context unless it was moved. Exceptions of the iterable
    are not converted.

    Raises:
        StorageError: if the disk fails.
        TooManyBytesError: if the chunks together exceed `max_bytes`.
    """
    staging = Staging(folder, max_bytes)
    try:
        for chunk in chunks:
            staging.write(chunk)
        yield staging.finish()
    finally:
        staging.close()


def remove_old_files(folder: Path, older_than: float) -> int:
    """Delete the files of a folder that were modified before a time, in seconds since the epoch.

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
    """Convert each OSError within the context to a StorageError that names `path`."""
    try:
        yield
    except OSError as error:
        raise os_storage_error(error, path) from error


def _write_all(file: FileIO, chunk: bytes) -> None:
    """Write a chunk completely, with as many writes as necessary.

    A single unbuffered write may write only a part, for example if the disk is almost full.
    """
    rest = memoryview(chunk)
    while rest:
        rest = rest[file.write(rest) :]
