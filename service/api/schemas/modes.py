"""How code is generated, as requests say it."""

from __future__ import annotations

from pydantic import Field

from tilewright.compiler.mode import Mode
from tilewright.compiler.targets.target import Target
from tilewright.service.api.schemas.bodies import RequestBody
from tilewright.service.api.schemas.fields import Numerics, Precision


class ModeRequest(RequestBody):
    """A body with the fields of `compiler.mode.Mode` that a request states, but the target."""

    threads: int = Field(1, ge=1, le=256)
    numerics: Numerics = "fast"
    precision: Precision = Field(
        "float32", description="What a float32 model's values are stored and multiplied as"
    )

    def mode(self, target: Target) -> Mode:
        """The mode for a target."""
        return Mode(target, **{name: getattr(self, name) for name in ModeRequest.model_fields})
