"""Idempotency keys: a client may repeat a request with the same key; it is executed only once.

A request is in flight until its response is stored. The process that executes it holds the key's
row for a limited time, and extends that time periodically. If the process dies, the next repetition
of the request is executed instead. The store does not interpret the bytes of a response.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

import sqlalchemy as sa

from tilewright.db.clock import Clock, instant
from tilewright.db.engine import reading, writing
from tilewright.db.errors import KeyInFlightError, KeyMismatchError
from tilewright.db.models import IdempotencyRow
from tilewright.db.stores.statements import table_of, upsert

_keys = table_of(IdempotencyRow)

HELD_SECONDS = 30.0
"""Seconds for which a request counts as in progress, unless the process that serves it renews the
entry."""


@dataclass(frozen=True, slots=True)
class HeldKey:
    """The exclusive right of one process to execute the request with an idempotency key.

    Attributes:
        token_id: the token of the request. Each token has separate keys.
        key: the idempotency key.
        holder: a random name for this execution.
    """

    token_id: str
    key: str
    holder: str


@dataclass(frozen=True, slots=True)
class Answered:
    """The stored response to the first request with an idempotency key: HTTP status and body."""

    status: int
    answer: bytes


class IdempotencyStore:
    """Stores the idempotency keys of each token, with their requests' digests and responses."""

    def __init__(self, engine: sa.Engine, clock: Clock | None = None) -> None:
        self._engine = engine
        self._now = instant(clock)

    def begin(self, token_id: str, key: str, digest: str) -> HeldKey | Answered:
        """Acquire the right to execute a request, or return the stored response to it.

        Args:
            token_id: the token of the request.
            key: the idempotency key.
            digest: a digest of the request: method, path, query and body.

        Raises:
            KeyMismatchError: if the key was used for a request with another digest.
            KeyInFlightError: if the request is being executed now.
        """
        now = self._now()
        held = HeldKey(token_id, key, uuid.uuid4().hex)
        fresh = {
            "digest": digest,
            "holder": held.holder,
            "until": now + HELD_SECONDS,
            "created_at": now,
        }
        with writing(self._engine) as connection:
            taken = (
                upsert(connection, _keys)
                .values(token_id=token_id, key=key, **fresh)
                .on_conflict_do_update(
                    index_elements=[_keys.c.token_id, _keys.c.key],
                    set_=fresh,
                    where=sa.and_(_keys.c.status.is_(None), _keys.c.until <= now),
                )
                .returning(_keys.c.holder)
            )
            if connection.execute(taken).first() is not None:
                return held
            same = sa.and_(_keys.c.token_id == token_id, _keys.c.key == key)
            row = connection.execute(sa.select(_keys).where(same)).one()
        if row.digest != digest:
            raise KeyMismatchError(f"the key '{key}' was used for another request")
        if row.status is None:
            raise KeyInFlightError(f"the first request with the key '{key}' is being answered")
        return Answered(row.status, row.answer)

    def renew(self, held: HeldKey) -> None:
        """Extend the time for which this process may execute the request of a key."""
        self._update(held, until=self._now() + HELD_SECONDS)

    def finish(self, held: HeldKey, status: int, answer: bytes) -> None:
        """Store the response to a request.

        Does nothing if another process has taken over the request.
        """
        self._update(held, status=status, answer=answer)

    def release(self, held: HeldKey) -> None:
        """Delete the key of a request that had no effect, so that the client can send it again."""
        with writing(self._engine) as connection:
            connection.execute(sa.delete(_keys).where(_mine(held)))

    def remove(self, kept_seconds: float) -> int:
        """Delete keys older than `kept_seconds`, except those whose request is in flight.

        Return the number of deleted keys.
        """
        now = self._now()
        old = sa.and_(_keys.c.created_at < now - kept_seconds, _keys.c.until <= now)
        with reading(self._engine) as connection:  # mostly nothing is due: take no write lock
            if connection.execute(sa.select(_keys.c.key).where(old).limit(1)).first() is None:
                return 0
        with writing(self._engine) as connection:
            return connection.execute(sa.delete(_keys).where(old)).rowcount

    def _update(self, held: HeldKey, **values: object) -> None:
        with writing(self._engine) as connection:
            connection.execute(sa.update(_keys).where(_mine(held)).values(values))


def _mine(held: HeldKey) -> sa.ColumnElement[bool]:
    return sa.and_(
        _keys.c.token_id == held.token_id,
        _keys.c.key == held.key,
        _keys.c.holder == held.holder,
        _keys.c.status.is_(None),
    )
