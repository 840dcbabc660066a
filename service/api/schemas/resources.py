"""Response bodies for trials, workloads and targets."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from tilewright.service.api.schemas.bodies import View
from tilewright.service.api.schemas.fields import (
    SHOWN_DESCRIPTION,
    SHOWN_TARGET,
    Id,
    Key,
    MeasurementJson,
    NumericsName,
    ScheduleJson,
    Seconds,
    Time,
    Version,
)


class WorkloadView(View):
    key: Key
    text: str = Field(examples=["workload conv2d ..."])


class TrialView(View):
    """A trial, which is a measured candidate. Withdrawn trials are ignored by searches."""

    id: Id
    job_id: Id
    workload_key: Key
    target_key: Key
    threads: int
    numerics: NumericsName
    phase: str = Field(
        description="Purpose of the measurement: screen, final or confirm", examples=["screen"]
    )
    origin: str = Field(description="Origin of the schedule", examples=["evolutionary"])
    status: str = Field(examples=["ok"])
    error: str = Field(examples=[""])
    run_seconds: Seconds | None
    schedule: ScheduleJson
    measurement: MeasurementJson
    codegen_version: Version
    withdrawn: bool
    stored_at: Time


class StoredWorkloadView(View):
    """A workload as text. `key` is the hash of `text`."""

    key: Key
    text: str = Field(examples=["workload conv2d ..."])
    created_at: Time


class TargetView(View):
    """A target of code generation. `description` has its instruction set and other properties."""

    key: Key
    name: str = Field(examples=[SHOWN_TARGET])
    description: dict[str, Any] = Field(examples=[SHOWN_DESCRIPTION])
    created_at: Time
