"""Response bodies for models and samples."""

from __future__ import annotations

from pydantic import Field

from tilewright.service.api.schemas.bodies import View
from tilewright.service.api.schemas.fields import Key, Time


class SamplesView(View):
    """An uploaded file of samples. A job names it by its digest."""

    digest: Key
    bytes: int = Field(examples=[1_204_224])


class ModelView(View):
    digest: Key
    name: str = Field(examples=["resnet50.onnx"])
    bytes: int = Field(examples=[102_442_450])
    created_at: Time
