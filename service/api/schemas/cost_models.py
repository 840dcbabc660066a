"""Request and response bodies for cost models."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from tilewright.service.api.schemas.bodies import RequestBody, View, shown
from tilewright.service.api.schemas.fields import SHOWN_TARGET, Key, Time


class CostModelView(View):
    """A version of a target's cost model.

    `scores` were measured on tasks held out from training. `chance` has the scores of a random
    ranking.
    """

    target_key: Key
    version: int
    state: str = Field(examples=["promoted"])
    digest: Key
    feature_version: int
    objective: str = Field(examples=["rank"])
    rows: int
    tasks: int
    trials: int
    scores: dict[str, Any] = Field(examples=[{"rank": 0.83}])
    chance: dict[str, Any] = Field(examples=[{"rank": 0.5}])
    created_at: Time
    promoted_at: Time | None


class PromotionRequest(RequestBody):
    """Promotes a version of a target's cost model, from which later tuning runs start."""

    model_config = shown(target=SHOWN_TARGET, version=2)

    target: str = Field("host", min_length=1, max_length=200, description="A name or a key")
    version: int = Field(ge=1, le=(1 << 31) - 1)


class RollbackRequest(RequestBody):
    """Reverts a promotion: the target's previously promoted cost model is promoted again."""

    model_config = shown(target=SHOWN_TARGET)

    target: str = Field("host", min_length=1, max_length=200, description="A name or a key")
