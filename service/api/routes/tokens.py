"""Making and revoking tokens."""

from __future__ import annotations

from fastapi import APIRouter

from db.stores.tokens import Scope
from service.api.deps import Admin, StorageDep
from service.api.gate import GatedRoute
from service.api.schemas import NewTokenView, TokenRequest, TokenView
from service.api.views import token_view

router = APIRouter(tags=["tokens"], route_class=GatedRoute)


@router.post("/tokens", status_code=201)
def create_token(body: TokenRequest, storage: StorageDep, _: Admin) -> NewTokenView:
    """A new token; its secret is shown this once."""
    secret, token = storage.tokens.create(
        body.name,
        [Scope(scope) for scope in body.scopes],
        lifetime_seconds=body.lifetime_seconds,
    )
    return NewTokenView(secret=secret, **token_view(token).model_dump())


@router.get("/tokens")
def list_tokens(storage: StorageDep, _: Admin) -> list[TokenView]:
    return [token_view(token) for token in storage.tokens.list()]


@router.delete("/tokens/{token_id}")
def revoke_token(token_id: str, storage: StorageDep, _: Admin) -> TokenView:
    """The token is refused from now on."""
    return token_view(storage.tokens.revoke(token_id))
