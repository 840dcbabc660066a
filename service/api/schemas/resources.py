"""Trials, workloads, targets and devices, as they travel over HTTP."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from service.api.schemas.bodies import View
from service.api.schemas.workers import WorkerCondition, WorkerSpeed


class WorkloadView(View):
    key: str
    text: str


class TrialView(View):
    """One measured candidate, and whether somebody took it back."""

    id: str
    job_id: str
    workload_key: str
    target_key: str
    threads: int
    numerics: str
    phase: str = Field(description="Why it was measured: screen, final or confirm")
    origin: str = Field(description="Who suggested it")
    status: str
    error: str
    run_seconds: float | None
    schedule: dict[str, Any]
    measurement: dict[str, Any]
    codegen_version: str
    withdrawn: bool
    stored_at: float


class StoredWorkloadView(View):
    """`text` is what `key` is the hash of."""

    key: str
    text: str
    created_at: float


class TargetView(View):
    """What code is generated for."""

    key: str
    name: str
    description: dict[str, Any]
    created_at: float


class DeviceView(View):
    """A machine that measures, as its worker describes it."""

    name: str = Field(description="The worker's")
    worker_id: str
    targets: list[str] = Field(description="Names of targets that it runs, the best first")
    target_keys: list[str]
    device: dict[str, Any] = Field(description="Model, cores, caches, governor, ...")
    health: str
    speed: WorkerSpeed | None = Field(None, description="Of its reference kernel just now")
    condition: WorkerCondition | None = None
