from __future__ import annotations

import hashlib
from typing import Any

import pytest
import sqlalchemy as sa

from tilewright.db.engine import reading
from tilewright.db.errors import NotFoundError, StateError
from tilewright.db.models import TokenRow
from tilewright.db.stores.statements import table_of
from tilewright.db.stores.tokens import USED_SECONDS, Scope, TokenStore


def test_only_the_digest_is_kept(tokens: TokenStore, engine: sa.Engine) -> None:
    secret, token = tokens.create("ci", [Scope.SUBMIT, Scope.READ])
    assert len(secret) >= 43  # 256 bits in base64
    with reading(engine) as connection:
        row = connection.execute(sa.select(table_of(TokenRow))).one()
    assert row.digest == hashlib.sha256(secret.encode()).hexdigest()
    assert secret not in str(row)
    assert token.scopes == {Scope.SUBMIT, Scope.READ}
    assert tokens.verify(secret) == token
    assert tokens.create("ci", [])[0] != secret


def test_no_secret_looks_like_an_option(
    tokens: TokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of 64 began with a hyphen, and `tilewright server worker --token -x` is not a valid
    command."""
    monkeypatch.setattr("secrets.token_urlsafe", lambda size: "-" * size)
    secret, token = tokens.create("ci", [Scope.READ])
    rotated, _ = tokens.rotate(token.id, grace_seconds=0.0)
    assert not secret.startswith("-") and not rotated.startswith("-")


@pytest.mark.parametrize("secret", ["", "x", "\udc80", "\x00", "é" * 1000])
def test_unknown_secrets(tokens: TokenStore, secret: str) -> None:
    tokens.create("ci", [Scope.ADMIN])
    assert tokens.verify(secret) is None


def test_scopes(tokens: TokenStore) -> None:
    _, worker = tokens.create("worker", [Scope.MEASURE])
    assert worker.allows(Scope.MEASURE)
    assert not any(worker.allows(s) for s in (Scope.SUBMIT, Scope.READ, Scope.ADMIN))
    _, admin = tokens.create("admin", [Scope.ADMIN])
    assert all(admin.allows(scope) for scope in Scope)


def test_revoked_and_over(tokens: TokenStore, clock: Any) -> None:
    secret, token = tokens.create("ci", [Scope.READ], lifetime_seconds=60)
    clock.advance(59)
    assert tokens.verify(secret) == token
    clock.advance(1)
    assert tokens.verify(secret) is None
    other, token = tokens.create("other", [Scope.READ])
    assert tokens.revoke(token.id).revoked_at == clock()
    assert tokens.verify(other) is None
    first = clock()
    clock.advance(5)
    assert tokens.revoke(token.id).revoked_at == first
    with pytest.raises(NotFoundError):
        tokens.revoke("nope")
    assert [t.name for t in tokens.list()] == ["ci", "other"]


def test_a_given_secret_is_one_token(tokens: TokenStore, clock: Any) -> None:
    secret, first = tokens.create("embedded", [Scope.READ], secret="from a file")
    assert secret == "from a file"
    clock.advance(5)
    _, again = tokens.create("embedded", [Scope.ADMIN], secret="from a file")
    assert (again.id, again.created_at) == (first.id, first.created_at)
    assert tokens.verify(secret) == again
    assert again.scopes == {Scope.ADMIN}
    assert len(tokens.list()) == 1


def test_a_rotated_token_takes_both_secrets_for_a_while(tokens: TokenStore, clock: Any) -> None:
    first, token = tokens.create("ci", [Scope.READ])
    second, rotated = tokens.rotate(token.id, grace_seconds=60)
    assert (rotated.id, rotated.scopes) == (token.id, token.scopes) and second != first
    assert tokens.verify(first) == tokens.verify(second) == rotated
    assert tokens.holds(second) and not tokens.holds(first)
    third, _ = tokens.rotate(token.id, grace_seconds=60)
    assert tokens.verify(first) is None, "two rotations ago"
    clock.advance(60)
    assert tokens.verify(second) is None and tokens.verify(third) is not None
    # its owner is known for ever: no new token may have an old secret
    assert tokens.find(second) == tokens.find(third)


def test_rotation_ends_at_the_end_of_the_token(tokens: TokenStore, clock: Any) -> None:
    first, token = tokens.create("ci", [Scope.READ], lifetime_seconds=100)
    second, _ = tokens.rotate(token.id, grace_seconds=1000)
    clock.advance(100)
    assert tokens.verify(first) is None and tokens.verify(second) is None
    third, again = tokens.rotate(token.id, grace_seconds=0, lifetime_seconds=50)
    assert again.expires_at == clock() + 50
    assert tokens.verify(third) == again and tokens.verify(second) is None
    tokens.revoke(token.id)
    assert tokens.verify(third) is None
    with pytest.raises(StateError, match="was revoked"):
        tokens.rotate(token.id, grace_seconds=0)
    with pytest.raises(NotFoundError):
        tokens.rotate("nope", grace_seconds=0)


def test_the_last_use_is_noted_now_and_then(tokens: TokenStore, clock: Any) -> None:
    secret, token = tokens.create("ci", [Scope.READ])
    assert token.last_used_at is None and tokens.use_is_old(token)
    tokens.used(token.id)
    noted = tokens.verify(secret)
    assert noted is not None and noted.last_used_at == clock()
    assert not tokens.use_is_old(noted)
    clock.advance(USED_SECONDS)
    assert tokens.use_is_old(noted)


def test_tokens_are_listed_as_they_were_made(tokens: TokenStore, clock: Any) -> None:
    names = [f"token {number}" for number in range(12)]
    for name in names:
        tokens.create(name, [Scope.READ])
        clock.advance(1)
    assert [token.name for token in tokens.list()] == names
