"""A store of blobs as objects of an S3-compatible service, with names `prefix/ab/cdef...`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from tilewright.db.errors import NotFoundError, StorageError, StorageKind
from tilewright.db.stores.blob_bytes import (
    QuarantinedBytes,
    Staged,
    StoredBytes,
    is_digest,
    os_errors,
    remove_old_files,
)

if TYPE_CHECKING:
    from obstore.store import S3Store

PART_BYTES = 4 << 20
"""Number of bytes of a blob that are read at a time."""

_ASIDE = "aside/"

RETRIES = 4
RETRY_SECONDS = 20
"""Limit of a failed request's total retry time, in seconds. `RETRIES` limits the number of
retries."""


class BlobObjects:
    """Stores the bytes of blobs as objects in an S3 bucket, or below a prefix of it.

    An object is stored completely or not at all; large objects are uploaded in parts. The usual
    environment variables of S3 clients set the address and the keys (`AWS_ENDPOINT_URL`,
    `AWS_REGION`, `AWS_ACCESS_KEY_ID`, ...). Configure lifecycle rules of the bucket to delete the
    parts of interrupted uploads.
    """

    def __init__(self, url: str, staging: Path) -> None:
        """Create a store for `s3://bucket/prefix`. No request is sent yet.

        `staging` is the local folder for blobs that are being received; created if it does not
        exist.

        Raises:
            StorageError: if the URL has another form, or the package obstore is not installed.
        """
        try:
            import obstore.exceptions
            from obstore.store import S3Store
        except ModuleNotFoundError as error:
            raise StorageError(
                f"'{url}' needs the package 'obstore': pip install 'tilewright[s3]' has it"
            ) from error
        if not url.startswith("s3://") or not url.removeprefix("s3://").strip("/"):
            raise StorageError(f"'{url}' names no bucket: s3://bucket/prefix is expected")
        self._url = url
        self._staging = staging
        with os_errors(staging):
            staging.mkdir(parents=True, mode=0o700, exist_ok=True)
        try:
            self._store: S3Store = S3Store.from_url(
                url,
                retry_config={
                    "max_retries": RETRIES,
                    "retry_timeout": timedelta(seconds=RETRY_SECONDS),
                },
            )
        except obstore.exceptions.BaseError as error:
            raise StorageError(f"'{url}' cannot be opened: {_first_line(error)}") from error

    @property
    def staging(self) -> Path:
        """Return the local folder for blobs that are being received.

        A blob is uploaded to the bucket when it is complete.
        """
        return self._staging

    def keep(self, staged: Staged) -> None:
        import obstore

        if self.size(staged.digest) == staged.bytes:
            return
        with self._errors():
            obstore.put(self._store, _key(staged.digest), staged.path)

    def size(self, digest: str) -> int | None:
        import obstore

        if not is_digest(digest):
            return None
        try:
            with self._errors(key=True):
                return obstore.head(self._store, _key(digest))["size"]
        except FileNotFoundError:
            return None

    def read(self, digest: str, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        import obstore

        size = self.size(digest)
        if size is None:
            raise NotFoundError("blob", digest)
        last = size if end is None else min(end, size)

        def chunks() -> Iterator[bytes]:
            # a request per part, so that a slow reader keeps no request open
            for first in range(start, last, PART_BYTES):
                try:
                    with self._errors(key=True):
                        part = obstore.get_range(
                            self._store,
                            _key(digest),
                            start=first,
                            end=min(first + PART_BYTES, last),
                        )
                except FileNotFoundError as error:
                    raise NotFoundError("blob", digest) from error
                yield bytes(part)

        return chunks()

    @contextmanager
    def local(self, digest: str) -> Iterator[Path]:
        chunks = self.read(digest)
        with os_errors(self._staging):
            file = tempfile.NamedTemporaryFile(dir=self._staging)  # noqa: SIM115 (closed below)
        with file:
            for chunk in chunks:
                with os_errors(self._staging):
                    file.write(chunk)
            with os_errors(self._staging):
                file.flush()
            yield Path(file.name)

    def quarantine(self, digests: Sequence[str]) -> Sequence[QuarantinedBytes]:
        """Move blobs to new, unique names, as `BlobBytes.quarantine` describes.

        Object stores cannot rename, so the store copies each object and deletes the original. The
        bytes do not pass through this machine.
        """
        return [
            one
            for one in map(QuarantinedBytes.of, digests)
            if self._move(_key(one.digest), _aside(one))
        ]

    def restore_quarantined(self, aside: Sequence[QuarantinedBytes]) -> None:
        for one in aside:
            self._move(_aside(one), _key(one.digest))

    def discard(self, aside: Sequence[QuarantinedBytes]) -> None:
        import obstore

        if aside:
            with self._errors():
                obstore.delete(self._store, [_aside(one) for one in aside])

    def all_quarantined(self) -> Sequence[QuarantinedBytes]:
        import obstore

        with self._errors():
            found = [
                QuarantinedBytes.parse(each["path"].removeprefix(_ASIDE))
                for batch in obstore.list(self._store, _ASIDE.rstrip("/"))
                for each in batch
            ]
        return [one for one in found if one is not None]

    def _move(self, source: str, place: str) -> bool:
        """Rename an object of the bucket. Return False if it does not exist."""
        import obstore

        try:
            with self._errors(key=True):
                obstore.rename(self._store, source, place)
        except FileNotFoundError:
            return False
        return True

    def list(self) -> Iterator[StoredBytes]:
        import obstore

        with self._errors():
            for batch in obstore.list(self._store):
                for found in batch:
                    digest = found["path"].replace("/", "", 1)
                    if is_digest(digest):
                        modified = found["last_modified"].timestamp()
                        yield StoredBytes(digest, found["size"], modified)

    def remove_left_overs(self, older_than: float) -> int:
        return remove_old_files(self._staging, older_than)

    @contextmanager
    def _errors(self, *, key: bool = False) -> Iterator[None]:
        """Convert errors of the object store within the context to StorageError.

        If `key` is true, a FileNotFoundError means that an object is missing, and is not converted.
        Otherwise it means that the bucket is missing.
        """
        import obstore.exceptions as errors

        try:
            yield
        except FileNotFoundError as error:
            if key:
                raise
            raise StorageError(f"'{self._url}' does not exist", StorageKind.DENIED) from error
        except (errors.PermissionDeniedError, errors.UnauthenticatedError) as error:
            raise StorageError(
                f"'{self._url}' may not be used: {_first_line(error)}", StorageKind.DENIED
            ) from error
        except (errors.BaseError, OSError) as error:
            raise StorageError(
                f"'{self._url}' cannot be reached: {_first_line(error)}", StorageKind.UNREACHABLE
            ) from error


def _key(digest: str) -> str:
    return f"{digest[:2]}/{digest[2:]}"


def _aside(one: QuarantinedBytes) -> str:
    return _ASIDE + one.name


def _first_line(error: Exception) -> str:
    return (str(error).strip() or repr(error)).splitlines()[0]
