"""Simulated workers, which speak the worker protocol but measure nothing.

Thousands of them are coroutines in one process. Each worker concurrently claims leases, sleeps for
the duration of a batch, reports results and sends heartbeats, as `service.worker` does. All
available leases are measured together. Meanwhile, earlier results are reported and further leases
claimed; nothing is claimed while a result is unreported. A worker keeps one connection for claims
and one for results; each heartbeat uses a new connection. Blobs are not downloaded.
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
from tilewright.service.worker.facts import registration_facts
from tilewright.service.worker.held_lease import PREFETCHED
from tilewright.tuner.measure.job_queue import MOST_TOGETHER
from tilewright.tuner.protocol.batches import MeasureRequest, MeasureResult
from tilewright.tuner.protocol.measurement import Measurement, Status
from tilewright.tuner.protocol.version import PROTOCOL

POLL_SECONDS, SHORT_POLL_SECONDS = 20.0, 1.0
"""Longest wait of a claim in seconds: of a worker without leases, and of one that is measuring."""

PATIENCE_SECONDS = 60.0
"""A request that takes longer counts as failed, as for a real worker."""

FACTS = registration_facts()
"""Facts about this machine. Real workers would report facts of the same length."""


@dataclass(slots=True)
class CrowdOutcomes:
    """Statistics of simulated workers.

    These are the latencies of their claims, results and heartbeats in seconds, and the numbers of
    trials, lost leases and failures.
    """

    claims: list[float] = field(default_factory=list)  # seconds, of those that brought work
    results: list[float] = field(default_factory=list)
    heartbeats: list[float] = field(default_factory=list)
    trials: int = 0
    lost: int = 0  # leases that a heartbeat did not renew
    failures: Counter[str] = field(default_factory=Counter)


class _Connection:
    """A persistent HTTP connection that sends JSON as a real worker does."""

    def __init__(self, port: int, token: str) -> None:
        self._port = port
        self._head = f"Host: h\r\nAuthorization: Bearer {token}\r\n"
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, path: str, body: Mapping[str, Any]) -> tuple[int, Any]:
        """Send a POST request; returns the status and the decoded answer.

        Raises OSError if the connection fails or the request takes more than 60 s.
        """
        data = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\n{self._head}Content-Type: application/json\r\n"
            f"Content-Length: {len(data)}\r\n\r\n"
        )
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                kept = self._streams is not None
                try:
                    return await self._exchange(head.encode() + data)
                except (ConnectionError, asyncio.IncompleteReadError):
                    if not kept:
                        raise
                    # the service has closed what lay idle: whatever is asked is safe to repeat
                    return await self._exchange(head.encode() + data)
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            raise OSError(type(error).__name__) from error

    async def _exchange(self, request: bytes) -> tuple[int, Any]:
        """Send a request on the open connection, or open a new one if necessary."""
        try:
            if self._streams is None or self._streams[0].at_eof():
                self.close()
                self._streams = await asyncio.open_connection("127.0.0.1", self._port)
            reader, writer = self._streams
            writer.write(request)
            return await _answer(reader)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def _answer(reader: asyncio.StreamReader) -> tuple[int, Any]:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = head.partition(b"content-length:")[2].partition(b"\r\n")[0]
    body = await reader.readexactly(int(length))
    return int(head.split(b" ", 2)[1]), json.loads(body) if body else None


class _Hand:
    """Leases that one worker holds, as in `service.worker.held_lease`.

    Attributes:
        leases: payloads of leases that are not measured yet, by lease id.
        ready: lease ids in the order of arrival.
        spool: results that are not reported yet, as lease id and payload.
    """

    def __init__(self) -> None:
        self.leases: dict[str, Any] = {}
        self.ready: asyncio.Queue[str] = asyncio.Queue()
        self.spool: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()
        self._unreported = 0
        self._changed = asyncio.Event()

    async def room(self) -> int:
        """Wait until this worker may claim leases; returns how many."""
        while self._unreported or len(self.leases) >= PREFETCHED:
            self._changed.clear()
            await self._changed.wait()
        return PREFETCHED - len(self.leases)

    def measured(self, names: Sequence[str]) -> None:
        """Move measured leases that this worker still holds to the spool of unreported results."""
        for name in names:
            if name in self.leases:
                self.spool.put_nowait((name, self.leases.pop(name)))
                self._unreported += 1

    def reported(self) -> None:
        self._unreported -= 1
        self._changed.set()

    def lose(self, name: str) -> bool:
        """Remove a lease that was not renewed; returns whether this worker still held it."""
        lost = self.leases.pop(name, None) is not None
        self._changed.set()
        return lost


class Crowd:
    """A group of simulated workers. Each measures a batch in `batch_seconds`.

    Attributes:
        outcomes: statistics of their requests; may be replaced to start a new period.
    """

    def __init__(self, port: int, token: str, workers: int, batch_seconds: float) -> None:
        self.outcomes = CrowdOutcomes()
        self._port = port
        self._token = token
        self._workers = workers
        self._batch_seconds = batch_seconds

    async def enter(self) -> Sequence[asyncio.Task[None]]:
        """Register all workers, at most 32 at a time, and start them.

        Returns their asyncio tasks.
        """
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
            for hand in [_Hand()]
            for work in (
                self._claim(worker_id, hand),
                self._measure(hand),
                self._report(worker_id, hand),
                self._live(worker_id, hand, pause),
            )
        ]

    async def _claim(self, worker_id: str, hand: _Hand) -> None:
        connection = _Connection(self._port, self._token)
        await asyncio.sleep(random.random() * 2.0)  # they did not come in one moment
        try:
            while True:
                limit = await hand.room()
                body = {
                    "worker_id": worker_id,
                    "claim_id": uuid.uuid4().hex,
                    "limit": limit,
                    "wait_seconds": POLL_SECONDS if limit == PREFETCHED else SHORT_POLL_SECONDS,
                }
                began = time.perf_counter()
                answer = await self._post(connection, "/v1/leases/claim", body)
                leases: Sequence[Any] = answer["leases"] if answer else ()
                if leases:
                    self.outcomes.claims.append(time.perf_counter() - began)
                for lease in leases:
                    hand.leases[lease["lease_id"]] = lease["payload"]
                    hand.ready.put_nowait(lease["lease_id"])
        finally:
            connection.close()

    async def _measure(self, hand: _Hand) -> None:
        while True:
            together = [await hand.ready.get()]
            while len(together) < MOST_TOGETHER and not hand.ready.empty():
                together.append(hand.ready.get_nowait())
            await asyncio.sleep(self._batch_seconds * len(together))
            hand.measured(together)

    async def _report(self, worker_id: str, hand: _Hand) -> None:
        connection = _Connection(self._port, self._token)
        try:
            while True:
                lease_id, payload = await hand.spool.get()
                request = MeasureRequest.from_json(payload)
                body = {
                    "worker_id": worker_id,
                    "result_key": f"{worker_id}-{request.request_id}",
                    "result": measured(request, worker_id).to_json(),
                }
                began = time.perf_counter()
                answer = await self._post(connection, f"/v1/leases/{lease_id}/result", body)
                self.outcomes.results.append(time.perf_counter() - began)
                hand.reported()
                if answer and answer["completion"] == "accepted":
                    self.outcomes.trials += len(request.candidates)
        finally:
            connection.close()

    async def _live(self, worker_id: str, hand: _Hand, pause: float) -> None:
        await asyncio.sleep(random.random() * pause)
        while True:
            connection = _Connection(self._port, self._token)
            leases = list(hand.leases)
            began = time.perf_counter()
            answer = await self._post(
                connection, f"/v1/workers/{worker_id}/heartbeat", {"leases": leases}
            )
            connection.close()
            self.outcomes.heartbeats.append(time.perf_counter() - began)
            if answer:
                pause = answer["heartbeat_seconds"]
                for lease in leases:
                    if lease not in answer["renewed"] and hand.lose(lease):
                        self.outcomes.lost += 1
            await asyncio.sleep(pause)

    async def _post(self, connection: _Connection, path: str, body: Mapping[str, Any]) -> Any:
        """Send a request.

        Returns the answer, or None after a failure, which is counted and followed by a pause of 1
        s.
        """
        try:
            status, answer = await connection.post(path, body)
        except OSError as error:
            said = str(error)
        else:
            if status < 400:
                return answer
            said = str(status)
        self.outcomes.failures[said] += 1
        await asyncio.sleep(1.0)
        return None


def measured(request: MeasureRequest, worker: str) -> MeasureResult:
    """An artificial result of a request: every candidate ran and was correct."""
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
