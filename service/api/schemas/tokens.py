"""Tokens and the audit log, as they travel over HTTP."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from service.api.schemas.bodies import RequestBody, View
from service.api.schemas.fields import Name

ScopeName = Literal["submit", "read", "measure", "admin"]


class TokenRequest(RequestBody):
    name: Name
    scopes: list[ScopeName] = Field(min_length=1, max_length=4)
    lifetime_seconds: float | None = Field(None, gt=0, allow_inf_nan=False)
    max_open_jobs: int | None = Field(
        None, ge=0, le=1_000_000, description="Quota; without, the service's setting"
    )
    max_running_jobs: int | None = Field(
        None, ge=0, le=1_000_000, description="Quota; without, the service's setting"
    )


class TokenView(View):
    id: str
    name: str
    scopes: list[str]
    created_at: float
    expires_at: float | None
    revoked_at: float | None
    max_open_jobs: int | None = None
    max_running_jobs: int | None = None
    last_used_at: float | None = Field(description="To within a minute or so")
    previous_until: float | None = Field(
        description="Until when the secret before the last rotation is taken"
    )


class RotationRequest(RequestBody):
    grace_seconds: float = Field(3600.0, ge=0, le=30 * 86400.0, allow_inf_nan=False)
    lifetime_seconds: float | None = Field(None, gt=0, allow_inf_nan=False)


class AuditView(View):
    """One act; `actor` is a token's id, or "" for a command on the service's own machine."""

    serial: int
    at: float
    actor: str
    actor_name: str
    origin: str
    action: str
    subject: str
    detail: dict[str, Any]


class NewTokenView(TokenView):
    """The only time that the secret is shown."""

    secret: str
