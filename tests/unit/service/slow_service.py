"""A stand-in for the service, with one lease for a worker in C."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tilewright.tuner.measure.wire import PROTOCOL, signed_lease


class SlowService(BaseHTTPRequestHandler):
    """Answers as the service does, but takes its time to spell a request out, and begins with
    leases that make no sense."""

    LEASE = "1" * 32
    SPELLING_SECONDS = 0.6
    key = Ed25519PrivateKey.from_private_bytes(bytes(32))
    senseless = 0
    is_spelling = False
    until = 0.0
    blobs: Mapping[str, bytes] = {}
    beats: list[dict[str, Any]]
    failures: list[dict[str, Any]]
    results: list[dict[str, Any]]
    payload: Mapping[str, Any] = {}

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_POST(self) -> None:
        told = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        service, status, answer = type(self), 200, dict[str, Any]()
        match self.path.rpartition("/")[2]:
            case "workers":
                public = base64.b64encode(service.key.public_key().public_bytes_raw()).decode()
                seconds = {"heartbeat_seconds": 0.1, "long_poll_seconds": 0.1}
                worker = {"id": told["worker_id"], "target_keys": []}
                answer = {"worker": worker, "service_key": public, **seconds}
                service.until = time.monotonic() + 0.3
            case "heartbeat":
                service.beats.append({**told, "is_spelling": service.is_spelling})
                answer = {"renewed": {self.LEASE: 1.0}, "health": "ok"}
            case "claim" if service.failures or service.results:
                status, answer = 401, {"type": "urn:tilewright:problem:unauthorized"}
            case "claim" if time.monotonic() < service.until:
                service.senseless += 1
                answer = {"leases": [{"lease_id": "of another release"}]}
            case "claim":
                answer = {"leases": [{"lease_id": self.LEASE, **self.signed(())}]}
            case "plain":
                service.is_spelling = True
                time.sleep(self.SPELLING_SECONDS)
                service.is_spelling = False
                answer = self.signed(tuple(service.blobs) or ("2" * 64,))
            case "failure":
                service.failures.append(told)
            case "result":
                service.results.append(told["result"])
        self.answer(status, json.dumps(answer).encode())

    def do_GET(self) -> None:
        digest = self.path.rpartition("/")[2]
        self.answer(200, type(self).blobs.get(digest, b"a blob"))

    def do_DELETE(self) -> None:
        self.answer(204, b"")

    def answer(self, status: int, text: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/problem+json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        with suppress(BrokenPipeError):  # a worker that ends waits for no answer
            self.wfile.write(text)

    def signed(self, plain: tuple[str, ...]) -> dict[str, Any]:
        payload = {
            "protocol": PROTOCOL,
            "request_id": "r",
            "key": {"threads": 1},
            "plain": list(plain),
        }
        named = [*type(self).blobs, "3" * 64, "4" * 64]
        payload["key"] = {"threads": 1}
        payload |= {"library_digest": named[0], "cases": [{"reference_digest": named[1]}]}
        payload |= self.payload
        signature = base64.b64encode(self.key.sign(signed_lease("r", payload))).decode()
        return {"request_id": "r", "payload": payload, "signature": signature}


def slow_service() -> type[SlowService]:
    """One that keeps what it is told for itself."""
    return type("Slow", (SlowService,), {"beats": [], "failures": [], "results": []})
