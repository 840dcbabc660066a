"""A store of blobs as files in a folder.

The first two hex digits name a subfolder: `ab/cdef...`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tilewright.db.engine import os_storage_error
from tilewright.db.errors import NotFoundError
from tilewright.db.stores.blob_bytes import (
    CHUNK_BYTES,
    QuarantinedBytes,
    Staged,
    StoredBytes,
    is_digest,
    os_errors,
    remove_old_files,
)

_TEMPORARY, _ASIDE = "incoming", "aside"


class BlobFolder:
    """Stores the bytes of blobs as files in a folder.

    A blob is stored completely or not at all: a complete, synced file is renamed to its final path,
    and then its folder is synced.
    """

    def __init__(self, folder: str | Path) -> None:
        """Create the folder if it is missing, readable by the owner only.

        Raises:
            StorageError: if the folder cannot be created.
        """
        self.folder = Path(folder)
        with os_errors(self.folder):
            self.folder.mkdir(parents=True, mode=0o700, exist_ok=True)
            self.staging.mkdir(mode=0o700, exist_ok=True)
            self._aside.mkdir(mode=0o700, exist_ok=True)

    @property
    def staging(self) -> Path:
        """Return the folder for temporary files of blobs that are being received.

        It lies inside the blob folder and so on the same file system. Therefore a file can be
        renamed to its final path.
        """
        return self.folder / _TEMPORARY

    @property
    def _aside(self) -> Path:
        return self.folder / _ASIDE

    def path(self, digest: str) -> Path:
        """Return the path for the bytes of the blob `digest`, whether or not the file exists."""
        return self.folder / digest[:2] / digest[2:]

    def keep(self, staged: Staged) -> None:
        path = self.path(staged.digest)
        with os_errors(self.folder):
            made = not path.parent.exists()
            path.parent.mkdir(mode=0o700, exist_ok=True)
            os.replace(staged.path, path)
            _sync_folder(path.parent)
            if made:
                _sync_folder(path.parent.parent)

    def size(self, digest: str) -> int | None:
        if not is_digest(digest):
            return None
        path = self.path(digest)
        try:
            status = path.stat()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise os_storage_error(error, path) from error
        return status.st_size if stat.S_ISREG(status.st_mode) else None

    def read(self, digest: str, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        if self.size(digest) is None:
            raise NotFoundError("blob", digest)
        path = self.path(digest)
        try:
            file = path.open("rb")
        except FileNotFoundError as error:
            raise NotFoundError("blob", digest) from error
        except OSError as error:
            raise os_storage_error(error, path) from error
        file.seek(start)

        def chunks() -> Iterator[bytes]:
            left = None if end is None else end - start
            with file:
                while left is None or left > 0:
                    with os_errors(path):
                        chunk = file.read(CHUNK_BYTES if left is None else min(CHUNK_BYTES, left))
                    if not chunk:
                        return
                    if left is not None:
                        left -= len(chunk)
                    yield chunk

        return chunks()

    @contextmanager
    def local(self, digest: str) -> Iterator[Path]:
        if self.size(digest) is None:
            raise NotFoundError("blob", digest)
        yield self.path(digest)

    def quarantine(self, digests: Sequence[str]) -> Sequence[QuarantinedBytes]:
        done = []
        for one in map(QuarantinedBytes.of, digests):
            with os_errors(self.folder), suppress(FileNotFoundError):
                os.replace(self.path(one.digest), self._aside / one.name)
                done.append(one)
        return done

    def restore_quarantined(self, aside: Sequence[QuarantinedBytes]) -> None:
        for one in aside:
            path = self.path(one.digest)
            with os_errors(path), suppress(FileNotFoundError):
                os.replace(self._aside / one.name, path)
                _sync_folder(path.parent)

    def discard(self, aside: Sequence[QuarantinedBytes]) -> None:
        for one in aside:
            path = self._aside / one.name
            with os_errors(path):
                path.unlink(missing_ok=True)

    def all_quarantined(self) -> Sequence[QuarantinedBytes]:
        with os_errors(self._aside):
            found = [QuarantinedBytes.parse(name) for name in sorted(os.listdir(self._aside))]
        return [one for one in found if one is not None]

    def list(self) -> Iterator[StoredBytes]:
        for path in sorted(self.folder.glob("??/*")):
            digest = path.parent.name + path.name
            if not is_digest(digest):
                continue
            try:
                status = path.stat()
            except FileNotFoundError:  # a sweep was faster
                continue
            yield StoredBytes(digest, status.st_size, status.st_mtime)

    def remove_left_overs(self, older_than: float) -> int:
        return remove_old_files(self.staging, older_than)


def _sync_folder(path: Path) -> None:
    """Flush a folder to the disk, so that a rename inside it survives a power failure."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
