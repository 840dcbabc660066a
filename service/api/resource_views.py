"""Conversion of stored trials, workloads, targets and workers to response bodies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TypeVar

from tilewright.db.storage import Storage
from tilewright.db.stores.tasks import StoredTarget, StoredWorkload
from tilewright.db.stores.tokens import Token
from tilewright.db.stores.trials import StoredTrial
from tilewright.service.api.schemas.records import StoredRecordView
from tilewright.service.api.schemas.resources import (
    StoredWorkloadView,
    TargetView,
    TrialView,
)

JobPart = TypeVar("JobPart", TrialView, StoredRecordView)


def without_jobs_of_others(
    views: Sequence[JobPart], storage: Storage, token: Token
) -> list[JobPart]:
    """Return response bodies in which `job_id` is empty for each job that the token may not see.

    Every token may read trials and records, but not the ids of other owners' jobs.
    """
    seen = storage.jobs.seen([view.job_id for view in views], token.sees)
    return [v if v.job_id in seen else v.model_copy(update={"job_id": ""}) for v in views]


def trial_view(stored: StoredTrial) -> TrialView:
    trial = stored.trial
    measurement = trial.measurement
    return TrialView(
        **trial.key.to_json(),
        id=trial.id,
        job_id=trial.job_id,
        phase=trial.phase.value,
        origin=trial.origin,
        status=measurement.status.value,
        error=measurement.error,
        run_seconds=measurement.run_seconds,
        schedule=trial.schedule.to_json(),
        measurement=measurement.to_json(),
        codegen_version=trial.codegen_version,
        withdrawn=trial.withdrawn,
        stored_at=stored.stored_at,
    )


def workload_view(stored: StoredWorkload) -> StoredWorkloadView:
    return StoredWorkloadView(**asdict(stored))


def target_view(stored: StoredTarget) -> TargetView:
    return TargetView(**{**asdict(stored), "description": dict(stored.description)})
