"""Workers that measure nothing: they claim, wait as long as a batch takes, report, and say that
they live, as `service.worker` does. Thousands of them are coroutines of one process.

A worker keeps one connection for claims and results; heartbeats come on another one, as they do
while a claim waits. Blobs are not fetched.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.service_load_server import TARGET
from service.worker.facts import registration_facts
from tuner.measure.measurement import Measurement, Status
from tuner.measure.wire import PROTOCOL, MeasureRequest, MeasureResult

PREFETCHED = 4
"""Leases in hand, as a worker has them."""

POLL_SECONDS = 20.0
PATIENCE_SECONDS = 60.0
"""A request that takes longer has failed, as for a worker."""

FACTS = registration_facts()
"""Of this machine: what real workers would say of theirs is as long."""


@dataclass(slots=True)
class Told:
    """What came of a crowd's requests."""

    claims: list[float] = field(default_factory=list)  # seconds, of those that brought work
    results: list[float] = field(default_factory=list)
    heartbeats: list[float] = field(default_factory=list)
    trials: int = 0
    lost: int = 0  # leases that a heartbeat did not renew
    failures: Counter[str] = field(default_factory=Counter)


class _Connection:
    """HTTP as a worker speaks it, on a connection that is kept."""

    def __init__(self, port: int, token: str) -> None:
        self._port = port
        self._head = f"Host: h\r\nAuthorization: Bearer {token}\r\n"
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, path: str, body: Mapping[str, Any]) -> tuple[int, Any]:
        """Status and answer. Raises OSError, TimeoutError."""
        data = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\n{self._head}Content-Type: application/json\r\n"
            f"Content-Length: {len(data)}\r\n\r\n"
        )
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                if self._streams is None or self._streams[0].at_eof():
                    self.close()
                    self._streams = await asyncio.open_connection("127.0.0.1", self._port)
                reader, writer = self._streams
                writer.write(head.encode() + data)
                return await _answer(reader)
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            self.close()
            raise OSError(type(error).__name__) from error

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def _answer(reader: asyncio.StreamReader) -> tuple[int, Any]:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = head.partition(b"content-length:")[2].partition(b"\r\n")[0]
    body = await reader.readexactly(int(length))
    return int(head.split(b" ", 2)[1]), json.loads(body) if body else None


class Crowd:
    """So many workers. `batch_seconds` is how long each measures a batch.

    Attributes:
        told: what came of their requests; replaced to begin anew.
    """

    def __init__(self, port: int, token: str, workers: int, batch_seconds: float) -> None:
        self.told = Told()
        self._requests: dict[str, Any] = {}  # payloads of what is in hand
        self._port = port
        self._token = token
        self._workers = workers
        self._batch_seconds = batch_seconds

    async def enter(self) -> Sequence[asyncio.Task[None]]:
        """Register all, a few at a time; their tasks."""
        turn = asyncio.Semaphore(32)

        async def register(number: int) -> tuple[str, float]:
            async with turn:
                connection = _Connection(self._port, self._token)
                body = {
                    "name": f"simulated-{number}",
                    "device": FACTS,
                    "targets": [TARGET],
                    "protocol": PROTOCOL,
                }
                status, answer = await connection.post("/v1/workers", body)
                connection.close()
                if status != 201:
                    raise RuntimeError(f"a worker was not let in: {status} {answer}")
                return answer["worker"]["id"], answer["heartbeat_seconds"]

        known = await asyncio.gather(*map(register, range(self._workers)))
        return [
            asyncio.create_task(work)
            for worker_id, pause in known
            for held in [dict[str, str]()]
            for work in (self._measure(worker_id, held), self._live(worker_id, held, pause))
        ]

    async def _measure(self, worker_id: str, held: dict[str, str]) -> None:
        connection = _Connection(self._port, self._token)
        await asyncio.sleep(random.random() * 2.0)  # they did not come in one moment
        try:
            while True:
                for lease in await self._claim(connection, worker_id):
                    held[lease["lease_id"]] = lease["request_id"]
                for name in list(held):
                    await asyncio.sleep(self._batch_seconds)
                    if name in held:
                        await self._report(connection, worker_id, name, held.pop(name))
        finally:
            connection.close()

    async def _claim(self, connection: _Connection, worker_id: str) -> Sequence[Any]:
        body = {
            "worker_id": worker_id,
            "claim_id": uuid.uuid4().hex,
            "limit": PREFETCHED,
            "wait_seconds": POLL_SECONDS,
        }
        began = time.perf_counter()
        answer = await self._post(connection, "/v1/leases/claim", body)
        leases: Sequence[Any] = answer["leases"] if answer else ()
        if leases:
            self.told.claims.append(time.perf_counter() - began)
            for lease in leases:
                self._requests[lease["request_id"]] = lease["payload"]
        return leases

    async def _report(
        self, connection: _Connection, worker_id: str, lease_id: str, request_id: str
    ) -> None:
        request = MeasureRequest.from_json(self._requests.pop(request_id))
        body = {
            "worker_id": worker_id,
            "result_key": f"{worker_id}-{request_id}",
            "result": measured(request, worker_id).to_json(),
        }
        began = time.perf_counter()
        answer = await self._post(connection, f"/v1/leases/{lease_id}/result", body)
        self.told.results.append(time.perf_counter() - began)
        if answer and answer["completion"] == "accepted":
            self.told.trials += len(request.candidates)

    async def _live(self, worker_id: str, held: dict[str, str], pause: float) -> None:
        await asyncio.sleep(random.random() * pause)
        while True:
            connection = _Connection(self._port, self._token)
            leases = list(held)
            began = time.perf_counter()
            answer = await self._post(
                connection, f"/v1/workers/{worker_id}/heartbeat", {"leases": leases}
            )
            connection.close()
            self.told.heartbeats.append(time.perf_counter() - began)
            if answer:
                for lease in leases:
                    if lease not in answer["renewed"] and lease in held:
                        self.told.lost += 1
                        self._requests.pop(held.pop(lease), None)
            await asyncio.sleep(pause)

    async def _post(self, connection: _Connection, path: str, body: Mapping[str, Any]) -> Any:
        """The answer; None for a failure, which is counted and followed by a pause."""
        try:
            status, answer = await connection.post(path, body)
        except OSError as error:
            said = str(error)
        else:
            if status < 400:
                return answer
            said = str(status)
        self.told.failures[said] += 1
        await asyncio.sleep(1.0)
        return None


def measured(request: MeasureRequest, worker: str) -> MeasureResult:
    """Every candidate ran, and was right."""
    found = []
    for candidate in request.candidates:
        measurement = Measurement(
            Status.OK,
            samples_seconds=(1e-5, 1.1e-5, 1.05e-5, 1.2e-5, 1.02e-5),
            max_error=1e-7,
            tolerance=request.tolerance,
            seeds=tuple(spec.seed for case in request.cases for spec in case.inputs),
            reference_digest=request.cases[0].reference_digest,
            object_digest=candidate.object_digest,
            worker=worker,
            device=FACTS,
            measured_at=time.time(),
            checks=len(request.cases),
        )
        found.append((candidate.trial_id, measurement))
    return MeasureResult(request.request_id, tuple(found), worker)
