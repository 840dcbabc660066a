"""Blobs: immutable bytes named by their SHA-256, each with a row in the database.

The bytes are stored separately (`BlobBytes`), in a folder or an object store. A row that refers to
a blob adds a reference in the same transaction. `BlobStore.sweep`, called periodically, deletes
blobs that have no references and were not used for a certain time.

The sweep deletes bytes outside of transactions, because an object store may be slow, and because on
SQLite no other transaction could write meanwhile. First it marks the rows and commits. Then it
quarantines the bytes, deletes the rows that still have the mark, and finally deletes the bytes. A
process that saves the same bytes waits until the row is deleted.

The process of a sweep may be killed or suspended. So the marks expire after a time, and the marked
blobs may then be used again. Their quarantined bytes are restored by the same sweep when it
resumes, or by the next one.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from tilewright.db.clock import Clock, instant, system_clock
from tilewright.db.engine import reading, writing
from tilewright.db.errors import NotFoundError, StorageError, StorageKind
from tilewright.db.models import BlobReferenceRow, BlobRow
from tilewright.db.stores.blob_bytes import BlobBytes, Staged, stage
from tilewright.db.stores.blob_references import held, stale
from tilewright.db.stores.statements import chunks, insert_new, table_of, upsert

_blobs = table_of(BlobRow)
_references = table_of(BlobReferenceRow)

TOUCH_SECONDS = 60.0
"""Minimum interval in seconds between two updates of a blob's stored time of last use."""

DOOMED_SECONDS = 300.0
"""Seconds until a blob's mark for deletion expires: longer than any store takes to delete a
batch."""

WAIT_SECONDS, _POLL_SECONDS = 30.0, 0.05
"""Longest wait and polling interval, in seconds, of a writer whose blob a sweep is just
deleting."""

_BATCH = 100


_YOUNG = sa.select(_blobs.c.digest, _blobs.c.bytes).where(
    _blobs.c.digest.in_(sa.bindparam("digests", expanding=True)),
    _blobs.c.touched_at > sa.bindparam("since"),
    _blobs.c.doomed_until.is_(None),
)


