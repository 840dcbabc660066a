"""Response body of the health check."""

from __future__ import annotations

from typing import Literal

from tilewright.service.api.schemas.bodies import View
from tilewright.service.api.schemas.fields import Version


class HealthView(View):
    status: Literal["ok"]
    version: Version
