"""Routes of cost models: list versions, and choose the one from which tuning runs start."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from tilewright.db.stores.audit import Action
from tilewright.service.api.audit import AuditDep
from tilewright.service.api.deps import Admin, Reader, StorageDep
from tilewright.service.api.gate import GatedRoute
from tilewright.service.api.pages import PagesDep
from tilewright.service.api.refusals import refuses
from tilewright.service.api.schemas.cost_models import (
    CostModelView,
    PromotionRequest,
    RollbackRequest,
)
from tilewright.service.api.views import cost_model_view
from tilewright.service.jobs.device.targets import target_key

router = APIRouter(tags=["cost models"], route_class=GatedRoute)


@router.get("/cost-models")
def list_cost_models(
    storage: StorageDep,
    _: Reader,
    pages: PagesDep,
    target: Annotated[str | None, Query(max_length=200, description="Target key or name")] = None,
) -> list[CostModelView]:
    """List the versions of the cost models of one target or of all targets, newest first."""
    key = None if target is None else target_key(target)
    found = storage.cost_models.list(key, limit=pages.limit, after=pages.after)
    return [cost_model_view(model) for model in pages.linked(found)]


@router.post("/cost-models/promote")
@refuses(404)
def promote_cost_model(
    body: PromotionRequest, storage: StorageDep, audit: AuditDep, _: Admin
) -> CostModelView:
    """Promote a version of a target's cost model. Later tuning runs of the target start from it."""
    with storage.together():
        model = storage.cost_models.promote(target_key(body.target), body.version)
        audit(Action.COST_MODEL_PROMOTED, model.target_key, version=model.version)
    return cost_model_view(model)


@router.post("/cost-models/rollback")
@refuses(404)
def roll_back_cost_model(
    body: RollbackRequest, storage: StorageDep, audit: AuditDep, _: Admin
) -> CostModelView:
    """Revert a promotion: promote the target's previously promoted cost model again."""
    with storage.together():
        model = storage.cost_models.roll_back(target_key(body.target))
        audit(Action.COST_MODEL_ROLLED_BACK, model.target_key, version=model.version)
    return cost_model_view(model)
