"""Bearer tokens of the API. A token's secret has 256 random bits; only its SHA-256 is stored."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import sqlalchemy as sa

from tilewright.db.clock import Clock, system_clock
from tilewright.db.engine import reading, writing
from tilewright.db.errors import StateError
from tilewright.db.models import TokenRow
from tilewright.db.notices import TOKENS, announce
from tilewright.db.stores.ids import id_of
from tilewright.db.stores.pages import Page, PageOrder, Position
from tilewright.db.stores.statements import chunks, table_of, upsert

_tokens = table_of(TokenRow)
_oldest_first = PageOrder((_tokens.c.created_at, _tokens.c.id), descending=False)

USED_SECONDS = 60.0
"""Minimum interval in seconds between two updates of a token's stored time of last use. Most uses
therefore write nothing."""


class Scope(StrEnum):
    SUBMIT = "submit"  # upload models, create and cancel jobs
    READ = "read"  # read jobs, records, workers
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
    last_used_at: float | None = None
    previous_until: float | None = None  # end of validity of the secret before the last rotation
    max_open_jobs: int | None = None  # None: the service's setting
    max_running_jobs: int | None = None
    all_owners: bool = False  # sees the jobs and models of all owners

    @property
    def sees(self) -> str | None:
        """Return the owner whose jobs and models the token may see; None for all owners.

        The owner is a name: all tokens with the same name belong to one owner. Admins see the jobs
        and models of all owners.
        """
        return None if self.all_owners or Scope.ADMIN in self.scopes else self.name

    def allows(self, scope: Scope) -> bool:
        """Whether the token has this scope. The scope `admin` includes all others."""
        return scope in self.scopes or Scope.ADMIN in self.scopes


def new_secret() -> str:
    """Create a token's secret: "tw_" and 256 random bits as text.

    Because of the prefix, no secret can be mistaken for a command-line option, and leak scanners
    can recognise one.
    """
    return "tw_" + secrets.token_urlsafe(32)


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
        max_open_jobs: int | None = None,
        max_running_jobs: int | None = None,
        all_owners: bool = False,
    ) -> tuple[str, Token]:
        """Create a token. Return its secret, which is not stored, and the token.

        If `secret` belongs to an existing token, no new token is created. The existing token gets
        the given properties; a revoked token stays revoked. So a process that keeps its secret in a
        file can call this method at every start.

        Args:
            name: the owner's name; tokens with the same name have one owner.
            scopes: the allowed kinds of requests.
            lifetime_seconds: seconds until the token expires; None for never.
            secret: the secret; by default a new one.
            max_open_jobs, max_running_jobs: quotas; None for the quotas of the service's settings.
            all_owners: whether the token sees the jobs and models of all owners; otherwise it sees
                only those of tokens with its name.
        """
        secret = secret if secret is not None else new_secret()
        now = self._clock()
        values = {
            "name": name,
            "scopes": sorted(scope.value for scope in scopes),
            "expires_at": None if lifetime_seconds is None else now + lifetime_seconds,
            "max_open_jobs": max_open_jobs,
            "max_running_jobs": max_running_jobs,
            "all_owners": all_owners,
        }
        with writing(self._engine) as connection:
            row = connection.execute(
                upsert(connection, _tokens)
                .values(id=secrets.token_hex(8), digest=_digest(secret), created_at=now, **values)
                .on_conflict_do_update(index_elements=[_tokens.c.digest], set_=values)
                .returning(_tokens)
            ).one()
            announce(connection, [TOKENS])
        return secret, _token(row)

    def verify(self, secret: str) -> Token | None:
        """Return the token with this secret; None if it is unknown, revoked or expired."""
        found = self._find(secret)
        if found is None:
            return None
        token, rotated = found
        now = self._clock()
        over = token.expires_at is not None and token.expires_at <= now
        if rotated:
            over = over or token.previous_until is None or token.previous_until <= now
        return None if over or token.revoked_at is not None else token

    def find(self, secret: str) -> Token | None:
        """Return the token that has this secret, or that had it before its last rotation.

        Return None if there is no such token. Unlike `verify`, this method also finds revoked and
        expired tokens.
        """
        found = self._find(secret)
        return None if found is None else found[0]

    def holds(self, secret: str) -> bool:
        """Whether a secret is the current secret of a token that was not revoked."""
        found = self._find(secret)
        return found is not None and not found[1] and found[0].revoked_at is None

    def names(self, token_ids: Collection[str]) -> Mapping[str, str]:
        """Return the names of tokens by id, including revoked ones. Unknown ids are left out."""
        found: dict[str, str] = {}
        with reading(self._engine) as connection:
            for some in chunks(sorted(set(token_ids))):
                query = sa.select(_tokens.c.id, _tokens.c.name).where(_tokens.c.id.in_(some))
                found.update({row.id: row.name for row in connection.execute(query)})
        return found

    def rotate(
        self, token_id: str, *, grace_seconds: float, lifetime_seconds: float | None = None
    ) -> tuple[str, Token]:
        """Give a token a new secret. Return the secret and the token.

        Args:
            token_id: the id, or a unique prefix of it.
            grace_seconds: how long the previous secret stays valid. Older secrets become invalid at
                once.
            lifetime_seconds: seconds from now until the token expires; None keeps its expiry.

        Raises:
            NotFoundError: if no token has this id, or several ids start with it.
            StateError: if the token was revoked.
        """
        secret = new_secret()
        now = self._clock()
        values: dict[str, Any] = {
            "previous_digest": _tokens.c.digest,
            "previous_until": now + grace_seconds,
            "digest": _digest(secret),
        }
        if lifetime_seconds is not None:
            values["expires_at"] = now + lifetime_seconds
        with writing(self._engine) as connection:
            token_id = id_of(connection, _tokens.c.id, token_id, "token")
            row = connection.execute(
                sa.update(_tokens)
                .where(_tokens.c.id == token_id, _tokens.c.revoked_at.is_(None))
                .values(values)
                .returning(_tokens)
            ).first()
            if row is None:
                raise StateError(f"token '{token_id}' was revoked: make a new one")
            announce(connection, [TOKENS])
        return secret, _token(row)

    def used(self, token_id: str) -> None:
        """Set the time of a token's last use to now.

        Raises:
            StorageError: if the database fails.
        """
        with writing(self._engine) as connection:
            update = sa.update(_tokens).where(_tokens.c.id == token_id)
            connection.execute(update.values(last_used_at=self._clock()))

    def use_is_old(self, token: Token) -> bool:
        """Whether the stored time of a token's last use is at least 60 s old.

        The caller then updates it with `used`.
        """
        last = token.last_used_at
        return last is None or self._clock() - last >= USED_SECONDS

    def _find(self, secret: str) -> tuple[Token, bool] | None:
        """Return the token with a secret, and whether a rotation has replaced this secret."""
        digest = _digest(secret)
        query = sa.select(_tokens).where(
            sa.or_(_tokens.c.digest == digest, _tokens.c.previous_digest == digest)
        )
        with reading(self._engine) as connection:
            row = connection.execute(query).first()
        if row is None:
            return None
        if hmac.compare_digest(row.digest, digest):
            return _token(row), False
        return _token(row), True

    def revoke(self, token_id: str) -> Token:
        """Revoke a token, and return it.

        If it was revoked before, the time of revocation does not change.

        Raises:
            NotFoundError: if no token has this id, or several ids start with it.
        """
        revoked_at = sa.func.coalesce(_tokens.c.revoked_at, self._clock())
        with writing(self._engine) as connection:
            token_id = id_of(connection, _tokens.c.id, token_id, "token")
            row = connection.execute(
                sa.update(_tokens)
                .where(_tokens.c.id == token_id)
                .values(revoked_at=revoked_at)
                .returning(_tokens)
            ).one()
            announce(connection, [TOKENS])
        return _token(row)

    def list(self, *, limit: int | None = None, after: Position | None = None) -> Page[Token]:
        """Return a page of all tokens, oldest first, including revoked ones.

        `after` is the position `Page.next` of the previous page.

        Raises:
            PositionError: if no token can have the position `after`.
        """
        with reading(self._engine) as connection:
            return _oldest_first.page(connection, sa.select(_tokens), _token, limit, after)


def _digest(secret: str) -> str:
    # Surrogates come from a header that is not UTF-8: such a secret is unknown.
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def _token(row: sa.Row[Any]) -> Token:
    return Token(
        id=row.id,
        name=row.name,
        scopes=frozenset(map(Scope, row.scopes)),
        created_at=row.created_at,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
        last_used_at=row.last_used_at,
        previous_until=row.previous_until,
        max_open_jobs=row.max_open_jobs,
        max_running_jobs=row.max_running_jobs,
        all_owners=row.all_owners,
    )
