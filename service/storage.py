"""All stores over one database and one blob folder, opened from the settings."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from db.clock import Clock, system_clock
from db.engine import open_engine
from db.migrate import upgrade
from db.stores.blobs import BlobStore
from db.stores.cost_models import CostModelStore
from db.stores.events import EventStore
from db.stores.jobs import JobStore
from db.stores.leases import LeaseStore
from db.stores.models import ModelStore
from db.stores.plans import GraphPlanStore
from db.stores.records import RecordStore
from db.stores.runs import RunStore
from db.stores.tasks import TaskStore, WorkloadStore
from db.stores.tokens import TokenStore
from db.stores.verdicts import VerdictStore
from db.stores.workers import WorkerStore
from service.settings import Settings


@dataclass(frozen=True, slots=True)
class Storage:
    """What the web process, the tuner process and the embedded commands share."""

    engine: sa.Engine
    clock: Clock
    blobs: BlobStore
    models: ModelStore
    jobs: JobStore
    events: EventStore
    tasks: TaskStore
    workloads: WorkloadStore
    records: RecordStore
    plans: GraphPlanStore
    verdicts: VerdictStore
    cost_models: CostModelStore
    runs: RunStore
    leases: LeaseStore
    workers: WorkerStore
    tokens: TokenStore

    @staticmethod
    def open(settings: Settings, clock: Clock = system_clock) -> Storage:
        """Open the database and bring it to this release's schema.

        Raises:
            DatabaseError: if it cannot be opened, or is of a newer release.
        """
        engine = open_engine(settings.effective_database_url)
        upgrade(engine)
        blobs = BlobStore(settings.blob_folder)
        return Storage(
            engine=engine,
            clock=clock,
            blobs=blobs,
            models=ModelStore(engine, blobs, clock),
            jobs=JobStore(engine, clock),
            events=EventStore(engine, clock),
            tasks=TaskStore(engine, clock),
            workloads=WorkloadStore(engine, clock),
            records=RecordStore(engine, clock),
            plans=GraphPlanStore(engine, clock),
            verdicts=VerdictStore(engine, clock),
            cost_models=CostModelStore(engine, blobs, clock),
            runs=RunStore(engine, clock),
            leases=LeaseStore(engine, clock),
            workers=WorkerStore(engine, clock, lost_after_seconds=settings.worker_lost_seconds),
            tokens=TokenStore(engine, clock),
        )

    def close(self) -> None:
        """Close the connections."""
        self.engine.dispose()
