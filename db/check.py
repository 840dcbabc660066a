"""Checks that the rows, the blobs and the schema of a database are consistent."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import sqlalchemy as sa

from tilewright.db.engine import reading
from tilewright.db.errors import NotFoundError
from tilewright.db.migrate import current_revision, head_revision
from tilewright.db.models import BlobReferenceRow, BlobRow
from tilewright.db.stores.blob_bytes import BlobBytes
from tilewright.db.stores.blob_references import named_by_rows, stale
from tilewright.db.stores.statements import table_of

_blobs = table_of(BlobRow)
_references = table_of(BlobReferenceRow)


class Severity(StrEnum):
    NOTE = "note"  # the sweep corrects it
    ERROR = "error"  # data is lost, or will be


@dataclass(frozen=True, slots=True)
class Finding:
    """An inconsistency that `check` found.

    Attributes:
        severity: a note if the regular clean-up corrects it; an error if data is or will be lost.
        what: the description, one sentence for users.
    """

    severity: Severity
    what: str


def check(engine: sa.Engine, place: BlobBytes, *, deep: bool = False) -> Iterator[Finding]:
    """Check the database and the blobs without changing them, and yield the findings one by one.

    If the database is not at this release's schema revision, that is the only finding.

    Args:
        engine: the database.
        place: the store of the blobs' bytes.
        deep: whether to read every blob and compare its digest, and to run SQLite's integrity
            check.

    Raises:
        StorageError: if the database or the blobs cannot be read.
    """
    current, head = current_revision(engine), head_revision()
    if current != head:
        said = "was never migrated" if current is None else f"is at revision {current}"
        yield _error(f"the database {said}, this release is at {head}: `tilewright db migrate`")
        return
    if deep and engine.dialect.name == "sqlite":
        with reading(engine) as connection:
            for line in connection.exec_driver_sql("PRAGMA integrity_check").scalars():
                if line != "ok":
                    yield _error(f"the database file: {line}")
    stored = {each.digest: each.bytes for each in place.list()}
    with reading(engine) as connection:
        rows = {row.digest: row.bytes for row in connection.execute(sa.select(_blobs))}
        held = {
            (row.kind, row.holder, row.digest)
            for row in connection.execute(sa.select(_references).where(sa.not_(stale())))
        }
        over = connection.execute(sa.select(sa.func.count()).where(stale())).scalar() or 0
        named = set(named_by_rows(connection))
    for kind, holder, digest in sorted(named | held):
        if digest not in stored:
            yield _error(f"the bytes of blob {digest} are missing: {kind} of '{holder}'")
        elif (kind, holder, digest) not in held:
            yield _error(f"blob {digest} is not held by its {kind} of '{holder}'")
    for digest, size in sorted(rows.items()):
        if digest in stored and stored[digest] != size:
            yield _error(f"blob {digest} has {stored[digest]} bytes, it should have {size}")
    if deep:
        for digest in sorted(stored):
            if _digest(place, digest) not in (digest, None):
                yield _error(f"blob {digest} has other bytes than its name says")
    needed = {digest for _, _, digest in held}
    orphans = [size for digest, size in stored.items() if digest not in needed]
    if orphans:
        yield _note(f"{len(orphans)} blobs of {sum(orphans)} bytes that nothing refers to")
    if over:
        yield _note(f"{over} references whose holder is gone")


def _digest(place: BlobBytes, digest: str) -> str | None:
    """Compute the SHA-256 of a blob's stored bytes, in hex.

    Return None if the blob was deleted since `check` listed it.
    """
    hasher = hashlib.sha256()
    try:
        for chunk in place.read(digest):
            hasher.update(chunk)
    except NotFoundError:
        return None
    return hasher.hexdigest()


def _error(what: str) -> Finding:
    return Finding(Severity.ERROR, what)


def _note(what: str) -> Finding:
    return Finding(Severity.NOTE, what)
