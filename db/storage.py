"""`Storage`: the stores of one database and of its blobs, opened together."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from tilewright.db.clock import Clock, system_clock
from tilewright.db.engine import open_engine, together
from tilewright.db.migrate import upgrade
from tilewright.db.stores.audit import AuditStore
from tilewright.db.stores.blob_bytes import BlobBytes
from tilewright.db.stores.blob_folder import BlobFolder
from tilewright.db.stores.blobs import BlobStore
from tilewright.db.stores.claim_ledger import ClaimLedger
from tilewright.db.stores.cost_models import CostModelStore
from tilewright.db.stores.events import EventStore
from tilewright.db.stores.gauges import GaugeStore
from tilewright.db.stores.idempotency import IdempotencyStore
from tilewright.db.stores.jobs import JobStore
from tilewright.db.stores.leases import MOST_FAILURES, LeaseStore
from tilewright.db.stores.models import ModelStore
from tilewright.db.stores.open_tasks import OpenTaskStore
from tilewright.db.stores.rate_limits import RateLimitStore
from tilewright.db.stores.records import SqlRecordStore
from tilewright.db.stores.retention import RetentionStore
from tilewright.db.stores.runs import RunStore
from tilewright.db.stores.shapes import ShapeStore
from tilewright.db.stores.sweeps import SweepStore
from tilewright.db.stores.tasks import TaskStore, WorkloadStore
from tilewright.db.stores.tokens import TokenStore
from tilewright.db.stores.trials import TrialStore
from tilewright.db.stores.tuned_sizes import TunedSizesStore
from tilewright.db.stores.workers import WorkerStore

WORKER_LOST_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Storage:
    """All stores of one database and its blobs.

    Each process of the service, and each local command, opens one Storage.
    """

    engine: sa.Engine
    clock: Clock
    blobs: BlobStore
    models: ModelStore
    jobs: JobStore
    events: EventStore
    tasks: TaskStore
    open_tasks: OpenTaskStore
    workloads: WorkloadStore
    records: SqlRecordStore
    ledger: ClaimLedger
    shapes: ShapeStore
    tuned_sizes: TunedSizesStore
    cost_models: CostModelStore
    runs: RunStore
    leases: LeaseStore
    workers: WorkerStore
    sweeps: SweepStore
    trials: TrialStore
    retention: RetentionStore
    tokens: TokenStore
    audit: AuditStore
    rate_limits: RateLimitStore
    idempotency: IdempotencyStore
    gauges: GaugeStore

    @staticmethod
    def open(
        database_url: str,
        blob_folder: Path,
        clock: Clock | None = None,
        *,
        blob_url: str = "",
        worker_lost_seconds: float = WORKER_LOST_SECONDS,
        worker_failures: int = MOST_FAILURES,
    ) -> Storage:
        """Open a database, migrate it to this release's schema, and create its stores.

        Args:
            database_url: `sqlite:///FILE` or `postgresql://user:password@host/name`.
            blob_folder: the folder for blobs; created if it does not exist.
            blob_url: `s3://bucket/prefix` to store blobs in a bucket instead; the folder then only
                has temporary files.
            clock: returns the time in seconds since the epoch; for tests. By default, times that
                several processes compare come from the database's clock, and all others from this
                machine's.
            worker_lost_seconds: time without a heartbeat after which a worker counts as lost.
            worker_failures: number of failures caused by a worker within an hour that quarantine
                the worker.

        Raises:
            DatabaseError: if the database cannot be opened, is from a newer release, or is too old
                to migrate.
        """
        engine = open_engine(database_url)
        upgrade(engine)
        decisive, clock = clock, clock or system_clock
        blobs = BlobStore(engine, open_place(blob_folder, blob_url), clock)
        return Storage(
            engine=engine,
            clock=clock,
            blobs=blobs,
            models=ModelStore(engine, blobs, clock),
            jobs=JobStore(engine, decisive),
            events=EventStore(engine, clock),
            tasks=TaskStore(engine, clock),
            open_tasks=OpenTaskStore(engine, decisive),
            workloads=WorkloadStore(engine, clock),
            records=SqlRecordStore(engine, clock),
            ledger=ClaimLedger(engine, clock),
            shapes=ShapeStore(engine),
            tuned_sizes=TunedSizesStore(engine),
            cost_models=CostModelStore(engine, blobs, clock),
            runs=RunStore(engine, clock),
            leases=LeaseStore(
                engine,
                decisive,
                lost_after_seconds=worker_lost_seconds,
                most_failures=worker_failures,
            ),
            workers=WorkerStore(engine, decisive, lost_after_seconds=worker_lost_seconds),
            sweeps=SweepStore(engine, decisive),
            trials=TrialStore(engine),
            retention=RetentionStore(engine, decisive),
            tokens=TokenStore(engine, clock),
            audit=AuditStore(engine, clock),
            rate_limits=RateLimitStore(engine),
            idempotency=IdempotencyStore(engine, decisive),
            gauges=GaugeStore(engine),
        )

    def together(self) -> AbstractContextManager[None]:
        """Run all reads and writes of this thread within the context in one transaction.

        See `db.engine.together`.
        """
        return together(self.engine)

    def close(self) -> None:
        """Close all database connections."""
        self.engine.dispose()


def open_place(folder: Path, url: str) -> BlobBytes:
    """Open the store for the bytes of blobs: the S3 bucket `url`, or `folder` if `url` is empty.

    With a bucket, temporary files are written below `folder`.

    Raises:
        StorageError: if the folder or the bucket cannot be opened.
    """
    if not url:
        return BlobFolder(folder)
    from tilewright.db.stores.blob_objects import BlobObjects

    return BlobObjects(url, folder / "incoming")
