"""Bearer tokens: 256 random bits, of which only the SHA-256 is kept."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import sqlalchemy as sa

from db.clock import Clock, system_clock
from db.engine import reading, writing
from db.errors import NotFoundError
from db.models import TokenRow
from db.notices import TOKENS, announce
from db.stores.statements import table_of, upsert

_tokens = table_of(TokenRow)


class Scope(StrEnum):
    SUBMIT = "submit"  # upload models, create and cancel jobs
    READ = "read"  # look at jobs, records, workers
    MEASURE = "measure"  # register as a worker, lease, report
    ADMIN = "admin"  # everything, and tokens


@dataclass(frozen=True, slots=True)
class Token:
    id: str  # not secret
    name: str
    scopes: frozenset[Scope]
    created_at: float
    expires_at: float | None
    revoked_at: float | None

    def allows(self, scope: Scope) -> bool:
        """Whether the token may do this; admin may do everything."""
        return scope in self.scopes or Scope.ADMIN in self.scopes


class TokenStore:
    def __init__(self, engine: sa.Engine, clock: Clock = system_clock) -> None:
        self._engine = engine
        self._clock = clock

    def create(
        self,
        name: str,
        scopes: Collection[Scope],
        *,
        lifetime_seconds: float | None = None,
        secret: str | None = None,
    ) -> tuple[str, Token]:
        """(secret, token). The secret is shown once and not kept.

        A secret that is given (the embedded mode has one in a file) makes this idempotent: the
        token of that secret gets this name, these scopes and this lifetime. One that was revoked
        stays so.
        """
        secret = secret if secret is not None else secrets.token_urlsafe(32)
        now = self._clock()
        values = {
            "name": name,
            "scopes": sorted(scope.value for scope in scopes),
            "created_at": now,
            "expires_at": None if lifetime_seconds is None else now + lifetime_seconds,
        }
        with writing(self._engine) as connection:
            row = connection.execute(
                upsert(connection, _tokens)
                .values(id=secrets.token_hex(8), digest=_digest(secret), **values)
                .on_conflict_do_update(index_elements=[_tokens.c.digest], set_=values)
                .returning(_tokens)
            ).one()
            announce(connection, [TOKENS])
        return secret, _token(row)

    def verify(self, secret: str) -> Token | None:
        """The token, unless it is unknown, revoked or over."""
        token = self.find(secret)
        if token is None:
            return None
        over = token.expires_at is not None and token.expires_at <= self._clock()
        return None if over or token.revoked_at is not None else token

    def find(self, secret: str) -> Token | None:
        """The token of a secret, also one that is revoked or over."""
        digest = _digest(secret)
        with reading(self._engine) as connection:
            row = connection.execute(sa.select(_tokens).where(_tokens.c.digest == digest)).first()
        if row is None or not hmac.compare_digest(row.digest, digest):
            return None
        return _token(row)

    def revoke(self, token_id: str) -> Token:
        """End a token; one that is revoked already keeps its time. Raises NotFoundError."""
        revoked_at = sa.func.coalesce(_tokens.c.revoked_at, self._clock())
        with writing(self._engine) as connection:
            row = connection.execute(
                sa.update(_tokens)
                .where(_tokens.c.id == token_id)
                .values(revoked_at=revoked_at)
                .returning(_tokens)
            ).first()
            announce(connection, [TOKENS])
        if row is None:
            raise NotFoundError("token", token_id)
        return _token(row)

    def list(self) -> Sequence[Token]:
        """All tokens, oldest first; the revoked ones too."""
        query = sa.select(_tokens).order_by(_tokens.c.created_at, _tokens.c.id)
        with reading(self._engine) as connection:
            return [_token(row) for row in connection.execute(query)]


def _digest(secret: str) -> str:
    # Surrogates come from a header that is no UTF-8: such a secret is merely unknown.
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def _token(row: sa.Row[Any]) -> Token:
    scopes = frozenset(map(Scope, row.scopes))
    return Token(row.id, row.name, scopes, row.created_at, row.expires_at, row.revoked_at)
