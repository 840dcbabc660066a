"""Cost models, as they travel over HTTP."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from service.api.schemas.bodies import RequestBody, View


class CostModelView(View):
    """A version; `scores` and `chance` are of the held-out tasks, its own and by chance."""

    target_key: str
    version: int
    state: str
    digest: str
    feature_version: int
    objective: str
    rows: int
    tasks: int
    trials: int
    scores: dict[str, Any]
    chance: dict[str, Any]
    created_at: float
    promoted_at: float | None


class PromotionRequest(RequestBody):
    """Let tuning runs of a target start from a version."""

    target: str = Field("host", min_length=1, max_length=200, description="A name or a key")
    version: int = Field(ge=1, le=(1 << 31) - 1)


class RollbackRequest(RequestBody):
    """Bring back the version that was promoted before the present one."""

    target: str = Field("host", min_length=1, max_length=200, description="A name or a key")
