"""The database tables, one file per area.

Times are seconds since the epoch (UTC); names ending in _seconds are durations. Keys and digests
are SHA-256 in hex. Trials, and claims (statements about speed), name workloads and targets by key,
without a foreign key. So a measurement can be saved before the workload or target with that key is
uploaded.

Import tables from this package, so that `Base.metadata` always has all of them.
"""

from tilewright.db.models.access import AuditRow, IdempotencyRow, RateLimitRow, TokenRow
from tilewright.db.models.base import Base
from tilewright.db.models.blobs import (
    BlobReferenceRow,
    BlobRow,
    ModelRow,
    ModelUploadRow,
    SampleUploadRow,
)
from tilewright.db.models.claims import ClaimRow, ClaimUseRow
from tilewright.db.models.decisions import CostModelRow, TunedSizesRow, TuningRunRow
from tilewright.db.models.jobs import EventRow, JobRow, OpenTaskRow, TaskRow
from tilewright.db.models.measuring import LeaseRow, RequestRow, WorkerOutcomeRow, WorkerRow
from tilewright.db.models.signals import LookupChangeRow, NoticeRow, SweepRow
from tilewright.db.models.trials import RetiredTrialsRow, TrialRow
from tilewright.db.models.workloads import TargetRow, WorkloadRow, WorkloadShapeRow

__all__ = [
    "AuditRow",
    "Base",
    "BlobReferenceRow",
    "BlobRow",
    "ClaimRow",
    "ClaimUseRow",
    "CostModelRow",
    "EventRow",
    "IdempotencyRow",
    "JobRow",
    "LeaseRow",
    "LookupChangeRow",
    "ModelRow",
    "ModelUploadRow",
    "NoticeRow",
    "OpenTaskRow",
    "RateLimitRow",
    "RequestRow",
    "RetiredTrialsRow",
    "SampleUploadRow",
    "SweepRow",
    "TargetRow",
    "TaskRow",
    "TokenRow",
    "TrialRow",
    "TunedSizesRow",
    "TuningRunRow",
    "WorkerOutcomeRow",
    "WorkerRow",
    "WorkloadRow",
    "WorkloadShapeRow",
]
