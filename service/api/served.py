"""Served records as the bytes that answer a lookup.

Lookups that arrive while others are answered go together in the next query: one thread and one
connection serve all of them, however many clients ask. What a record looks like in an answer is
made once for each record, and which one is served is asked once for as long as nothing is committed
to the database, which is asked each time.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, field
from functools import partial

import anyio.to_thread
from anyio import CapacityLimiter

from db.changes import Changes
from db.stores.records import ServedVersion, SqlRecordStore
from service.api.views import record_view

MOST_KEPT = 16_384
"""Records that are kept as bytes, of 2 to 4 KB each."""

RecordKind = tuple[str, int, str]
"""What records are looked up for together: target key, threads, numerics."""

_Found = Mapping[str, bytes | None]


@dataclass(slots=True)
class _Batch:
    """The lookups of one kind that go together in a query."""

    workloads: set[str] = field(default_factory=set)
    answers: list[asyncio.Future[_Found]] = field(default_factory=list)


class ServedRecords:
    """The records that are served, by key, as JSON."""

    def __init__(self, records: SqlRecordStore, changes: Changes) -> None:
        self._records = records
        self._changes = changes
        self._stamp: object = None
        self._known: dict[RecordKind, dict[str, bytes | None]] = {}
        self._count = 0  # of all that is known
        self._limiter = CapacityLimiter(1)
        self._kept: OrderedDict[ServedVersion, bytes] = OrderedDict()
        self._waiting: dict[RecordKind, _Batch] = {}
        self._task: asyncio.Task[None] | None = None

    async def find(self, kind: RecordKind, workloads: Collection[str]) -> _Found:
        """The records by workload key, None for what has none, and maybe others.

        Raises StorageError.
        """
        answer: asyncio.Future[_Found] = asyncio.get_running_loop().create_future()
        batch = self._waiting.setdefault(kind, _Batch())
        batch.workloads.update(workloads)
        batch.answers.append(answer)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._serve())
        return await answer

    async def _serve(self) -> None:
        while self._waiting:
            kind, batch = self._waiting.popitem()
            look = partial(self._look, kind, batch.workloads)
            try:
                found = await anyio.to_thread.run_sync(look, limiter=self._limiter)
            except Exception as error:  # noqa: BLE001 (whoever asked gets it)
                for answer in batch.answers:
                    if not answer.done():
                        answer.set_exception(error)
                continue
            for answer in batch.answers:
                if not answer.done():  # its client may have gone
                    answer.set_result(found)

    def close(self) -> None:
        """End the connection that asks for changes."""
        self._changes.close()

    def _look(self, kind: RecordKind, workloads: Set[str]) -> _Found:
        """In the one thread. What it answers is added to, and never changed otherwise."""
        stamp = self._changes.stamp()
        if stamp != self._stamp or self._count > MOST_KEPT:
            self._stamp, self._known, self._count = stamp, {}, 0
        known = self._known.setdefault(kind, {})
        if new := workloads - known.keys():
            found = self._read(kind, new)
            known.update({workload: found.get(workload) for workload in new})
            self._count += len(new)
        return known

    def _read(self, kind: RecordKind, workloads: Set[str]) -> Mapping[str, bytes]:
        while True:
            versions = self._records.served_versions(*kind, workloads)
            new = [version for version in versions.values() if version not in self._kept]
            for version, found_record in self._records.of_versions(new).items():
                self._kept[version] = record_view(*found_record).model_dump_json().encode()
            if all(version in self._kept for version in versions.values()):
                break  # else one was replaced between the two queries
        found = {}
        for workload, version in versions.items():
            self._kept.move_to_end(version)
            found[workload] = self._kept[version]
        while len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)
        return found
