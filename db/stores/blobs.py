"""Blobs: immutable files named by the SHA-256 of their bytes, in a folder beside the database."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from db.clock import Clock, system_clock


class BlobStore:
    """Content-addressed files: `folder/ab/cdef...`.

    A blob appears whole or not at all: written to a temporary file, fsynced, renamed, and the
    folder fsynced. It is checked against its digest on every read.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def put(self, data: bytes) -> str:
        """Save, return the SHA-256 in hex. Saving the same bytes again is free.

        Raises StorageError(FULL or DENIED).
        """
        raise NotImplementedError

    def put_stream(self, chunks: Iterable[bytes], max_bytes: int | None = None) -> tuple[str, int]:
        """Save what the chunks add up to without holding it in memory; (digest, bytes).

        Raises StorageError; ValueError when there is more than max_bytes.
        """
        raise NotImplementedError

    def get(self, digest: str) -> bytes:
        """The bytes. Raises NotFoundError, or StorageError(CORRUPT) on a damaged file."""
        raise NotImplementedError

    def path(self, digest: str) -> Path:
        """Where the file lies, for serving it without a copy (not verified).

        Raises NotFoundError; a string that is not a digest is not found, too.
        """
        raise NotImplementedError

    def size(self, digest: str) -> int:
        """Bytes. Raises NotFoundError."""
        raise NotImplementedError

    def __contains__(self, digest: str) -> bool:
        raise NotImplementedError

    def digests(self) -> Iterator[str]:
        """All digests that lie in the folder."""
        raise NotImplementedError

    def delete(self, digest: str) -> bool:
        """Remove; whether there was something to remove."""
        raise NotImplementedError

    def sweep(
        self, keep: Collection[str], older_than_seconds: float, clock: Clock = system_clock
    ) -> int:
        """Remove what is not in `keep` and old enough, and left-over temporary files; bytes freed.

        The age protects a blob whose row is about to be written.
        """
        raise NotImplementedError
