"""Conversion of stored values to response bodies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from tilewright.db.review_state import Attestation
from tilewright.db.stores.audit import Entry
from tilewright.db.stores.cost_models import StoredCostModel
from tilewright.db.stores.events import JobEvent
from tilewright.db.stores.jobs import Job
from tilewright.db.stores.leases import Lease
from tilewright.db.stores.models import UploadedModel
from tilewright.db.stores.tasks import JobTask
from tilewright.db.stores.tokens import Token
from tilewright.db.stores.workers import RegisteredWorker
from tilewright.service.api.schemas.cost_models import CostModelView
from tilewright.service.api.schemas.jobs import (
    CurvePoint,
    CurveView,
    JobEventView,
    JobView,
    ProgressView,
    TaskView,
)
from tilewright.service.api.schemas.leases import LeaseView
from tilewright.service.api.schemas.lookups import IntervalView, RecordView
from tilewright.service.api.schemas.models import ModelView
from tilewright.service.api.schemas.tokens import AuditView, TokenView
from tilewright.service.api.schemas.workers import (
    QuarantineView,
    WorkerCondition,
    WorkerSpeed,
    WorkerView,
)
from tilewright.service.signing import SigningKey
from tilewright.tuner.protocol.measurement import Status, TuningRecord
from tilewright.tuner.protocol.signing import signed_lease


def model_view(model: UploadedModel) -> ModelView:
    return ModelView(
        digest=model.digest, name=model.name, bytes=model.bytes, created_at=model.created_at
    )


def failures(counts: Mapping[Status, int]) -> dict[str, int]:
    """Return the number of failed trials for each failure status, most frequent first."""
    failed = {s.value: n for s, n in counts.items() if n and s is not Status.OK}
    return dict(sorted(failed.items(), key=lambda item: (-item[1], item[0])))


def job_view(
    job: Job,
    counts: Mapping[Status, int] | None = None,
    *,
    model_name: str = "",
    owner: str = "",
) -> JobView:
    """Return the response body for a job.

    Args:
        job: the stored job.
        counts: the number of the job's trials by status.
        model_name: the name that the owner gave the model.
        owner: the name of the owner's token.
    """
    return JobView(
        id=job.id,
        state=job.state.value,
        final=job.state.final,
        model=job.model_digest,
        model_name=model_name,
        owner=owner,
        target=job.target,
        target_key=job.target_key,
        worker_id=job.worker_id,
        threads=job.threads,
        numerics=job.numerics,
        options=dict(job.options),
        priority=job.priority,
        wait_seconds=job.wait_seconds,
        progress=ProgressView(**asdict(job.progress)),
        reason=job.reason,
        error=job.error,
        result=None if job.result is None else dict(job.result),
        failures=failures(counts or {}),
        artifact=f"/v1/jobs/{job.id}/artifact" if job.artifact_digest else None,
        tuner=job.tuner,
        created_at=job.created_at,
        started_at=job.started_at,
        finished_at=job.finished_at,
    )


def curve_view(events: Sequence[JobEvent]) -> CurveView:
    """Return the response body for a tuning curve, with one point per event of kind "progress"."""
    points = [
        CurvePoint(
            at=event.created_at,
            trials=event.data.get("trials_done", 0),
            default_seconds=event.data.get("default_seconds"),
            best_seconds=event.data.get("best_seconds"),
        )
        for event in events
    ]
    return CurveView(sequence=events[-1].sequence if events else 0, points=points)


def event_view(event: JobEvent) -> JobEventView:
    return JobEventView(
        sequence=event.sequence,
        kind=event.kind,
        created_at=event.created_at,
        data=dict(event.data),
    )


def task_view(task: JobTask, job_id: str = "") -> TaskView:
    """Return the response body for a task.

    An empty `job_id` means that the task belongs to a local run of `tilewright tune`, without a
    job.
    """
    return TaskView(
        job_id=job_id,
        workload_key=task.workload_key,
        name=task.name,
        count=task.count,
        weight=task.weight,
        status=task.status.value,
        default_seconds=task.default_seconds,
        best_seconds=task.best_seconds,
        trials=task.trials,
        facts=dict(task.facts or {}),
    )


def record_view(record: TuningRecord, attestation: Attestation) -> RecordView:
    interval = record.measurement.interval
    return RecordView(
        **record.key.to_json(),
        schedule=record.schedule.to_json(),
        run_seconds=record.run_seconds,
        attestation=attestation,
        interval=None if interval is None else IntervalView(**asdict(interval)),
        measurement=record.measurement.to_json(),
        codegen_version=record.codegen_version,
        compiler_version=record.compiler_version,
    )


def worker_view(
    worker: RegisteredWorker,
    in_hand: int = 0,
    names: Mapping[str, str] | None = None,
    trials: Mapping[str, int] | None = None,
) -> WorkerView:
    """Return the response body for a worker.

    Args:
        worker: the stored worker.
        in_hand: the number of measurement requests that the worker has leased.
        names: names of targets by key.
        trials: the number of the worker's trials by status.
    """
    known = names or {}
    return WorkerView(
        id=worker.id,
        name=worker.name,
        target_keys=list(worker.target_keys),
        targets=[known[key] for key in worker.target_keys if key in known],
        device=dict(worker.device),
        protocol=worker.protocol,
        health=worker.health.value,
        last_heartbeat=worker.last_heartbeat,
        draining=worker.draining,
        in_hand=in_hand,
        leases_lost=worker.leases_lost,
        trials=dict(trials or {}),
        created_at=worker.created_at,
        speed=None if worker.speed is None else WorkerSpeed.model_validate(worker.speed),
        condition=None
        if worker.condition is None
        else WorkerCondition.model_validate(worker.condition),
        quarantine=None
        if worker.quarantine is None
        else QuarantineView(**asdict(worker.quarantine)),
    )


def lease_view(lease: Lease, signer: SigningKey) -> LeaseView:
    payload = dict(lease.payload)
    return LeaseView(
        lease_id=lease.lease_id,
        request_id=lease.request_id,
        job_id=lease.job_id,
        target_key=lease.target_key,
        payload=payload,
        signature=signer.sign(signed_lease(lease.request_id, payload)),
        blob_digests=list(lease.blob_digests),
        attempt=lease.attempt,
        deadline=lease.deadline,
    )


def token_view(token: Token) -> TokenView:
    return TokenView(
        id=token.id,
        name=token.name,
        scopes=sorted(token.scopes),
        created_at=token.created_at,
        expires_at=token.expires_at,
        revoked_at=token.revoked_at,
        last_used_at=token.last_used_at,
        previous_until=token.previous_until,
        max_open_jobs=token.max_open_jobs,
        max_running_jobs=token.max_running_jobs,
        all_owners=token.sees is None,
    )


def audit_view(entry: Entry) -> AuditView:
    return AuditView(**{**asdict(entry), "detail": dict(entry.detail)})


def cost_model_view(model: StoredCostModel) -> CostModelView:
    return CostModelView(**{**asdict(model), "state": model.state.value})
