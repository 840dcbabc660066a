"""Server processes for `service_load`: the service on a filled database, and a bare route."""

from __future__ import annotations

import hashlib
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import count
from multiprocessing import get_context
from pathlib import Path

import uvicorn

from benchmarks.light import light_model
from tilewright.compiler.mode import Mode
from tilewright.compiler.process import configure_process
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.targets.target import known_targets
from tilewright.db.engine import writing
from tilewright.db.storage import Storage
from tilewright.db.stores.claim_rows import record_values, serve
from tilewright.db.stores.requests import NewRequest
from tilewright.db.stores.statements import chunks
from tilewright.db.stores.tokens import Scope
from tilewright.service.api.listening import listen
from tilewright.service.jobs.plan.planning import ModelRequest, plan_model
from tilewright.service.settings import Settings
from tilewright.service.storage import open_storage
from tilewright.tuner.protocol.measurement import Measurement, RecordKey, Status, TuningRecord
from tilewright.tuner.protocol.version import PROTOCOL

COMMITS = 20
"""Commits per second of the process that commits."""

TARGET = known_targets()["x86-64-v3"].key


@dataclass(frozen=True, slots=True)
class Filled:
    """Identifiers in a filled database, and raw HTTP requests that use them."""

    token: str
    workloads: Sequence[str]
    worker_id: str
    job_id: str
    model: str

    def single(self, workload: str) -> bytes:
        """Request that looks up the schedule of one workload."""
        return self._head("GET", f"/v1/schedules?workload={workload}&target={TARGET}") + b"\r\n"

    def bulk(self, workloads: Sequence[str]) -> bytes:
        """Request that looks up the schedules of several workloads."""
        names = ", ".join(f'"{name}"' for name in workloads)
        return self._post(
            "/v1/schedules/lookup", f'{{"workloads": [{names}], "target": "{TARGET}"}}'
        )

    def by_model(self) -> bytes:
        """Request that looks up the schedules of all workloads of the model."""
        return self._post(
            "/v1/schedules/lookup", f'{{"model": "{self.model}", "target": "{TARGET}"}}'
        )

    def claim(self, wait_seconds: float) -> bytes:
        """Request by which the worker claims a lease, although no work exists."""
        body = f'{{"worker_id": "{self.worker_id}", "wait_seconds": {wait_seconds}}}'
        return self._post("/v1/leases/claim", body)

    def stream(self) -> bytes:
        """Request for the event stream of an idle job."""
        return self._head("GET", f"/v1/jobs/{self.job_id}/events") + b"\r\n"

    def _head(self, method: str, path: str) -> bytes:
        lines = f"{method} {path} HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {self.token}\r\n"
        return lines.encode()

    def _post(self, path: str, body: str) -> bytes:
        fields = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}"
        return self._head("POST", path) + fields.encode()


def settings_of(url: str, folder: Path) -> Settings:
    """The service's default settings, except for long polls of up to an hour."""
    return Settings(database_url=url, data_folder=folder, long_poll_seconds=3600.0)


def fill(url: str, folder: Path, records: int, retained: int) -> Filled:
    """Fill a new database, and return identifiers of its contents.

    It contains records (including records for all workloads of a model), finished requests, a
    worker and a queued job.
    """
    storage = open_storage(settings_of(url, folder))
    try:
        names = [hashlib.sha256(str(number).encode()).hexdigest() for number in range(records)]
        data = light_model("squeezenet").SerializeToString()
        planned = plan_model(ModelRequest(data, Mode(known_targets()["x86-64-v3"])))
        with writing(storage.engine) as connection:
            for name in (*names, *(workload.key for workload, _ in planned.workloads)):
                serve(connection, record_values(record_of_load(name), storage.clock()))
        retain(storage, retained)
        with storage.engine.connect() as connection:
            connection.exec_driver_sql("ANALYZE")
        secret, token = storage.tokens.create("load", [Scope.ADMIN])
        worker = storage.workers.register("idle", [TARGET], {}, protocol=PROTOCOL, owner=token.id)
        model = storage.models.add(data, "squeezenet.onnx")
        job = storage.jobs.create(model.digest, TARGET, TARGET)
        return Filled(secret, names, worker.id, job.id, model.digest)
    finally:
        storage.close()


