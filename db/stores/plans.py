"""Graph plans: how a model was cut for a target, and the measured time of the plan."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from tilewright.db.clock import Clock, system_clock
from tilewright.db.engine import reading, writing
from tilewright.db.models import GraphPlanRow
from tilewright.db.stores.statements import table_of, upsert
from tilewright.db.types import canonical_json

_plans = table_of(GraphPlanRow)


@dataclass(frozen=True, slots=True)
class StoredPlan:
    digest: str  # sha256 of the plan's canonical JSON, with dims and codegen_version
    model_digest: str
    target_key: str
    threads: int
    numerics: str
    plan: Mapping[str, Any]  # compiler.plan.plan.GraphPlan as JSON
    run_seconds: float | None  # end to end, if it was measured
    created_at: float
    dims: str  # canonical JSON of the sizes, or ranges as texts, that the model was planned for
    codegen_version: str  # what compiled it when it was measured
    decision: Mapping[str, Any] | None  # why it was chosen, if it was


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
        *,
        dims: Mapping[str, int | str] | None = None,
        codegen_version: str = "",
        decision: Mapping[str, Any] | None = None,
    ) -> str:
        """Save a plan and return its digest; the same plan again keeps the faster run_seconds.

        A `decision` is why it was chosen last. Which one is in use, verdicts say (`VerdictStore`).
        """
        sizes = canonical_json(dict(dims or {}))
        identity = [dict(plan), sizes, codegen_version]
        digest = hashlib.sha256(canonical_json(identity).encode()).hexdigest()
        old = _plans.c
        with writing(self._engine) as connection:
            insert = upsert(connection, _plans).values(
                model_digest=model_digest,
                target_key=target_key,
                threads=threads,
                numerics=numerics,
                digest=digest,
                plan=dict(plan),
                run_seconds=run_seconds,
                created_at=self._clock(),
                dims=sizes,
                codegen_version=codegen_version,
                decision=None if decision is None else dict(decision),
            )
            new = insert.excluded
            faster = sa.or_(old.run_seconds.is_(None), new.run_seconds < old.run_seconds)
            changed: dict[str, Any] = {
                "run_seconds": sa.case((faster, new.run_seconds), else_=old.run_seconds)
            }
            if decision is not None:
                changed |= {"decision": new.decision, "created_at": new.created_at}
            connection.execute(
                insert.on_conflict_do_update(index_elements=[*_plans.primary_key], set_=changed)
            )
        return digest

    def find(
        self, model_digest: str, target_key: str, threads: int, numerics: str, digest: str
    ) -> StoredPlan | None:
        """The plan of this digest; None if it is not there."""
        query = sa.select(_plans).where(
            _plans.c.model_digest == model_digest,
            _plans.c.target_key == target_key,
            _plans.c.threads == threads,
            _plans.c.numerics == numerics,
            _plans.c.digest == digest,
        )
        with reading(self._engine) as connection:
            row = connection.execute(query).first()
        return None if row is None else StoredPlan(**row._mapping)

    def list(self, model_digest: str) -> Sequence[StoredPlan]:
        """All plans of a model, newest first."""
        query = (
            sa.select(_plans)
            .where(_plans.c.model_digest == model_digest)
            .order_by(_plans.c.created_at.desc(), _plans.c.digest)
        )
        with reading(self._engine) as connection:
            return [StoredPlan(**row._mapping) for row in connection.execute(query)]
