"""Graph plans: how a model was cut for a target, and what that plan was measured to cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from db.clock import Clock, system_clock


@dataclass(frozen=True, slots=True)
class StoredPlan:
    digest: str  # sha256 of the plan's canonical JSON
    model_digest: str
    target_key: str
    threads: int
    numerics: str
    plan: Mapping[str, Any]  # compiler.plan.GraphPlan as JSON
    run_seconds: float | None  # end to end, if it was measured
    created_at: float


class GraphPlanStore:
    def __init__(self, engine: sa.Engine, clock: Clock = system_clock) -> None:
        self._engine = engine
        self._clock = clock

    def put(
        self,
        model_digest: str,
        target_key: str,
        threads: int,
        numerics: str,
        plan: Mapping[str, Any],
        run_seconds: float | None = None,
    ) -> str:
        """Save a plan, return its digest; the same plan again updates run_seconds if faster."""
        raise NotImplementedError

    def best(
        self, model_digest: str, target_key: str, threads: int, numerics: str
    ) -> StoredPlan | None:
        """The fastest measured plan; without any measured one, the newest."""
        raise NotImplementedError

    def list(self, model_digest: str) -> Sequence[StoredPlan]:
        """All plans of a model, newest first."""
        raise NotImplementedError
