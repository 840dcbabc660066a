"""Models, as they travel over HTTP."""

from __future__ import annotations

from service.api.schemas.bodies import View


class ModelView(View):
    digest: str
    name: str
    bytes: int
    created_at: float
