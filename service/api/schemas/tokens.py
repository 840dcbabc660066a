"""Request and response bodies for tokens and the audit log."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from tilewright.service.api.schemas.bodies import RequestBody, View, shown
from tilewright.service.api.schemas.fields import SHOWN_ID, Id, Name, Time

ScopeName = Literal["submit", "read", "measure", "admin"]


class TokenRequest(RequestBody):
    model_config = shown(name="ci", scopes=["submit", "read"], lifetime_seconds=86400.0)

    name: Name
    scopes: list[ScopeName] = Field(min_length=1, max_length=4)
    lifetime_seconds: float | None = Field(None, gt=0, allow_inf_nan=False)
    max_open_jobs: int | None = Field(
        None, ge=0, le=1_000_000, description="Quota; without, the service's setting"
    )
    max_running_jobs: int | None = Field(
        None, ge=0, le=1_000_000, description="Quota; without, the service's setting"
    )
    all_owners: bool = Field(
        False,
        description="Whether it sees the jobs and models of everybody; without, those of tokens "
        "of the same name alone",
    )


class TokenView(View):
    id: Id
    name: str = Field(examples=["ci"])
    scopes: list[str] = Field(examples=[["read", "submit"]])
    created_at: Time
    expires_at: Time | None
    revoked_at: Time | None
    max_open_jobs: int | None = None
    max_running_jobs: int | None = None
    all_owners: bool = Field(
        False, description="Whether it sees all jobs and models, as an admin does"
    )
    last_used_at: Time | None = Field(description="To within a minute or so")
    previous_until: Time | None = Field(description="Expiry of the secret before the last rotation")


class RotationRequest(RequestBody):
    model_config = shown(grace_seconds=600.0)

    grace_seconds: float = Field(3600.0, ge=0, le=30 * 86400.0, allow_inf_nan=False)
    lifetime_seconds: float | None = Field(None, gt=0, allow_inf_nan=False)


class AuditView(View):
    """An entry of the audit log.

    `actor` is a token's id, or "" for a command on the service's machine.
    """

    serial: int
    at: Time
    actor: Id
    actor_name: str = Field(examples=["ci"])
    origin: str = Field(examples=["192.0.2.7"])
    action: str = Field(examples=["token created"])
    subject: str = Field(examples=[SHOWN_ID])
    detail: dict[str, Any] = Field(examples=[{"name": "ci"}])


class NewTokenView(TokenView):
    """A token with its new secret. No other response contains the secret."""

    secret: str = Field(examples=["tw_3q2-7wEjRWeJq83v"])
