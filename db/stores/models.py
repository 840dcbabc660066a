"""Uploaded ONNX models, named by the SHA-256 of their bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from db.clock import Clock, system_clock
from db.stores.blobs import BlobStore


@dataclass(frozen=True, slots=True)
class Model:
    digest: str  # sha256 hex of the ONNX file
    name: str
    bytes: int
    owner: str | None  # token id
    created_at: float


class ModelStore:
    """Rows in the database, bytes in the blob store."""

    def __init__(self, engine: sa.Engine, blobs: BlobStore, clock: Clock = system_clock) -> None:
        self._engine = engine
        self._blobs = blobs
        self._clock = clock

    def add(self, data: bytes, name: str, owner: str | None = None) -> Model:
        """Save a model; the same bytes again give the first row back. Raises StorageError."""
        raise NotImplementedError

    def register(self, digest: str, bytes_: int, name: str, owner: str | None = None) -> Model:
        """Add the row for a blob that is already stored (a streamed upload).

        Raises NotFoundError if the blob store does not have it.
        """
        raise NotImplementedError

    def get(self, digest: str) -> Model:
        """Raises NotFoundError."""
        raise NotImplementedError

    def data(self, digest: str) -> bytes:
        """The ONNX file. Raises NotFoundError, StorageError(CORRUPT)."""
        raise NotImplementedError

    def list(self, limit: int = 100, after: str | None = None) -> Sequence[Model]:
        """Newest first; `after` is the digest the previous page ended with."""
        raise NotImplementedError
