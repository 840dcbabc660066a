"""Which plan of a model is known to be the best, and where that is kept.

A choice among plans is a verdict (`db.stores.verdicts`): the job that chose believes it, others
once it was confirmed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import CompilerError
from tilewright.compiler.graph.text import without_digests
from tilewright.compiler.mode import Mode
from tilewright.compiler.plan.choices import RULE, GraphChoice
from tilewright.compiler.program.build import CODEGEN_VERSION
from tilewright.db.storage import Storage
from tilewright.db.stores.plans import StoredPlan
from tilewright.db.stores.verdicts import StoredVerdict, VerdictKind
from tilewright.db.types import canonical_json
from tilewright.service.jobs.planning import Planned
from tilewright.tuner.graph.planner import Planner


def known_plan(planned: Planned, storage: Storage, job_id: str = "") -> Planned:
    """The model with the plan that a job chose for it; the same model if none did.

    It is one that was confirmed, or that the job of this id chose itself. A plan counts for the
    same model, sizes, target, threads, numerics and code generation. It must still be the plan that
    its choice leads to. The model's digest stands for its constants.
    """
    if planned.open is not None or planned.stages is not None:
        return planned  # what was chosen for one size says nothing of all, or of a stage
    return with_plan(
        planned, _of(plan_verdict(planned, storage, job_id), *_model(planned), storage)
    )


def chosen_plan(
    digest: str, mode: Mode, dims: Mapping[str, int | str], storage: Storage
) -> StoredPlan | None:
    """The plan that a job chose for a model of this digest, if one did and it was confirmed."""
    model = digest, *plan_key(mode)
    return _of(storage.verdicts.find(plan_identity(*model, canonical_json(dims))), *model, storage)


def with_plan(planned: Planned, stored: StoredPlan | None) -> Planned:
    """The model with a stored plan, or the same model if that is not what its choice leads to."""
    if stored is None or stored.decision is None:
        return planned
    try:
        choice = GraphChoice.from_json(stored.decision["choice"])
        plan = planned.plan if choice == RULE else planner_of(planned).plan(choice)
    except (CompilerError, KeyError):
        return planned  # an older release's: the choice is made anew
    known = without_digests(canonical_json(dict(stored.plan)))
    if canonical_json(plan.to_json(digests=False)) != known:
        return planned
    return replace(planned, plan=plan, decision=dict(stored.decision))


def plan_verdict(planned: Planned, storage: Storage, job_id: str = "") -> StoredVerdict | None:
    """What was decided of a model's plans, as far as a job may believe it."""
    sizes = canonical_json(dict(planned.request.dims or {}))
    return storage.verdicts.find(plan_identity(*_model(planned), sizes), job_id)


def plan_identity(digest: str, target_key: str, threads: int, numerics: str, dims: str) -> str:
    """What a choice among the plans of a model is known by; `dims` are canonical JSON."""
    about = ["plan", digest, target_key, threads, numerics, dims, CODEGEN_VERSION]
    return hashlib.sha256(canonical_json(about).encode()).hexdigest()


def tuned_sizes(digest: str, mode: Mode, storage: Storage) -> tuple[Mapping[str, int], ...]:
    """The sizes of named dimensions that jobs tuned a model of this digest at, ranges not among
    them."""
    kept = plan_key(mode)
    found = {
        plan.dims: json.loads(plan.dims)
        for plan in storage.plans.list(digest)
        if (plan.target_key, plan.threads, plan.numerics) == kept
    }
    return tuple(dims for dims in found.values() if all(isinstance(s, int) for s in dims.values()))


def keep_plan(
    planned: Planned,
    storage: Storage,
    run_seconds: float | None = None,
    decision: Mapping[str, Any] | None = None,
) -> str:
    """Store a model's plan, with the time of the whole model if that was measured, and why it was
    chosen if it was; its digest.

    One for ranges is kept as it is at typical sizes, with the ranges as texts."""
    ranges = {} if planned.open is None else {d.name: d.range_text for d in planned.open.ranges}
    return storage.plans.put(
        *_model(planned),
        planned.plan.to_json(),
        run_seconds,
        dims={**(planned.request.dims or {}), **ranges},
        codegen_version=CODEGEN_VERSION,
        decision=decision,
    )


def keep_choice(
    planned: Planned,
    storage: Storage,
    run_seconds: float | None,
    *,
    job_id: str,
    worker: str | None,
) -> StoredVerdict:
    """Store that a job chose this plan, by its decision, and the worker that raced; None if it was
    our own machine. `known_plan` finds it for this job from now on."""
    decision = planned.decision or {}
    digest = keep_plan(planned, storage, run_seconds, decision)
    identity = plan_identity(*_model(planned), canonical_json(dict(planned.request.dims or {})))
    return storage.verdicts.add(VerdictKind.PLAN, identity, job_id, digest, decision, worker)


def model_digest(model: Path | bytes) -> str:
    """The SHA-256 of a model's bytes: what the database knows it by."""
    if isinstance(model, bytes):
        return hashlib.sha256(model).hexdigest()
    with model.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def planner_of(planned: Planned) -> Planner:
    """What makes other plans of the same model."""
    return Planner(planned.graph, planned.mode, planned.optimised)


def _model(planned: Planned) -> tuple[str, str, int, str]:
    request = planned.request
    digest = request.digest or model_digest(request.model)
    return digest, *plan_key(planned.mode)


def plan_key(mode: Mode) -> tuple[str, int, str]:
    """The mode's part of the key under which a plan is stored: the mode's key, whose numerics are
    followed by the precision unless that is float32."""
    target, threads, numerics = mode.key
    narrow = mode.precision != DType.FLOAT32
    return target, threads, f"{numerics} {mode.precision}" if narrow else numerics


def _of(
    verdict: StoredVerdict | None,
    digest: str,
    target_key: str,
    threads: int,
    numerics: str,
    storage: Storage,
) -> StoredPlan | None:
    """The plan that a verdict is for, with the decision that it holds."""
    if verdict is None:
        return None
    found = storage.plans.find(digest, target_key, threads, numerics, verdict.served)
    return None if found is None else replace(found, decision=verdict.verdict)
