"""Routes of tokens: create, list, rotate, revoke."""

from __future__ import annotations

from fastapi import APIRouter

from tilewright.db.stores.audit import Action
from tilewright.db.stores.tokens import Scope
from tilewright.service.api.audit import AuditDep
from tilewright.service.api.deps import Admin, SettingsDep, StorageDep
from tilewright.service.api.gate import GatedRoute
from tilewright.service.api.pages import PagesDep
from tilewright.service.api.schemas.tokens import (
    NewTokenView,
    RotationRequest,
    TokenRequest,
    TokenView,
)
from tilewright.service.api.views import token_view
from tilewright.service.embedded import is_owner_token, keep_owner_token

router = APIRouter(tags=["tokens"], route_class=GatedRoute)


@router.post("/tokens", status_code=201)
def create_token(
    body: TokenRequest, storage: StorageDep, audit: AuditDep, _: Admin
) -> NewTokenView:
    """Create a token. Only this response contains its secret."""
    with storage.together():
        secret, token = storage.tokens.create(
            body.name,
            [Scope(scope) for scope in body.scopes],
            lifetime_seconds=body.lifetime_seconds,
            max_open_jobs=body.max_open_jobs,
            max_running_jobs=body.max_running_jobs,
            all_owners=body.all_owners,
        )
        audit(
            Action.TOKEN_CREATED,
            token.id,
            name=token.name,
            scopes=sorted(token.scopes),
            all_owners=token.all_owners,
            expires_at=token.expires_at,
        )
    return NewTokenView(secret=secret, **token_view(token).model_dump())


@router.get("/tokens")
def list_tokens(storage: StorageDep, _: Admin, pages: PagesDep) -> list[TokenView]:
    """List all tokens without their secrets, oldest first, including revoked tokens."""
    found = storage.tokens.list(limit=pages.limit, after=pages.after)
    return [token_view(token) for token in pages.linked(found)]


@router.post("/tokens/{token_id}/rotate")
def rotate_token(
    token_id: str,
    body: RotationRequest,
    storage: StorageDep,
    settings: SettingsDep,
    audit: AuditDep,
    _: Admin,
) -> NewTokenView:
    """Give a token a new secret. Only this response contains it.

    The old secret stays valid for `grace_seconds`. The service stores one token, that of its owner,
    as a file in its data folder. If this token is rotated, the file gets the new secret.
    """
    with storage.together():
        secret, token = storage.tokens.rotate(
            token_id, grace_seconds=body.grace_seconds, lifetime_seconds=body.lifetime_seconds
        )
        audit(Action.TOKEN_ROTATED, token.id, name=token.name, grace_seconds=body.grace_seconds)
    if is_owner_token(settings, storage, token.id):  # the previous secret counts too
        keep_owner_token(settings, secret)
    return NewTokenView(secret=secret, **token_view(token).model_dump())


@router.delete("/tokens/{token_id}")
def revoke_token(token_id: str, storage: StorageDep, audit: AuditDep, _: Admin) -> TokenView:
    """Revoke a token. It becomes invalid at once."""
    with storage.together():
        token = storage.tokens.revoke(token_id)
        audit(Action.TOKEN_REVOKED, token.id, name=token.name)
    return token_view(token)
