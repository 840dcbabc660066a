"""Whether the service works."""

from __future__ import annotations

from typing import Literal

from service.api.schemas.bodies import View


class HealthView(View):
    status: Literal["ok"]
    version: str
