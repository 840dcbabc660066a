"""An HTTP proxy that loses, delays and duplicates random requests, determined by a seed."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

HEAD_BYTES = 1 << 16
GIVE_UP_SECONDS = 90.0


class Fault(StrEnum):
    NONE = "none"
    LOST = "request lost"
    UNANSWERED = "answer lost"
    DELAYED = "delayed"
    DOUBLED = "doubled"


@dataclass(frozen=True, slots=True)
class Faults:
    """Probabilities of each kind of fault, and the maximum delay in seconds."""

    lost: float = 0.03
    unanswered: float = 0.03
    delayed: float = 0.06
    doubled: float = 0.06
    longest_seconds: float = 2.0

    def draw(self, chance: random.Random) -> Fault:
        names = [Fault.LOST, Fault.UNANSWERED, Fault.DELAYED, Fault.DOUBLED]
        shares = [self.lost, self.unanswered, self.delayed, self.doubled]
        return chance.choices([*names, Fault.NONE], [*shares, 1.0 - sum(shares)])[0]


class FaultyProxy:
    """A proxy on a loopback port that forwards requests to several local servers in rotation.

    Every connection carries one request. As a context manager, it listens until the context ends.
    `seen` counts the injected faults.
    """

    def __init__(self, port: int, servers: Sequence[int], faults: Faults, seed: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.seen: Counter[Fault] = Counter()
        self._port = port
        self._servers = servers
        self._faults = faults
        self._random = random.Random(seed)
        self._turn = 0
        self._loop = asyncio.new_event_loop()
        self._listens = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> FaultyProxy:
        self._thread.start()
        assert self._listens.wait(10.0), "the proxy does not listen"
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        serve = asyncio.start_server(self._serve, "127.0.0.1", self._port, limit=HEAD_BYTES)
        self._loop.run_until_complete(serve)
        self._listens.set()
        self._loop.run_forever()
        self._loop.run_until_complete(self._end())
        self._loop.close()

    async def _end(self) -> None:
        """Cancel all connections in progress, and wait for them."""
        under_way = asyncio.all_tasks() - {asyncio.current_task()}
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = await _request(reader)
            fault = self._faults.draw(self._random)
            self.seen[fault] += 1
            match fault:
                case Fault.NONE:
                    await self._hand_on(request, writer)
                case Fault.LOST:
                    pass
                case Fault.UNANSWERED:
                    await self._hand_on(request, None)
                case Fault.DELAYED:
                    longest = self._faults.longest_seconds
                    await asyncio.sleep(self._random.uniform(0.0, longest))
                    await self._hand_on(request, writer)
                case Fault.DOUBLED:
                    both = self._hand_on(request, None), self._hand_on(request, writer)
                    await asyncio.gather(*both)
                case _:
                    assert_never(fault)
        except (OSError, asyncio.IncompleteReadError, TimeoutError):
            pass  # one of the two went away: whoever is left sees the connection end
        finally:
            writer.close()

    async def _hand_on(self, request: bytes, answer_to: asyncio.StreamWriter | None) -> None:
        """Forward a request to the next server.

        The response is passed to `answer_to`, or discarded if that is None.
        """
        self._turn += 1
        port = self._servers[self._turn % len(self._servers)]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(request)
            await writer.drain()
            async with asyncio.timeout(GIVE_UP_SECONDS):
                while part := await reader.read(1 << 16):
                    if answer_to is not None:
                        answer_to.write(part)
                        await answer_to.drain()
        finally:
            writer.close()


async def _request(reader: asyncio.StreamReader) -> bytes:
    """Read one HTTP request, and replace its `Connection` header by `Connection: close`."""
    head = await reader.readuntil(b"\r\n\r\n")
    first, *fields = head.rstrip(b"\r\n").split(b"\r\n")
    kept = [field for field in fields if not field.lower().startswith(b"connection:")]
    lengths = [
        int(field.split(b":", 1)[1])
        for field in kept
        if field.lower().startswith(b"content-length:")
    ]
    body = await reader.readexactly(lengths[0]) if lengths else b""
    return b"\r\n".join([first, *kept, b"Connection: close", b"", b""]) + body
