"""Fills a database as large as a team's after a year, for `benchmarks.pages`.

The sizes are options of `benchmarks.pages`. Values whose structure matters are realistic: texts of
workloads (fused subgraphs), schedules, properties of this machine, and samples of a trial. All
other values are random with a fixed seed. The store writes a thousand trials, which are then copied
repeatedly inside the database.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from benchmarks.light import light_model
from benchmarks.service_load_server import TARGET, record_of_load, retain, settings_of
from tilewright.compiler.mode import Mode
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.schedule.select import untuned_schedule
from tilewright.compiler.targets.device import find_device
from tilewright.compiler.targets.target import known_targets
from tilewright.db.engine import writing
from tilewright.db.job_states import JobState
from tilewright.db.models import (
    ClaimRow,
    CostModelRow,
    EventRow,
    JobRow,
    LeaseRow,
    ModelRow,
    TaskRow,
    TrialRow,
    WorkloadRow,
    WorkloadShapeRow,
)
from tilewright.db.review_state import ReviewState
from tilewright.db.storage import Storage
from tilewright.db.stores.audit import Action
from tilewright.db.stores.claim_rows import record_values
from tilewright.db.stores.shapes import extent
from tilewright.db.stores.statements import table_of
from tilewright.db.stores.tasks import TaskStatus
from tilewright.db.stores.tokens import Scope
from tilewright.service.jobs.knowledge.families import shape_of
from tilewright.service.jobs.plan.planning import ModelRequest, plan_model
from tilewright.service.storage import open_storage
from tilewright.tuner.protocol.measurement import Measurement, Phase, RecordKey, Status, Trial
from tilewright.tuner.protocol.version import PROTOCOL

MODELS = 40
WORKLOADS = 25
"""Number of workloads per model. The first model is real, and has its own workloads."""

TEMPLATES = 1000
"""Number of trials that the store writes. They are then copied inside the database; each copy of
all of them belongs to one job."""

COST_MODELS = 40
"""Number of versions per target."""

ORIGINS = ("default", "random", "model", "mutation", "neighbour")
STATUSES = (Status.OK,) * 17 + (Status.BUILD_ERROR, Status.WRONG_ANSWER, Status.RUN_TIMEOUT)
ENDED = (JobState.SUCCEEDED,) * 15 + (JobState.FAILED, JobState.CANCELLED, JobState.INCOMPLETE)


@dataclass(frozen=True, slots=True)
class Size:
    """Numbers of rows in the database. One job has a tenth of all trials."""

    trials: int = 1_000_000
    records: int = 10_000
    jobs: int = 1000
    workers: int = 500
    requests: int = 20_000
    tokens: int = 200
    audit: int = 10_000


@dataclass(frozen=True, slots=True)
class Known:
    """Identifiers in the database that requests can use as parameters."""

    token: str
    token_id: str
    job_id: str
    small_job: str
    model: str
    workload: str
    unknown_workload: str
    tuned_workload: str
    record_id: str
    worker_id: str
    target: str


def fill(url: str, folder: Path, size: Size) -> Known:
    """Fill a new database at `url`, with its blobs in `folder`; returns ids of its contents."""
    storage = open_storage(settings_of(url, folder))
    try:
        return _Filling(storage, size).known()
    finally:
        storage.close()


def _name(*parts: object) -> str:
    return hashlib.sha256("/".join(map(str, parts)).encode()).hexdigest()


class _Filling:
    def __init__(self, storage: Storage, size: Size) -> None:
        self._storage = storage
        self._size = size
        self._random = random.Random(0)
        self._now = storage.clock()
        for target in known_targets().values():
            storage.workloads.put_target(target.key, target.name, target.to_json())
        self._targets = [
            TARGET,
            *(t.key for n, t in known_targets().items() if "v2" in n or "v4" in n),
        ]
        data = light_model("squeezenet").SerializeToString()
        planned = plan_model(ModelRequest(data, Mode(known_targets()["x86-64-v3"])))
        self._real = [workload for workload, _ in planned.workloads]
        self._model = storage.models.add(data, "squeezenet.onnx").digest
        self._text = self._real[0].text()
        self._jobs = [_name("job", number)[:32] for number in range(size.jobs)]

    def known(self) -> Known:
        secret, token = self._storage.tokens.create("the one who asks", [Scope.ADMIN])
        self._people()
        workers = self._workers(token.id)
        models = self._models()
        self._workloads()
        self._write(
            JobRow, [self._job(number, models, token.id) for number in range(self._size.jobs)]
        )
        self._write(
            TaskRow, [task for number in range(self._size.jobs) for task in self._tasks(number)]
        )
        self._events()
        record = self._records()
        self._cost_models()
        retain(self._storage, self._size.requests)
        self._leases(workers)
        self._trials(workers)
        if self._storage.engine.dialect.name == "postgresql":  # which does so automatically
            alone = self._storage.engine.execution_options(isolation_level="AUTOCOMMIT")
            with alone.connect() as connection:
                connection.exec_driver_sql("VACUUM ANALYZE")
        return Known(
            token=secret,
            token_id=token.id,
            job_id=self._jobs[0],
            small_job=self._jobs[MODELS],
            model=self._model,
            workload=self._real[0].key,
            unknown_workload=self._real[1].key,
            tuned_workload=self._family()[0],
            record_id=record,
            worker_id=workers[0],
            target=TARGET,
        )

    def _write(self, row: type[Any], rows: Sequence[Mapping[str, Any]]) -> None:
        """Insert rows.

        Missing columns become NULL, or an empty value if the column is not nullable.
        """
        table = table_of(row)
        blank = {c.name: _blank(c) for c in table.columns if c.autoincrement is not True}
        with writing(self._storage.engine) as connection:
            connection.execute(sa.insert(table), [{**blank, **each} for each in rows])

    def _people(self) -> None:
        with self._storage.together():
            for number in range(self._size.tokens):
                self._storage.tokens.create(f"person {number}", [Scope.READ, Scope.SUBMIT])
            for number in range(self._size.audit):
                self._storage.audit.add(
                    Action.JOB_CANCELLED,
                    self._jobs[number % len(self._jobs)],
                    actor=_name("person", number % 50)[:32],
                    actor_name=f"person {number % 50}",
                    origin="192.0.2.1",
                    detail={"state": "cancelled"},
                )

    def _workers(self, owner: str) -> list[str]:
        device = find_device().to_json()
        made = []
        with self._storage.together():
            for number in range(self._size.workers):
                worker = self._storage.workers.register(
                    f"board {number}", self._targets, device, protocol=PROTOCOL, owner=owner
                )
                made.append(worker.id)
                self._storage.workers.heartbeat(
                    worker.id,
                    speed={
                        "arithmetic_seconds": 1e-3,
                        "memory_seconds": 1e-3,
                        "disturbed": False,
                        "arithmetic_ratio": 1.01,
                        "memory_ratio": 1.02,
                        "throttled": False,
                    },
                    condition={"temperature_celsius": 51.0, "load": 0.7, "governor": "performance"},
                )
            for worker_id in made[::5]:
                self._storage.workers.leave(worker_id)
        return made

    def _models(self) -> list[str]:
        made = [_name("model", number) for number in range(1, MODELS)]
        row = {"bytes": 100_000_000, "created_at": self._now}
        self._write(
            ModelRow,
            [{**row, "digest": key, "name": f"model {n}.onnx"} for n, key in enumerate(made, 1)],
        )
        return [self._model, *made]

    def _names(self, model: int) -> list[str]:
        if model == 0:
            return [workload.key for workload in self._real]
        return [_name("workload", model, number) for number in range(WORKLOADS)]

    def _workloads(self) -> None:
        """Write the workloads (fused subgraphs), and their operators and sizes.

        Thousands of workloads have the structure of one real workload, most of them with other
        sizes.
        """
        real = {workload.key: workload.text() for workload in self._real}
        self._storage.workloads.put_workloads(real)
        self._storage.shapes.index(shape_of)
        shape = shape_of(self._text)
        drawn = []
        for key in [key for model in range(1, MODELS) for key in self._names(model)]:
            drawn.append((key, _name("structure", self._random.randrange(200)), "matmul"))
        drawn += [(key, shape.structure, shape.operator) for key in self._family()]
        row = {"text": self._text, "created_at": self._now}
        self._write(WorkloadRow, [{**row, "key": key} for key, _, _ in drawn])
        self._write(WorkloadShapeRow, [self._shape(n, *each) for n, each in enumerate(drawn)])

    def _shape(self, number: int, key: str, structure: str, operator: str) -> dict[str, Any]:
        sizes = list(shape_of(self._text).sizes)
        if number % 20:  # the others differ in numbers alone
            sizes[0] = self._random.randrange(8, 512)
        found = {"workload_key": key, "structure": structure, "family": key, "sizes": sizes}
        columns = {"operator": operator, "name": f"{operator} 3x3 +relu {number}x56x56"}
        return found | columns | {"extent": extent(sizes)}

    def _family(self) -> list[str]:
        return [_name("family", number) for number in range(self._size.records // 2)]

    def _job(self, number: int, models: Sequence[str], owner: str) -> dict[str, Any]:
        state = JobState.RUNNING if number == 0 else self._random.choice(ENDED)
        if number % 100 == 99:
            state = JobState.WAITING
        at = self._now - 3600.0 * number
        trials = self._size.trials // 10 if number == 0 else 1000
        return {
            "id": self._jobs[number],
            "state": state.value,
            "model_digest": models[number % MODELS],
            "target": "x86-64-v3",
            "target_key": TARGET,
            "threads": 1,
            "numerics": "fast",
            "options": {"trials": trials},
            "owner": owner,
            "idempotency_key": str(number),
            "phase": "tuning",
            "tasks_total": WORKLOADS,
            "tasks_done": WORKLOADS // 2,
            "trials_budget": trials,
            "trials_done": trials // 2,
            "default_seconds": 2e-2,
            "best_seconds": 1e-2,
            "created_at": at,
            "progressed_at": at,
            "finished_at": at if state.final else None,
            "event_sequence": 1_000_000,
        }

    def _tasks(self, number: int) -> list[dict[str, Any]]:
        model = number % MODELS
        target = known_targets()["x86-64-v3"]
        chosen = untuned_schedule(self._real[0], Mode(target)).to_json()
        facts = {"flops": 1e9, "bytes": 1e6, "bound_seconds": 1e-5, "algorithm": "direct"}
        facts |= {"origins": {"model": 50}, "schedule": chosen, "best_origin": "model"}
        return [
            {
                "job_id": self._jobs[number],
                "workload_key": key,
                "position": position,
                "name": f"conv 3x3 +relu {position}x56x56",
                "count": 1 + position % 4,
                "weight": 1e9,
                "status": TaskStatus.TUNED.value,
                "default_seconds": 1e-4 * (1 + position),
                "best_seconds": 5e-5 * (1 + position),
                "trials": 40,
                "facts": facts,
            }
            for position, key in enumerate(self._names(model))
        ]

    def _events(self) -> None:
        """Write the events of all jobs, one per eight trials.

        Every 50th event is about a task, and the others are about progress.
        """
        rows = []
        for number, job in enumerate(self._jobs):
            many = self._size.trials // 80 if number == 0 else 125
            for sequence in range(many):
                kind = "task" if sequence % 50 == 49 else "progress"
                data: dict[str, Any] = {"trials_done": 8 * sequence, "default_seconds": 2e-2}
                data |= {"best_seconds": 2e-2 / (1 + sequence / many), "phase": "tuning"}
                if kind == "task":
                    data = {"name": "conv 3x3 +relu 64x56x56", "status": "tuned"}
                where = {"job_id": job, "sequence": sequence + 1, "kind": kind}
                rows.append({**where, "data": data, "created_at": self._now + sequence})
        self._write(EventRow, rows)

    def _records(self) -> str:
        """Write the tuning records, and return the id of one.

        One half is for similar workloads (fused subgraphs with the same structure), one record
        each. The other half is for random workloads that jobs tuned. If a workload has several
        records for one target, all but the last written are marked as superseded.
        """
        keys = self._family()
        tuned = [key for model in range(1, MODELS) for key in self._names(model)]
        made: dict[str, dict[str, Any]] = {}
        for number in range(self._size.records):
            key = keys[number] if number < len(keys) else self._random.choice(tuned)
            target = self._targets[0 if number < len(keys) else self._random.randrange(3)]
            found = record_values(record_of_load(key), self._now - number, job_id=self._jobs[1])
            found |= {"id": _name("record", number)[:32], "target_key": target}
            if number >= len(keys):
                before = made.get(f"{key}/{target}")
                if before is not None:
                    before["state"] = ReviewState.SUPERSEDED.value
            made[f"{key}/{target}" if number >= len(keys) else found["id"]] = found
            made[found["id"]] = found
        rows = list({row["id"]: row for row in made.values()}.values())
        self._write(ClaimRow, rows)
        return str(rows[0]["id"])

    def _cost_models(self) -> None:
        rows = [
            {
                "target_key": target,
                "version": version,
                "digest": _name(target, version),
                "feature_version": 1,
                "objective": "rank:pairwise",
                "rows": 1000,
                "tasks": 20,
                "trials": 1000 * version,
                "scores": dict.fromkeys(("rank", "top 1", "top 8"), 0.5 + version / 100),
                "chance": {"rank": 0.5, "top 1": 0.1, "top 8": 0.4},
                "state": "retired",
                "created_at": self._now - version,
            }
            for target in self._targets
            for version in range(1, COST_MODELS + 1)
        ]
        self._write(CostModelRow, rows)

    def _leases(self, workers: Sequence[str]) -> None:
        rows = [
            {
                "id": _name("lease", number)[:32],
                "request_id": f"retained-{number}",
                "worker_id": workers[number % len(workers)],
                "attempt": 1,
                "taken_at": self._now,
                "deadline": self._now + 1e6,
                "ended_at": None if number < len(workers) else self._now,
            }
            for number in range(self._size.requests)
        ]
        self._write(LeaseRow, rows)

    def _trials(self, workers: Sequence[str]) -> None:
        device = find_device().brief().to_json()
        found = [self._trial(number, workers, device) for number in range(TEMPLATES)]
        self._storage.records.add_trials(found)
        table, tasks = table_of(TrialRow), table_of(TaskRow)
        copied = [
            c for c in table.columns if c.name not in ("serial", "id", "job_id", "workload_key")
        ]
        template = sa.select(table).where(table.c.job_id == "template").subquery()
        chunks = -(-self._size.trials // TEMPLATES)
        largest = max(1, chunks // 10)
        with writing(self._storage.engine) as connection:
            for chunk in range(chunks):
                number = 0 if chunk < largest else 1 + (chunk - largest) % (len(self._jobs) - 1)
                job = self._jobs[number]
                names = self._names(number % MODELS)
                position = template.c.serial % len(names)
                query = (
                    sa.select(
                        sa.func.substr(template.c.id, 1, 24) + sa.literal(f"{chunk:08x}"),
                        sa.literal(job),
                        tasks.c.workload_key,
                        *(template.c[c.name] for c in copied),
                    )
                    .join(tasks, (tasks.c.job_id == job) & (tasks.c.position == position))
                    .order_by(template.c.serial)
                )
                columns = ["id", "job_id", "workload_key", *(c.name for c in copied)]
                connection.execute(sa.insert(table).from_select(columns, query))
            connection.execute(sa.delete(table).where(table.c.job_id == "template"))

    def _trial(self, number: int, workers: Sequence[str], device: Mapping[str, Any]) -> Trial:
        drawn = self._random
        status = drawn.choice(STATUSES)
        seconds = 1e-4 * drawn.uniform(1, 4)
        samples = tuple(seconds * drawn.uniform(1, 1.2) for _ in range(10))
        schedule = Schedule.of(
            "direct",
            tile_m=drawn.choice((1, 2, 4, 6, 8)),
            tile_n=drawn.choice((8, 16, 32)),
            tile_k=drawn.choice((16, 64, 256)),
            unroll=drawn.choice((1, 2, 4)),
            parallel=1,
        )
        measurement = Measurement(
            status,
            error="" if status is Status.OK else "the compiler refused",
            samples_seconds=samples if status is Status.OK else (),
            max_error=1e-7,
            tolerance=1e-4,
            seeds=(1, 2, 3),
            reference_digest=_name("reference"),
            object_digest=_name("object", number),
            build_seconds=0.1,
            measure_seconds=0.2,
            worker=drawn.choice(workers),
            device=device,
            measured_at=self._now,
            checks=3,
        )
        key = RecordKey(self._real[0].key, TARGET, 1, "fast")
        phase = Phase.SCREEN if number % 10 else Phase.FINAL
        return Trial(
            id=_name("trial", number)[:32],
            key=key,
            schedule=schedule,
            measurement=measurement,
            phase=phase,
            job_id="template",
            codegen_version="1",
            origin=drawn.choice(ORIGINS),
        )


def _blank(column: sa.Column[Any]) -> Any:
    """The value for a column without data: NULL if possible, otherwise empty or zero."""
    if column.nullable:
        return None
    if isinstance(column.type, sa.JSON):
        return {}
    if isinstance(column.type, sa.Boolean):
        return False
    return "" if isinstance(column.type, sa.Text) or column.type.python_type is str else 0
