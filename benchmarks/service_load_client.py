"""HTTP clients on persistent connections, for measurements of the service's load.

They send the next request as soon as a response has arrived.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Wanted:
    """An endless iterator of raw HTTP requests, and the local port to send them to."""

    port: int
    requests: Iterator[bytes]


@dataclass(frozen=True, slots=True)
class Answered:
    """Number of seconds of a measurement, the latencies of all responses, and the number of
    responses other than 200.
    """

    seconds: float
    latencies: Sequence[float]  # in seconds
    failures: int

    @property
    def rate(self) -> float:
        """Responses per second."""
        return len(self.latencies) / self.seconds

    def quantile(self, share: float) -> float:
        """Quantile of the latencies in seconds; `share` 0.99 gives the p99."""
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class _Client(asyncio.Protocol):
    def __init__(self, requests: Iterator[bytes], ends: float) -> None:
        self._requests = requests
        self._ends = ends
        self._received = bytearray()
        self._needed: int | None = None  # bytes of the whole answer
        self.latencies: list[float] = []
        self.failures = 0
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._ask()

    def _ask(self) -> None:
        self._received.clear()
        self._needed = None
        self._asked = time.perf_counter()
        self._transport.write(next(self._requests))

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._needed is None:
            head = self._received.find(b"\r\n\r\n")
            if head < 0:
                return
            fields = bytes(self._received[:head]).lower().split(b"\r\n")
            self.failures += b" 200 " not in fields[0]
            length = next(f for f in fields if f.startswith(b"content-length:"))
            self._needed = head + 4 + int(length.partition(b":")[2])
        if len(self._received) < self._needed:
            return
        now = time.perf_counter()
        self.latencies.append(now - self._asked)
        if now < self._ends:
            self._ask()
        else:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.done.set_result(None)


def measure(wanted: Wanted, clients: int, seconds: float) -> Answered:
    """Send requests from this many concurrent clients for `seconds`."""

    async def run() -> Answered:
        loop = asyncio.get_running_loop()
        started = time.perf_counter()
        made = [
            await loop.create_connection(
                lambda: _Client(wanted.requests, started + seconds), "127.0.0.1", wanted.port
            )
            for _ in range(clients)
        ]
        asking = [client for _, client in made]
        await asyncio.gather(*(client.done for client in asking))
        latencies = [latency for client in asking for latency in client.latencies]
        return Answered(
            time.perf_counter() - started, latencies, sum(client.failures for client in asking)
        )

    return asyncio.run(run())


@contextmanager
def held(port: int, request: bytes, count: int) -> Iterator[None]:
    """Context with `count` open connections that sent a request and never read the response."""
    with ExitStack() as stack:
        for _ in range(count):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            connection.sendall(request)
        yield


def until_answered(wanted: Wanted, seconds: float) -> None:
    """Wait until a starting server answers with status 200. Raises TimeoutError after `seconds`."""
    ends = time.monotonic() + seconds
    while True:
        try:
            if measure(wanted, 1, 0.0).failures == 0:
                return
        except OSError:
            pass
        if time.monotonic() > ends:
            raise TimeoutError(f"nothing answers on port {wanted.port}")
        time.sleep(0.1)
