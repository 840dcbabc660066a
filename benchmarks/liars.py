"""Simulated malicious workers.

They report false times, false digests, or results for other workers' leases. Each is a thread that
uses the worker API of the service with its own token. It measures nothing.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from enum import StrEnum
from typing import Any, assert_never

import httpx2

from tests.measured import honest
from tilewright.compiler.runtime.speeds import Level, Speeds
from tilewright.service.worker.facts import registration_facts
from tilewright.tuner.measure.statistics import Comparison
from tilewright.tuner.protocol.batches import LEAST_SECONDS, MeasureRequest, MeasureResult
from tilewright.tuner.protocol.messages import read_request
from tilewright.tuner.protocol.run_results import Race, RunResult, RunStatus
from tilewright.tuner.protocol.runs import CheckWork, ProfileWork, RaceWork, RunRequest, SpeedsWork
from tilewright.tuner.protocol.version import PROTOCOL

BODY = Mapping[str, Any]


class Lie(StrEnum):
    TIMES = "times"
    DIGESTS = "digests"
    LEASES = "leases of others"


class Liar:
    """A worker thread that sends false reports of one kind.

    Args:
        kind: the kind of false report: false times, false digests, or reports for leases (assigned
            requests) of other workers.
        server: the URL of the service.
        token: the worker's token for the service, with the scope `measure`.
        leases: returns the live leases of all workers, as (lease, worker). A real attacker would
            not know them.
        seed: the seed of the worker's random choices.
    """

    def __init__(
        self,
        kind: Lie,
        server: str,
        token: str,
        leases: Callable[[], list[tuple[str, str]]],
        seed: int,
    ) -> None:
        self.kind = kind
        self.name = f"liar-{kind.value.split()[0]}"
        self.worker_id = ""
        self.statuses: Counter[int] = Counter()
        """Number of lies by the HTTP status of the answer."""
        self.believed: list[str] = []
        """Lies about other workers' leases that had an effect, as texts."""
        self._leases = leases
        self._random = random.Random(seed)
        self._http = httpx2.Client(
            base_url=server, headers={"Authorization": f"Bearer {token}"}, timeout=10.0
        )
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._http.close()

    def _run(self) -> None:
        while not self._stopping.is_set():
            with suppress(httpx2.HTTPError, ValueError):  # the service may be away
                self._turn()
            self._stopping.wait(0.2)

    def _turn(self) -> None:
        if not self.worker_id:
            # what it claims to be is this machine, so that it gets this machine's work
            body = {"name": self.name, "protocol": PROTOCOL, "device": registration_facts()}
            answer = self._post("/v1/workers", body)
            self.worker_id = str(answer["worker"]["id"]) if "worker" in answer else ""
            return
        self._post(f"/v1/workers/{self.worker_id}/heartbeat", {"leases": []})
        if self.kind is Lie.LEASES:
            for lease, worker in self._leases():
                self._lie_about(lease, worker)
            return
        body = {"worker_id": self.worker_id, "limit": 1, "wait_seconds": 1.0}
        for lease in self._post("/v1/leases/claim", body).get("leases", []):
            result = self._result(read_request(lease["payload"]))
            key = f"{self._random.getrandbits(64):x}"
            body = {"worker_id": self.worker_id, "result_key": key, "result": result}
            said = self._http.post(f"/v1/leases/{lease['lease_id']}/result", json=body)
            self.statuses[said.status_code] += 1

    def _lie_about(self, lease: str, worker: str) -> None:
        """Try to end, renew or take over another worker's lease.

        The requests are sent under the other worker's id and under the liar's own.
        """
        for name in (self.worker_id, worker):
            bodies: dict[str, BODY] = {
                f"/v1/leases/{lease}/failure": {"cause": "service", "error": "a lie"},
                f"/v1/leases/{lease}/result": {"result_key": "a lie", "result": {}},
                "/v1/leases/release": {"leases": [lease]},
                "/v1/leases/claim": {"limit": 1, "wait_seconds": 0.0},
            }
            if name == self.worker_id:
                del bodies["/v1/leases/claim"]
            for path, body in bodies.items():
                self._tell(path, {"worker_id": name, **body})
            self._tell(f"/v1/workers/{name}/heartbeat", {"leases": [lease]})
            if name != self.worker_id:
                self._tell(f"/v1/workers/{name}/drain", {"draining": True})

    def _tell(self, path: str, body: BODY) -> None:
        answer = self._http.post(path, json=dict(body))
        self.statuses[answer.status_code] += 1
        if answer.is_success and not _changed_nothing(answer.json()):
            self.believed.append(f"{path}: {answer.text[:200]}")

    def _post(self, path: str, body: BODY) -> dict[str, Any]:
        answer = self._http.post(path, json=dict(body))
        if answer.status_code == 404:
            self.worker_id = ""
        return dict(answer.json()) if answer.is_success else {}

    def _result(self, request: MeasureRequest | RunRequest) -> dict[str, Any]:
        match request:
            case MeasureRequest():
                return self._measured(request).to_json()
            case RunRequest():
                return self._ran(request).to_json()
            case _:
                assert_never(request)

    def _measured(self, request: MeasureRequest) -> MeasureResult:
        least = max(LEAST_SECONDS, request.least_seconds)
        if self.kind is Lie.TIMES:
            # one of three is absurd, the others might be true
            seconds = self._random.choice([least / 1e3, 1.2 * least, 1.5 * least])
            return honest(request, self.worker_id, seconds)
        lie = self._random.choice(["object_digest", "reference_digest"])
        return honest(request, self.worker_id, 1.5 * least, **{lie: "0" * 64})

    def _ran(self, request: RunRequest) -> RunResult:
        """Forge a successful result for any request: all programs are correct and very fast.

        A request may ask for a race, an interleaved timing of several programs. Every program
        except the first then takes a hundredth of the first program's time. A worker that lies
        about digests returns a result with a false request id instead.
        """
        work = request.work
        result = RunResult(request.request_id, RunStatus.OK, worker=self.worker_id)
        if self.kind is Lie.DIGESTS:
            return replace(result, request_id="0" * 32)
        match work:
            case CheckWork():
                errors = dict.fromkeys(work.expected, 0.0)
                return replace(result, errors=errors, fetched=dict.fromkeys(work.fetch, b""))
            case RaceWork():
                ratios = (0.01,) * 8
                comparisons = [Comparison(str(n), ratios) for n in range(1, len(work.variants))]
                return replace(result, race=Race(1e-6, tuple(comparisons)))
            case ProfileWork():
                return replace(result, seconds=(1e-9,) * 4)
            case SpeedsWork():
                return replace(result, speeds=Speeds(9e15, (Level("memory", 0, 9e15),)))
            case _:
                assert_never(work)


def _changed_nothing(said: BODY) -> bool:
    """Whether a response says that no lease was released or renewed: the lie had no effect."""
    return not said.get("released", said.get("renewed", True))
