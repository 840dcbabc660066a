"""Uploaded ONNX models, named by the SHA-256 of their bytes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from tilewright.db.clock import Clock, system_clock
from tilewright.db.engine import reading, writing
from tilewright.db.errors import NotFoundError
from tilewright.db.models import ModelRow
from tilewright.db.stores.blob_references import BlobKind, refer
from tilewright.db.stores.blobs import BlobStore
from tilewright.db.stores.ids import row_of_id
from tilewright.db.stores.pages import Page, PageOrder, Position
from tilewright.db.stores.statements import chunks, insert_new, table_of

_models = table_of(ModelRow)
_newest_first = PageOrder((_models.c.created_at, _models.c.digest))


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
        """Save a model; for the same bytes again, return the first row. Raises StorageError."""
        return self.register(self._blobs.put(data), len(data), name, owner)

    def register(self, digest: str, size: int, name: str, owner: str | None = None) -> Model:
        """Add the row for a blob of `size` bytes that is already stored (a streamed upload).

        Raises NotFoundError if the blob store does not have it.
        """
        if digest not in self._blobs:
            raise NotFoundError("blob", digest)
        row = {
            "digest": digest,
            "name": name,
            "bytes": size,
            "owner": owner,
            "created_at": self._clock(),
        }
        with writing(self._engine) as connection:
            insert_new(connection, _models, [row])
            refer(connection, BlobKind.MODEL, digest, [digest])
            return _get(connection, digest)

    def get(self, digest: str) -> Model:
        """The model with this digest, or the only one whose digest begins so.

        Raises NotFoundError.
        """
        with reading(self._engine) as connection:
            return _get(connection, digest)

    def names(self, digests: Collection[str]) -> Mapping[str, str]:
        """Digest -> name of the models that are known."""
        found: dict[str, str] = {}
        with reading(self._engine) as connection:
            for some in chunks(sorted(set(digests))):
                query = sa.select(_models.c.digest, _models.c.name)
                rows = connection.execute(query.where(_models.c.digest.in_(some)))
                found.update({row.digest: row.name for row in rows})
        return found

    def data(self, digest: str) -> bytes:
        """The ONNX file. Raises NotFoundError, StorageError(CORRUPT)."""
        self.get(digest)
        return self._blobs.get(digest)

    def list(self, limit: int = 100, after: Position | None = None) -> Page[Model]:
        """Newest first, after a page's `next`. Raises PositionError."""
        with reading(self._engine) as connection:
            return _newest_first.page(connection, sa.select(_models), _model, limit, after)


def _get(connection: sa.Connection, digest: str) -> Model:
    return _model(row_of_id(connection, sa.select(_models), _models.c.digest, digest, "model"))


def _model(row: sa.Row[Any]) -> Model:
    return Model(**row._mapping)
