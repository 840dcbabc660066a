"""The tasks of a job (workload x target x weight), and the texts of workloads and targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import sqlalchemy as sa

from db.clock import Clock, system_clock
from db.stores.jobs import JobClaim


class TaskStatus(StrEnum):
    PENDING = "pending"
    TUNING = "tuning"
    TUNED = "tuned"  # its share of the trials is spent
    CACHED = "cached"  # answered from the records, no trial spent
    FAILED = "failed"  # not even the default ran


@dataclass(frozen=True, slots=True)
class JobTask:
    workload_key: str
    name: str  # for people: "conv 64x56x56 3x3"
    count: int  # how often it occurs in the model
    weight: float  # count times cost: what the task scheduler maximises over
    status: TaskStatus = TaskStatus.PENDING
    default_seconds: float | None = None
    best_seconds: float | None = None
    trials: int = 0
    facts: Mapping[str, Any] | None = None  # flops, bytes, algorithm, ...: for the report


class TaskStore:
    def __init__(self, engine: sa.Engine, clock: Clock = system_clock) -> None:
        self._engine = engine
        self._clock = clock

    def put(self, claim: JobClaim, tasks: Sequence[JobTask]) -> None:
        """Save tasks of a job (new or changed) in one transaction, in the given order.

        Raises StaleLeaseError.
        """
        raise NotImplementedError

    def list(self, job_id: str) -> Sequence[JobTask]:
        """In the order in which they were first put."""
        raise NotImplementedError


class WorkloadStore:
    """Texts behind the keys: the key is a hash, the text is what it stands for."""

    def __init__(self, engine: sa.Engine, clock: Clock = system_clock) -> None:
        self._engine = engine
        self._clock = clock

    def put_workloads(self, texts: Mapping[str, str]) -> None:
        """Save workload_key -> text; known keys stay as they are."""
        raise NotImplementedError

    def workload(self, key: str) -> str:
        """The text. Raises NotFoundError."""
        raise NotImplementedError

    def workloads(self, keys: Sequence[str]) -> Mapping[str, str]:
        """The texts of those that are known."""
        raise NotImplementedError

    def put_target(self, key: str, name: str, description: Mapping[str, Any]) -> None:
        """Save target_key -> (name, JSON description); a known key stays as it is."""
        raise NotImplementedError

    def target(self, key: str) -> tuple[str, Mapping[str, Any]]:
        """(name, description). Raises NotFoundError."""
        raise NotImplementedError

    def targets(self) -> Mapping[str, str]:
        """key -> name of every target."""
        raise NotImplementedError
