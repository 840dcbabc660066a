"""The audit log."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from service.api.deps import Admin, StorageDep
from service.api.gate import GatedRoute
from service.api.schemas import AuditView
from service.api.views import audit_view

router = APIRouter(tags=["tokens"], route_class=GatedRoute)


@router.get("/audit")
def list_audit(
    storage: StorageDep,
    _: Admin,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    before: Annotated[int | None, Query(ge=0, le=2**62)] = None,
    action: Annotated[str | None, Query(max_length=100)] = None,
    actor: Annotated[str | None, Query(max_length=100, description="A token's id")] = None,
    subject: Annotated[str | None, Query(max_length=200)] = None,
) -> list[AuditView]:
    """Who did what, the newest first; `before` is the last serial of the page before."""
    entries = storage.audit.list(limit, before, action=action, actor=actor, subject=subject)
    return [audit_view(entry) for entry in entries]
