"""Uploaded ONNX models. The id of a model is the SHA-256 of its file."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from tilewright.db.clock import Clock, system_clock
from tilewright.db.engine import reading, writing
from tilewright.db.errors import NotFoundError
from tilewright.db.models import ModelRow, ModelUploadRow, SampleUploadRow, TokenRow
from tilewright.db.stores.blob_references import BlobKind, refer
from tilewright.db.stores.blobs import BlobStore
from tilewright.db.stores.ids import row_of_id
from tilewright.db.stores.pages import Page, PageOrder, Position
from tilewright.db.stores.statements import chunks, insert_new, table_of

_models = table_of(ModelRow)
_uploads = table_of(ModelUploadRow)
_samples = table_of(SampleUploadRow)
_tokens = table_of(TokenRow)
_newest_first = PageOrder((_models.c.created_at, _models.c.digest))


@dataclass(frozen=True, slots=True)
class UploadedModel:
    digest: str  # sha256 hex of the ONNX file
    name: str  # the name by the requesting owner, else the first name
    bytes: int
    owner: str | None  # the id of the token that uploaded it first
    created_at: float


class ModelStore:
    """Stores uploaded models: rows in the database, ONNX files in the blob store."""

    def __init__(self, engine: sa.Engine, blobs: BlobStore, clock: Clock = system_clock) -> None:
        self._engine = engine
        self._blobs = blobs
        self._clock = clock

    def add(self, data: bytes, name: str, owner: str | None = None) -> UploadedModel:
        """Save an ONNX file, and register it as a model. The parameters are those of `register`.

        Raises:
            StorageError: if the bytes cannot be stored, or the database fails.
        """
        return self.register(self._blobs.put(data), len(data), name, owner)

    def register(
        self, digest: str, size: int, name: str, owner: str | None = None
    ) -> UploadedModel:
        """Register a model whose file of `size` bytes is already stored as blob `digest`.

        If the owner registered the model earlier, the model keeps the earlier name, because the
        owner's jobs are shown with that name. Return the model.

        Args:
            digest, size: the blob's SHA-256 and its number of bytes.
            name: the owner's name for the model.
            owner: the id of a token. All tokens with the same name are one owner.

        Raises:
            NotFoundError: if the blob does not exist.
        """
        if digest not in self._blobs:
            raise NotFoundError("blob", digest)
        now = self._clock()
        row = {"digest": digest, "name": name, "bytes": size, "owner": owner, "created_at": now}
        with writing(self._engine) as connection:
            insert_new(connection, _models, [row])
            refer(connection, BlobKind.MODEL, digest, [digest])
            known = sa.select(_tokens.c.name).where(_tokens.c.id == owner)
            uploader = connection.execute(known).scalar_one_or_none() or ""
            upload = {"digest": digest, "owner": uploader, "name": name, "created_at": now}
            insert_new(connection, _uploads, [upload])
            return _get(connection, digest, uploader)

    def get(self, digest: str, sees: str | None = None) -> UploadedModel:
        """Return the model with this digest, or the only one whose digest starts with `digest`.

        `sees` is the name of an owner (`Token.sees`). Then only models that this owner uploaded are
        found, and they have the owner's names. None for all models.

        Raises:
            NotFoundError: if no such model has this digest, or several digests start with it.
        """
        with reading(self._engine) as connection:
            return _get(connection, digest, sees)

    def names(self, wanted: Collection[tuple[str, str]]) -> Mapping[tuple[str, str], str]:
        """Return the name of each model, by (digest, owner).

        This is the name under which the owner uploaded the model. If the owner did not upload it,
        it is the name under which it was uploaded first. Unknown models are left out.
        """
        first: dict[str, str] = {}
        own: dict[tuple[str, str], str] = {}
        with reading(self._engine) as connection:
            for some in chunks(sorted({digest for digest, _ in wanted})):
                query = sa.select(_models.c.digest, _models.c.name)
                rows = connection.execute(query.where(_models.c.digest.in_(some)))
                first.update({row.digest: row.name for row in rows})
                uploads = sa.select(_uploads).where(_uploads.c.digest.in_(some))
                own.update({(r.digest, r.owner): r.name for r in connection.execute(uploads)})
        return {each: own.get(each, first[each[0]]) for each in wanted if each[0] in first}

    def register_samples(self, digest: str, owner: str) -> None:
        """Record that an owner uploaded sample inputs, which are already stored as a blob.

        `owner` is the name of the owner's tokens.
        """
        with writing(self._engine) as connection:
            insert_new(connection, _samples, [{"digest": digest, "owner": owner}])

    def touch_samples(self, digests: Collection[str], sees: str | None) -> Collection[str]:
        """Protect uploaded sample inputs from the next deletions of unreferenced blobs.

        `sees` is the name of an owner; samples of other owners are ignored. None for all samples.
        Return the digests that exist.

        Raises:
            StorageError: if the database or the store of the bytes fails.
        """
        mine = set(digests)
        if sees is not None:
            query = sa.select(_samples.c.digest).where(_samples.c.owner == sees)
            with reading(self._engine) as connection:
                rows = connection.execute(query.where(_samples.c.digest.in_(sorted(mine))))
                mine = set(rows.scalars())
        return self._blobs.touch(mine)

    def data(self, digest: str) -> bytes:
        """Return the bytes of the ONNX file.

        Raises:
            NotFoundError: if no model has the digest.
            StorageError: of the kind CORRUPT if the bytes do not match the digest.
        """
        self.get(digest)
        return self._blobs.get(digest)

    def list(
        self, limit: int = 100, after: Position | None = None, sees: str | None = None
    ) -> Page[UploadedModel]:
        """Return a page of models, newest first.

        `after` is the position `Page.next` of the previous page. `sees` is the name of an owner;
        only models that the owner uploaded are listed. None for all models.

        Raises:
            PositionError: if no model can have the position `after`.
        """
        with reading(self._engine) as connection:
            return _newest_first.page(connection, _query(sees), _model, limit, after)


def _query(sees: str | None) -> sa.Select[Any]:
    """Return a query for all models, or for the models that the owner `sees` has uploaded.

    An owner's models have the names that the owner gave them.
    """
    if sees is None:
        return sa.select(_models)
    columns = [_uploads.c.name if c is _models.c.name else c for c in _models.columns]
    mine = sa.and_(_uploads.c.digest == _models.c.digest, _uploads.c.owner == sees)
    return sa.select(*columns).join_from(_models, _uploads, mine)


def _get(connection: sa.Connection, digest: str, sees: str | None = None) -> UploadedModel:
    return _model(row_of_id(connection, _query(sees), _models.c.digest, digest, "model"))


def _model(row: sa.Row[Any]) -> UploadedModel:
    return UploadedModel(**row._mapping)
