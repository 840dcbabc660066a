"""Tables for access control: tokens, rate limits, idempotency keys, and the audit log."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from tilewright.db.models.base import Base, Json
from tilewright.db.types import SerialId


class TokenRow(Base):
    __tablename__ = "tokens"

    id: Mapped[str] = mapped_column(primary_key=True)
    digest: Mapped[str] = mapped_column(unique=True)  # sha256 of the secret
    name: Mapped[str]
    scopes: Mapped[list[Any]]
    created_at: Mapped[float]
    expires_at: Mapped[float | None]
    revoked_at: Mapped[float | None]
    # quotas; NULL: those of the service's settings
    max_open_jobs: Mapped[int | None]
    max_running_jobs: Mapped[int | None]
    last_used_at: Mapped[float | None]
    # the secret before the last rotation, and the end of its validity
    previous_digest: Mapped[str | None] = mapped_column(unique=True)
    previous_until: Mapped[float | None]
    # whether it sees the jobs and models of all owners, not only those of tokens with its name
    all_owners: Mapped[bool]


class RateLimitRow(Base):
    """A token bucket that limits the rate of a client's requests.

    Attributes:
        bucket: the name of the bucket.
        level: the remaining tokens of the bucket at time `at`.
        at: seconds since the epoch.
    """

    __tablename__ = "rate_limits"

    bucket: Mapped[str] = mapped_column(primary_key=True)
    level: Mapped[float]
    at: Mapped[float]


class IdempotencyRow(Base):
    """A request that was sent with an idempotency key, and the response to it.

    A client that repeats the request gets the stored response, and the request is not executed
    again.

    Attributes:
        digest: a digest of the request: method, path, query and body.
        holder: a random name of the request's execution.
        until: the time until which only this execution may answer the request.
        status, answer: the status and the body of the response; None until the execution ends.
    """

    __tablename__ = "idempotency_keys"

    token_id: Mapped[str] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(primary_key=True)
    digest: Mapped[str]  # of method, path, query and body
    holder: Mapped[str]  # the process that answers it
    until: Mapped[float]  # when another process may take over, if no answer is stored
    status: Mapped[int | None]
    answer: Mapped[bytes | None] = mapped_column(sa.LargeBinary)
    created_at: Mapped[float] = mapped_column(index=True)


class AuditRow(Base):
    """An entry of the audit log: the time and actor of an administrative action, and its subject.

    The origin is the client's address, or the user and host of a local command.
    """

    __tablename__ = "audit"

    serial: Mapped[int] = mapped_column(SerialId, primary_key=True, autoincrement=True)
    at: Mapped[float] = mapped_column(index=True)
    actor: Mapped[str]  # a token's id; "" for a command on the service's own machine
    actor_name: Mapped[str]
    origin: Mapped[str]
    action: Mapped[str]
    subject: Mapped[str]
    detail: Mapped[Json]
