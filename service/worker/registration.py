"""Registers a worker with the service; stores the id and the intervals that the service returns."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Mapping
from typing import Any

from tilewright.service.worker.http import (
    LAST_PAUSE_SECONDS,
    Api,
    Backoff,
    Distrusted,
    Refused,
    Unreachable,
    field,
    seconds_of,
)
from tilewright.service.worker.log import WorkerLog
from tilewright.service.worker.options import KEY_BYTES, WorkerOptions, of_base64
from tilewright.service.worker.state import StateFolder
from tilewright.tuner.protocol.signing import is_signature, signed_lease
from tilewright.tuner.protocol.version import PROTOCOL


class Registration:
    """Registers the worker at its start, and again if the service no longer knows it.

    Args:
        options: the options of the worker.
        api: the calls to the service.
        files: the state on disk, with the worker's id and the service's key.
        facts: the properties of the device, as `Harness.facts` returns them.
        stopping: set when the worker ends.
        log: writes messages.
    """

    def __init__(
        self,
        options: WorkerOptions,
        api: Api,
        files: StateFolder,
        facts: Mapping[str, Any],
        stopping: threading.Event,
        log: WorkerLog,
    ) -> None:
        self._options = options
        self._api = api
        self._files = files
        self._facts = facts
        self._stopping = stopping
        self._log = log
        self._lock = threading.Lock()
        self.worker_id = ""
        self._service_key = b""
        self.heartbeat_seconds = 5.0
        self.long_poll_seconds = 20.0
        self._longest_pause = LAST_PAUSE_SECONDS

    def backoff(self) -> Backoff:
        """Return a Backoff whose pauses are much shorter than the time limit of a lease.

        So leases can still be renewed in time after a short outage of the service.
        """
        return Backoff(self._stopping, self._longest_pause)

    def register_again(self, worker_id: str) -> None:
        """Register the worker again, because the service no longer knows its id.

        If several threads call this method, only the first call registers.

        Args:
            worker_id: the id that the service does not know.

        Raises:
            Refused: if the service rejects the worker, because of a wrong token or protocol
                version.
            Distrusted: if the key of the service has changed.
        """
        with self._lock:
            if self.worker_id == worker_id:
                self._log("the service does not know this worker any more")
                self.register()

    def register(self) -> None:
        """Register the worker; retry until the service answers or the worker ends.

        Raises:
            Refused: if the service rejects the worker, because of a wrong token or protocol
                version.
            Distrusted: if the key of the service has changed.
        """
        backoff = Backoff(self._stopping)
        said = False
        # generated here, so that a repeated registration creates only one worker
        drawn = self._files.worker_id or uuid.uuid4().hex
        while not self._stopping.is_set():
            body = {
                "name": self._options.name,
                "device": dict(self._facts),
                "targets": list(self._options.targets),
                "protocol": PROTOCOL,
                "worker_id": drawn,
            }
            try:
                self._take(self._api.call("POST", "/v1/workers", body))
                return
            except Unreachable as error:
                if not said:
                    self._log(f"waiting for the service: {error}")
                    said = True
                backoff.wait()
                continue
            except Refused as error:
                if error.slug == "forbidden" and drawn == self._files.worker_id:
                    # the worker belonged to another token
                    self._files.worker_id = ""
                    drawn = uuid.uuid4().hex
                    continue
                raise

    def _take(self, answer: dict[str, Any]) -> None:
        """Read the worker id, the service's key and the intervals from the answer, and store them.

        Raises:
            Distrusted: if the key of the service has changed.
            Unreachable: if the answer is malformed.
        """
        worker = field(answer, "worker", dict)
        worker_id, keys = field(worker, "id", str), field(worker, "target_keys", list)
        self._check_key(field(answer, "service_key", str))
        self.heartbeat_seconds = seconds_of(answer, "heartbeat_seconds")
        self.long_poll_seconds = seconds_of(answer, "long_poll_seconds")
        self._longest_pause = min(LAST_PAUSE_SECONDS, seconds_of(answer, "lease_seconds") / 4)
        self.worker_id = self._files.worker_id = worker_id
        why = f": {answer['recognised']}" if answer.get("recognised") else ""
        self._log(f"registered as {worker_id} for {len(keys)} targets{why}", logging.INFO)

    def come_again(self, answer: dict[str, Any]) -> None:
        """Store the interval until the next heartbeat, from the answer to a heartbeat.

        Raises:
            Unreachable: if the interval is invalid.
        """
        self.heartbeat_seconds = seconds_of(answer, "heartbeat_seconds")

    def _check_key(self, key: str) -> None:
        """Compare the service's public key with the stored one; store it at the first contact.

        Raises:
            Unreachable: if the key is malformed.
            Distrusted: if the key differs.
        """
        data = of_base64(key)
        if len(data) != KEY_BYTES:
            raise Unreachable(f"the answer is not the service's: {key[:100]!r} is not a public key")
        known = self._options.service_key or self._files.service_key
        if known not in (None, key):
            raise Distrusted(
                f"the key of the service at {self._options.server} is {key}, and was {known}: "
                "if it is meant to have another one, start the worker once with --service-key"
            )
        if self._files.service_key != key:
            self._files.service_key = key
        self._service_key = data

    def check_signed(self, request_id: str, payload: dict[str, Any], signature: str) -> None:
        """Check that a request was signed with the service's key.

        Args:
            request_id: the id of the request.
            payload: the request as JSON.
            signature: the signature in base64.

        Raises:
            Distrusted: if the signature is wrong.
        """
        said = signed_lease(request_id, payload)
        if not is_signature(self._service_key, said, of_base64(signature)):
            raise Distrusted(
                f"request '{request_id[:100]}' is not signed with the key of the service at "
                f"{self._options.server}: nothing of it was run"
            )

    def leave(self) -> None:
        """Unregister the worker, so that the service gives it no further work.

        Raises:
            Unreachable: if the service does not answer, or asks for a retry.
            Refused: if the service rejects the request.
        """
        self._api.call("DELETE", f"/v1/workers/{self.worker_id}")
