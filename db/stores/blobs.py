"""Blobs: immutable files named by the SHA-256 of their bytes, in a folder beside the database."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

from db.clock import Clock, system_clock
from db.engine import os_storage_error
from db.errors import NotFoundError, StorageError, StorageKind

_DIGEST = re.compile(r"[0-9a-f]{64}")
_TEMPORARY = "incoming"


class BlobStore:
    """Content-addressed files: `folder/ab/cdef...`.

    A blob appears whole or not at all: written to a temporary file, fsynced, renamed, and the
    folder fsynced. It is checked against its digest on every read.
    """

    def __init__(self, folder: str | Path) -> None:
        """Makes the folder if it is missing, owner-only. Raises StorageError."""
        self.folder = Path(folder)
        try:
            self.folder.mkdir(parents=True, mode=0o700, exist_ok=True)
            (self.folder / _TEMPORARY).mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise os_storage_error(error, self.folder) from error

    def put(self, data: bytes) -> str:
        """Save, return the SHA-256 in hex. Saving the same bytes again is free.

        Raises StorageError(FULL or DENIED).
        """
        digest = hashlib.sha256(data).hexdigest()
        if not self._same_size(digest, len(data)):
            self.put_stream((data,))
        return digest

    def put_stream(self, chunks: Iterable[bytes], max_bytes: int | None = None) -> tuple[str, int]:
        """Save what the chunks add up to without holding it in memory; (digest, bytes).

        Raises StorageError; ValueError when there is more than max_bytes.
        """
        hasher = hashlib.sha256()
        size = 0
        with _os_errors(self.folder):
            handle, name = tempfile.mkstemp(dir=self.folder / _TEMPORARY)
        temporary = Path(name)
        try:
            with os.fdopen(handle, "wb", buffering=0) as file:
                for chunk in chunks:  # what the source raises passes as it is
                    size += len(chunk)
                    if max_bytes is not None and size > max_bytes:
                        raise ValueError(f"more than {max_bytes} bytes")
                    hasher.update(chunk)
                    with _os_errors(self.folder):
                        _write_all(file, chunk)
                with _os_errors(self.folder):
                    os.fsync(file.fileno())
            digest = hasher.hexdigest()
            with _os_errors(self.folder):
                self._rename(temporary, self._file(digest))
            return digest, size
        finally:
            temporary.unlink(missing_ok=True)

    def touch(self, digest: str) -> bool:
        """Make a blob young again, so that no sweep takes it; whether it is there.

        Raises StorageError.
        """
        if _DIGEST.fullmatch(digest) is None:
            return False
        try:
            os.utime(self._file(digest))
        except FileNotFoundError:
            return False
        except OSError as error:
            raise os_storage_error(error, self._file(digest)) from error
        return True

    def get(self, digest: str) -> bytes:
        """The bytes. Raises NotFoundError, or StorageError(CORRUPT) on a damaged file."""
        path = self.path(digest)
        try:
            data = path.read_bytes()
        except FileNotFoundError as error:
            raise NotFoundError("blob", digest) from error
        except OSError as error:
            raise os_storage_error(error, path) from error
        if hashlib.sha256(data).hexdigest() != digest:
            raise StorageError(f"blob '{digest}' is damaged on the disk", StorageKind.CORRUPT)
        return data

    def path(self, digest: str) -> Path:
        """Where the file lies, for serving it without a copy (not verified).

        Raises NotFoundError; a string that is not a digest is not found, too.
        """
        if digest not in self:
            raise NotFoundError("blob", digest)
        return self._file(digest)

    def __contains__(self, digest: str) -> bool:
        return _DIGEST.fullmatch(digest) is not None and self._file(digest).is_file()

    def digests(self) -> Iterator[str]:
        """All digests that lie in the folder."""
        for path in sorted(self.folder.glob("??/*")):
            digest = path.parent.name + path.name
            if _DIGEST.fullmatch(digest):
                yield digest

    def delete(self, digest: str) -> bool:
        """Remove; whether there was something to remove."""
        if digest not in self:
            return False
        try:
            self._file(digest).unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise os_storage_error(error, self._file(digest)) from error
        return True

    def sweep(
        self, keep: Collection[str], older_than_seconds: float, clock: Clock = system_clock
    ) -> int:
        """Remove what is not in `keep` and old enough, and left-over temporary files; bytes freed.

        The age protects a blob whose row is about to be written: `put` and `touch` of a blob that
        is there make it young again.
        """
        limit = clock() - older_than_seconds
        freed = 0
        left_over = (self.folder / _TEMPORARY).iterdir()
        unwanted = (self._file(digest) for digest in self.digests() if digest not in keep)
        for path in (*left_over, *unwanted):
            try:
                status = path.stat()
                if status.st_mtime < limit:
                    path.unlink()
                    freed += status.st_size
            except FileNotFoundError:  # another sweep was faster
                continue
            except OSError as error:
                raise os_storage_error(error, path) from error
        return freed

    def _file(self, digest: str) -> Path:
        return self.folder / digest[:2] / digest[2:]

    def _same_size(self, digest: str, size: int) -> bool:
        """Whether the blob is there; makes it young. One of another size is damaged: rewrite."""
        path = self._file(digest)
        try:
            if path.stat().st_size != size:
                return False
            os.utime(path)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise os_storage_error(error, path) from error
        return True

    @staticmethod
    def _rename(temporary: Path, path: Path) -> None:
        made = not path.parent.exists()
        path.parent.mkdir(mode=0o700, exist_ok=True)
        os.replace(temporary, path)
        _sync_folder(path.parent)
        if made:
            _sync_folder(path.parent.parent)


@contextmanager
def _os_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise os_storage_error(error, path) from error


def _write_all(file: FileIO, chunk: bytes) -> None:
    """An unbuffered write may take a part only, above all just before the disk is full."""
    rest = memoryview(chunk)
    while rest:
        rest = rest[file.write(rest) :]


def _sync_folder(path: Path) -> None:
    """Make a rename in this folder survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
