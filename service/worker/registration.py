"""A worker's registration with the service: its id, and the intervals that the service sets."""

from __future__ import annotations

import threading

from service.worker.facts import registration_facts
from service.worker.hand import Log
from service.worker.http import LAST_PAUSE_SECONDS, Api, Backoff, Refused, Unreachable
from service.worker.options import WorkerOptions
from service.worker.state import StateFolder
from tuner.measure.wire import PROTOCOL


class Registration:
    """Introduces the worker, at its start and whenever the service has forgotten it."""

    def __init__(
        self,
        options: WorkerOptions,
        api: Api,
        files: StateFolder,
        stopping: threading.Event,
        log: Log,
    ) -> None:
        self._options = options
        self._api = api
        self._files = files
        self._stopping = stopping
        self._log = log
        self.worker_id = ""
        self.heartbeat_seconds = 5.0
        self.long_poll_seconds = 20.0
        self._longest_pause = LAST_PAUSE_SECONDS

    def backoff(self) -> Backoff:
        """Pauses that end well within a lease: a service that comes back renews all leases."""
        return Backoff(self._stopping, self._longest_pause)

    def register(self) -> None:
        """Returns when the service knows this worker, or when the worker ends.

        Raises:
            Refused: if the service does not want it (a wrong token or protocol).
        """
        backoff = Backoff(self._stopping)
        said = False
        while not self._stopping.is_set():
            body = {
                "name": self._options.name,
                "device": registration_facts(),
                "targets": list(self._options.targets),
                "protocol": PROTOCOL,
                "worker_id": self._files.worker_id,
            }
            try:
                answer = self._api.call("POST", "/v1/workers", body)
            except Unreachable as error:
                if not said:
                    self._log(f"waiting for the service: {error}")
                    said = True
                backoff.wait()
                continue
            except Refused as error:
                if error.status in (403, 404) and self._files.worker_id is not None:
                    # another database or another token: our id means nothing there
                    self._files.worker_id = ""
                    continue
                raise
            self.worker_id = str(answer["worker"]["id"])
            self._files.worker_id = self.worker_id
            self.heartbeat_seconds = float(answer["heartbeat_seconds"])
            self.long_poll_seconds = float(answer["long_poll_seconds"])
            self._longest_pause = min(LAST_PAUSE_SECONDS, float(answer["lease_seconds"]) / 4)
            keys = answer["worker"]["target_keys"]
            why = f": {answer['recognised']}" if answer.get("recognised") else ""
            self._log(f"registered as {self.worker_id} for {len(keys)} targets{why}")
            return

    def leave(self) -> None:
        """Say good-bye. Raises Unreachable or Refused."""
        self._api.call("DELETE", f"/v1/workers/{self.worker_id}")
