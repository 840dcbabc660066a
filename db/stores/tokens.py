"""Bearer tokens: 256 random bits, of which only the SHA-256 is kept."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

import sqlalchemy as sa

from db.clock import Clock, system_clock


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
        """(secret, token). The secret is shown once; a given one (embedded mode) is kept as its
        digest, and giving the same again returns the token with these scopes."""
        raise NotImplementedError

    def verify(self, secret: str) -> Token | None:
        """The token, unless it is unknown, revoked or over."""
        raise NotImplementedError

    def revoke(self, token_id: str) -> Token:
        """Raises NotFoundError."""
        raise NotImplementedError

    def list(self) -> Sequence[Token]:
        raise NotImplementedError