class BlobStore:
    """Stores blobs: their rows in the database, their bytes in a `BlobBytes`.

    Only `get` verifies that the bytes match their digest.
    """

    def __init__(self, engine: sa.Engine, place: BlobBytes, clock: Clock = system_clock) -> None:
        self._engine = engine
        self._clock = clock
        self._now = instant(None if clock is system_clock else clock)
        self.place = place

    def put(self, data: bytes) -> str:
        """Save bytes, and return their SHA-256 in hex.

        Bytes that are already stored are not written again.

        Raises:
            StorageError: if the bytes cannot be stored or the database fails; of kind LOCKED if the
                same bytes are just being deleted by `sweep`.
        """
        digest = hashlib.sha256(data).hexdigest()
        self._need({digest: len(data)})
        # existing bytes of another size are damaged: they are written again
        if self.place.size(digest) != len(data):
            with stage(self.place.staging, (data,)) as staged:
                self.place.keep(staged)
        return digest

    def put_stream(self, chunks: Iterable[bytes], max_bytes: int | None = None) -> tuple[str, int]:
        """Save a blob from an iterable of chunks. Return its digest and its size in bytes.

        The blob is never completely in memory.

        Raises:
            StorageError: if the bytes cannot be stored, or the database fails.
            TooManyBytesError: if the chunks together exceed `max_bytes`.
        """
        with self.staged(chunks, max_bytes) as staged:
            self.keep(staged)
            return staged.digest, staged.bytes

    def staged(
        self, chunks: Iterable[bytes], max_bytes: int | None = None
    ) -> AbstractContextManager[Staged]:
        """Open a context that yields a temporary file with all chunks, one after the other.

        The caller may inspect the file and save it with `keep`. Otherwise the end of the context
        deletes it.

        Raises:
            StorageError: if the bytes cannot be written.
            TooManyBytesError: if the chunks together exceed `max_bytes`.
        """
        return stage(self.place.staging, chunks, max_bytes)

    def keep(self, staged: Staged) -> None:
        """Save the temporary file of `staged` as a blob.

        Raises:
            StorageError: if the bytes cannot be stored, or the database fails.
        """
        # the row first: this waits for a sweep that is about to delete the same bytes
        self._need({staged.digest: staged.bytes})
        self.place.keep(staged)

    def touch(self, digests: Collection[str]) -> Set[str]:
        """Protect blobs from the next calls of `sweep`, as if they were newly saved.

        Return the digests whose blobs are stored.

        Raises:
            StorageError: if the database or the store of the bytes fails.
        """
        sizes = {digest: self.place.size(digest) for digest in set(digests)}
        there = {digest: size for digest, size in sizes.items() if size is not None}
        self._need(there)
        # a concurrent sweep has deleted a blob by now, or keeps it
        return {digest for digest in there if self.place.size(digest) is not None}

    def get(self, digest: str) -> bytes:
        """Return the bytes of a blob, after verifying their digest.

        Raises:
            NotFoundError: if no blob has the digest.
            StorageError: of the kind CORRUPT if the bytes do not match the digest.
        """
        data = b"".join(self.place.read(digest))
        if hashlib.sha256(data).hexdigest() != digest:
            raise StorageError(f"blob '{digest}' is damaged", StorageKind.CORRUPT)
        return data

    def read(self, digest: str, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """Yield a blob's bytes from `start` up to but excluding `end`, in chunks.

        `end` None means the end of the blob. The digest is not verified.

        Raises:
            NotFoundError: if no blob has the digest, or `digest` is not a digest.
        """
        return self.place.read(digest, start, end)

    def local(self, digest: str) -> AbstractContextManager[Path]:
        """Open a context that yields the path of a local file with a blob's bytes.

        The file must only be read. The digest is not verified.

        Raises:
            NotFoundError: if no blob has the digest.
        """
        return self.place.local(digest)

    def size(self, digest: str) -> int:
        """Return the size of a blob in bytes.

        Raises:
            NotFoundError: if no blob has the digest.
        """
        size = self.place.size(digest)
        if size is None:
            raise NotFoundError("blob", digest)
        return size

    def __contains__(self, digest: str) -> bool:
        return self.place.size(digest) is not None

    def digests(self) -> Iterator[str]:
        """Return an iterator over the digests of all stored blobs."""
        return (stored.digest for stored in self.place.list())

    def sweep(self, keep_seconds: float) -> int:
        """Delete blobs that have no references and were not saved or touched for `keep_seconds`.

        The waiting time protects a new blob until a row refers to it. Return the freed bytes.
        Several processes may call it concurrently.

        Raises:
            StorageError: if the store of the bytes fails. Blobs deleted before the failure have
                lost their rows too. Those that were being deleted stay marked for a while, because
                their bytes may still disappear.
        """
        limit = self._clock() - keep_seconds
        freed = self.place.remove_left_overs(limit)
        self._bring_back()
        self._adopt()
        self._release()
        while (bytes_gone := self._remove_some(limit)) is not None:
            freed += bytes_gone
        return freed

    def _need(self, sizes: Mapping[str, int]) -> None:
        """Protect blobs from deletion: create their rows, or renew the time of their last use.

        If `sweep` is just deleting one of the blobs, wait until it has finished.

        Args:
            sizes: the size in bytes of each blob, by digest.

        Raises:
            StorageError: of kind LOCKED if the wait takes longer than WAIT_SECONDS.
        """
        now = self._clock()
        left = dict(sizes)
        if not left:
            return
        with reading(self._engine) as connection:
            for some in chunks(sorted(sizes)):
                known = {"digests": list(some), "since": now - TOUCH_SECONDS}
                for digest, size in connection.execute(_YOUNG, known):
                    if left[digest] == size:
                        del left[digest]
        ends = time.monotonic() + WAIT_SECONDS
        while left:
            rows = [
                {"digest": digest, "bytes": left[digest], "created_at": now, "touched_at": now}
                for digest in sorted(left)  # in the order in which all code locks several rows
            ]
            for digest in self._make_young(rows):
                del left[digest]
            if left and time.monotonic() >= ends:
                raise StorageError(f"blob '{min(left)}' is being deleted", StorageKind.LOCKED)
            if left:
                time.sleep(_POLL_SECONDS)

    def _make_young(self, rows: Sequence[dict[str, Any]]) -> Sequence[str]:
        """Insert or renew the rows of blobs, except rows that a sweep has marked for deletion.

        Return the digests whose rows were written.
        """
        with writing(self._engine) as connection:
            insert = upsert(connection, _blobs)
            again = {name: insert.excluded[name] for name in ("bytes", "touched_at")}
            insert = insert.on_conflict_do_update(
                index_elements=[_blobs.c.digest],
                set_={**again, "doomed_until": None},
                where=sa.not_(self._doomed()),
            )
            written = connection.execute(insert.returning(_blobs.c.digest), list(rows))
            return written.scalars().all()

    def _doomed(self) -> sa.ColumnElement[bool]:
        """Return the SQL condition that a blob has a valid (not expired) mark for deletion."""
        return sa.and_(_blobs.c.doomed_until.is_not(None), _blobs.c.doomed_until > self._now())

    def _bring_back(self) -> None:
        """Clean up the quarantined bytes that killed sweeps left behind.

        Bytes whose blob has a row are restored; bytes without a row are deleted. If the row is
        marked for deletion and the mark has not expired, another sweep may be deleting the bytes,
        so they are left alone.
        """
        for some in chunks(self.place.all_quarantined()):
            query = sa.select(_blobs.c.digest, self._doomed().label("doomed"))
            with reading(self._engine) as connection:
                rows = connection.execute(
                    query.where(_blobs.c.digest.in_([a.digest for a in some]))
                )
                doomed = {row.digest: row.doomed for row in rows}
            # a sweep may be deleting the marked ones
            self.place.restore_quarantined([one for one in some if doomed.get(one.digest) is False])
            self.place.discard([one for one in some if one.digest not in doomed])

    def _adopt(self) -> None:
        """Insert rows for stored bytes that have none, such as files copied into the folder."""
        with reading(self._engine) as connection:
            known = set(connection.execute(sa.select(_blobs.c.digest)).scalars())
        rows = [
            {
                "digest": stored.digest,
                "bytes": stored.bytes,
                "created_at": stored.modified_at,
                "touched_at": stored.modified_at,
            }
            for stored in self.place.list()
            if stored.digest not in known
        ]
        for some in chunks(rows):
            with writing(self._engine) as connection:
                insert_new(connection, _blobs, list(some))

    def _release(self) -> None:
        """Delete references to blobs from rows that no longer exist or no longer need the blobs."""
        with reading(self._engine) as connection:  # mostly nothing is due: take no write lock
            first = sa.select(_references.c.digest).where(stale()).limit(1)
            if connection.execute(first).first() is None:
                return
        with writing(self._engine) as connection:
            connection.execute(sa.delete(_references).where(stale()))

    def _remove_some(self, limit: float) -> int | None:
        """Delete a batch of blobs that have no references and were last used before `limit`.

        Return the freed bytes; None if no such blob is left.
        """
        unwanted = (
            sa.select(_blobs.c.digest)
            .where(
                _blobs.c.touched_at < limit,
                sa.not_(held(_blobs.c.digest)),
                sa.not_(self._doomed()),
            )
            .limit(_BATCH)
        )
        with reading(self._engine) as connection:
            if connection.execute(unwanted).first() is None:
                return None
        with writing(self._engine) as connection:
            locked = unwanted.with_for_update(skip_locked=True)
            digests = list(connection.execute(locked).scalars())
            # checked again under the lock: a blob may have got a reference meanwhile
            mark = (
                sa.update(_blobs)
                .where(_blobs.c.digest.in_(digests), sa.not_(held(_blobs.c.digest)))
                .values(doomed_until=self._now() + DOOMED_SECONDS)
                .returning(_blobs.c.digest, _blobs.c.bytes, _blobs.c.doomed_until)
            )
            gone = connection.execute(mark).all()
        if not gone:
            return None
        names = [row.digest for row in gone]
        aside = self.place.quarantine(names)
        with writing(self._engine) as connection:
            # by the mark: an expired one may belong to another sweep by now
            mine = _blobs.c.doomed_until == gone[0].doomed_until
            delete = sa.delete(_blobs).where(_blobs.c.digest.in_(names), mine)
            deleted = set(connection.execute(delete.returning(_blobs.c.digest)).scalars())
        self.place.restore_quarantined([one for one in aside if one.digest not in deleted])
        self.place.discard([one for one in aside if one.digest in deleted])
        freed: int = sum(row.bytes for row in gone if row.digest in deleted)
        return freed
