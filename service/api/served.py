"""Served records as the bytes that answer a lookup.

What a record looks like in an answer is made once, and kept until the record changes. Questions
for records that are not known yet go together in one query of one thread, however many clients ask.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import partial

import anyio.to_thread
from anyio import CapacityLimiter

from tilewright.db.stores.claim_ledger import ClaimLedger
from tilewright.service.api.freshness import Freshness
from tilewright.service.api.views import record_view
from tilewright.tuner.measure.measurement import RecordKey

MOST_KEPT = 16_384
"""Records that are kept as bytes, of 2 to 4 KB each, and keys that have none."""

RecordKind = tuple[str, int, str]
"""What records are looked up for together: target key, threads, numerics."""

_Found = Mapping[str, bytes | None]


@dataclass(slots=True)
class _Batch:
    """The lookups of one kind that go together in a query."""

    workloads: set[str] = field(default_factory=set)
    answers: list[asyncio.Future[_Found]] = field(default_factory=list)


class ServedRecords:
    """The records that are served, by key, as JSON. Of one event loop."""

    def __init__(self, ledger: ClaimLedger, freshness: Freshness) -> None:
        self._ledger = ledger
        self._freshness = freshness
        freshness.tell(self._forget)
        self._known: dict[RecordKind, dict[str, bytes | None]] = {}
        self._count = 0  # of all that is known
        self._stale: set[str] | None = set()  # keys that changed during the present query
        self._waiting: dict[RecordKind, _Batch] = {}
        self._reading: asyncio.Task[None] | None = None
        self._limiter = CapacityLimiter(1)

    async def find(self, kind: RecordKind, workloads: Collection[str]) -> _Found:
        """The records by workload key, None for what has none. Raises StorageError."""
        await self._freshness.freshen()
        known = self._known.get(kind, {})
        if all(workload in known for workload in workloads):
            return {workload: known[workload] for workload in workloads}
        answer: asyncio.Future[_Found] = asyncio.get_running_loop().create_future()
        batch = self._waiting.setdefault(kind, _Batch())
        batch.workloads.update(workloads)
        batch.answers.append(answer)
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read())
        return await answer

    def _forget(self, changed: Collection[str] | None) -> None:
        if changed is None:
            self._known, self._count, self._stale = {}, 0, None
            return
        for known in self._known.values():
            for key in changed:
                self._count -= key in known
                known.pop(key, None)
        if self._stale is not None:
            self._stale.update(changed)

    async def _read(self) -> None:
        while self._waiting:
            kind, batch = self._waiting.popitem()
            known = self._known.get(kind, {})
            found = {key: known[key] for key in batch.workloads if key in known}
            new = batch.workloads - found.keys()
            self._stale = set()
            try:
                read = partial(self._from_database, kind, new)
                found.update(await anyio.to_thread.run_sync(read, limiter=self._limiter))
            except Exception as error:  # noqa: BLE001 (whoever asked gets it)
                for answer in batch.answers:
                    if not answer.done():
                        answer.set_exception(error)
                continue
            self._keep(kind, {key: found[key] for key in new})
            for answer in batch.answers:
                if not answer.done():  # its client may have gone
                    answer.set_result(found)

    def _from_database(self, kind: RecordKind, workloads: Collection[str]) -> _Found:
        keys = [RecordKey(workload, *kind) for workload in sorted(workloads)]
        stored = self._ledger.served(keys)
        found: dict[str, bytes | None] = dict.fromkeys(workloads)
        for key, one in stored.items():
            view = record_view(one.record, one.attestation)
            found[key.workload_key] = view.model_dump_json().encode()
        return found

    def _keep(self, kind: RecordKind, found: _Found) -> None:
        """Keep what was read, but for what has changed meanwhile."""
        if self._stale is None:
            return
        if self._count + len(found) > MOST_KEPT:
            self._known, self._count = {}, 0
        lasting = {key: record for key, record in found.items() if key not in self._stale}
        known = self._known.setdefault(kind, {})
        self._count += len(lasting.keys() - known.keys())
        known.update(lasting)
