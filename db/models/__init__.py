"""The tables, an area each. Times are seconds since the epoch (UTC); names ending in _seconds are
durations.

Keys and digests are SHA-256 in hex. Trials and records name workloads and targets by key without
a foreign key: a measurement is saved whether or not the text behind its key has arrived.

Whoever needs a table imports it from here: so `Base.metadata` always has all of them.
"""

from db.models.access import AuditRow, IdempotencyRow, RateLimitRow, TokenRow
from db.models.base import Base
from db.models.blobs import BlobReferenceRow, BlobRow, ModelRow
from db.models.decisions import CostModelRow, GraphPlanRow, TuningRunRow, VerdictRow
from db.models.jobs import EventRow, JobRow, OpenTaskRow, TaskRow
from db.models.measuring import LeaseRow, RequestRow, WorkerOutcomeRow, WorkerRow
from db.models.records import RecordRow, RecordUseRow, RetiredTrialsRow, TrialRow
from db.models.signals import LookupChangeRow, NoticeRow, SweepRow
from db.models.workloads import TargetRow, WorkloadRow, WorkloadShapeRow

__all__ = [
    "AuditRow",
    "Base",
    "BlobReferenceRow",
    "BlobRow",
    "CostModelRow",
    "EventRow",
    "GraphPlanRow",
    "IdempotencyRow",
    "JobRow",
    "LeaseRow",
    "LookupChangeRow",
    "ModelRow",
    "NoticeRow",
    "OpenTaskRow",
    "RateLimitRow",
    "RecordRow",
    "RecordUseRow",
    "RequestRow",
    "RetiredTrialsRow",
    "SweepRow",
    "TargetRow",
    "TaskRow",
    "TokenRow",
    "TrialRow",
    "TuningRunRow",
    "VerdictRow",
    "WorkerOutcomeRow",
    "WorkerRow",
    "WorkloadRow",
    "WorkloadShapeRow",
]