def record_of_load(workload: str) -> TuningRecord:
    """A tuning record with all fields that a worker reports, such as samples, seeds and digests.

    The record is for the workload with key `workload`. Its values are artificial.
    """
    samples = tuple(1e-5 * (1 + number / 50) for number in range(20))
    measurement = Measurement(
        Status.OK,
        samples_seconds=samples,
        max_error=1e-7,
        tolerance=1e-4,
        seeds=(1, 2, 3),
        reference_digest="a" * 64,
        object_digest="b" * 64,
        worker="w" * 32,
        device={"model_name": "a CPU", "cores": 8, "governor": "performance", "caches": [1, 2, 3]},
        measured_at=1e9,
        checks=3,
    )
    schedule = Schedule.of("direct", tile_m=4, tile_n=16, tile_k=64, unroll=4, parallel=1)
    return TuningRecord(RecordKey(workload, TARGET), schedule, measurement, workload, "1", "0")


def retain(storage: Storage, requests: int) -> None:
    """Insert this many cancelled measurement requests, each with five artificial candidates."""
    payload = {"candidates": ["x" * 200] * 5}
    for some in chunks([f"retained-{number}" for number in range(requests)]):
        storage.leases.submit([NewRequest(name, TARGET, payload) for name in some])
        storage.leases.cancel(request_ids=some)


@contextmanager
def serving(serve_on: Callable[..., None], *arguments: object) -> Iterator[int]:
    """Context with a child process that serves on a free local port; yields the port."""
    sockets = listen("127.0.0.1", 0)
    # no daemon: the service has a child that plans models
    process = get_context("spawn").Process(
        target=_serve, args=(serve_on, sockets, arguments), name=serve_on.__name__.strip("_")
    )
    process.start()
    port: int = sockets[0].getsockname()[1]
    for one in sockets:
        one.close()
    try:
        yield port
    finally:
        process.terminate()
        process.join()


def _serve(
    serve_on: Callable[..., None], sockets: list[socket.socket], arguments: tuple[object, ...]
) -> None:
    serve_on(sockets, *arguments)


def serve_bare(sockets: list[socket.socket]) -> None:
    """Serve a minimal FastAPI application with one route."""
    from fastapi import FastAPI

    configure_process()
    app = FastAPI()

    @app.get("/bare")
    async def bare() -> dict[str, str]:
        return {"status": "ok"}

    # as the service has it: without a log of requests, and with uvicorn's own protocol
    config = uvicorn.Config(app, http="h11", ws="none", log_level="warning", access_log=False)
    uvicorn.Server(config).run(sockets)


def serve_service(sockets: list[socket.socket], url: str, folder: str) -> None:
    """Serve the service's API without a tuner."""
    from tilewright.service.api.app import create_app
    from tilewright.service.api.server import server_config

    configure_process()  # as `tilewright server run` does
    settings = settings_of(url, Path(folder))
    storage = open_storage(settings)
    try:
        uvicorn.Server(server_config(create_app(settings, storage), settings)).run(sockets)
    finally:
        storage.close()


@contextmanager
def beside(work: Callable[..., None], *arguments: object) -> Iterator[None]:
    """Context with a child process that runs `work` until the context ends."""
    process = get_context("spawn").Process(
        target=work, args=arguments, name=work.__name__.strip("_")
    )
    process.start()
    try:
        yield
    finally:
        process.terminate()
        process.join()


def committing(url: str, folder: str, worker_id: str) -> AbstractContextManager[None]:
    """Context with a process that commits heartbeats to the database continuously.

    Tuners and workers would change the database in a similar way.
    """
    return beside(_commit, url, folder, worker_id)


def recording(url: str, folder: str) -> AbstractContextManager[None]:
    """Context with a process that stores tuning records continuously.

    The records are for workloads that no client looks up.
    """
    return beside(_record, url, folder)


def _record(url: str, folder: str) -> None:
    storage = open_storage(settings_of(url, Path(folder)))
    for number in count():
        storage.records.add_record(record_of_load(hashlib.sha256(b"%d" % number).hexdigest()[::-1]))
        time.sleep(1 / COMMITS)


def _commit(url: str, folder: str, worker_id: str) -> None:
    storage = open_storage(settings_of(url, Path(folder)))
    while True:
        storage.workers.heartbeat(worker_id)
        time.sleep(1 / COMMITS)
