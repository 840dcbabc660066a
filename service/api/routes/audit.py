"""Route of the audit log."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from tilewright.service.api.deps import Admin, StorageDep
from tilewright.service.api.gate import GatedRoute
from tilewright.service.api.pages import PagesDep
from tilewright.service.api.schemas.tokens import AuditView
from tilewright.service.api.views import audit_view

router = APIRouter(tags=["tokens"], route_class=GatedRoute)


@router.get("/audit")
def list_audit(
    storage: StorageDep,
    _: Admin,
    pages: PagesDep,
    action: Annotated[str | None, Query(max_length=100)] = None,
    actor: Annotated[str | None, Query(max_length=100, description="A token's id")] = None,
    subject: Annotated[str | None, Query(max_length=200)] = None,
) -> list[AuditView]:
    """List the entries of the audit log, newest first."""
    found = storage.audit.list(*pages.wanted, action=action, actor=actor, subject=subject)
    return [audit_view(entry) for entry in pages.linked(found)]
