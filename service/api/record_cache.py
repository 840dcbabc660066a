"""Cache of served records as JSON, for lookups.

Of all records with one record key, the service selects one that lookups return: the served record
(`db.stores.claim_ledger`). It is serialised once, and its bytes are cached until it changes.
Concurrent lookups of records that are not cached share one query.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from tilewright.db.stores.claim_ledger import ClaimLedger
from tilewright.service.api.cache import LRU, Invalidation
from tilewright.service.api.concurrency import Batcher, in_thread
from tilewright.service.api.views import record_view
from tilewright.tuner.protocol.measurement import RecordKey

MOST_KEPT = 16_384
"""Limit of cached workloads. An entry is a record of 2 to 4 KB, or empty for a workload without a
record."""

RecordKind = tuple[str, int, str]
"""The components of a record key that all workloads of a lookup share: target key, threads,
numerics."""

RecordBytes = Mapping[str, bytes]
"""The record of each workload as JSON, by workload key. The value is b"" for a workload without a
record."""


class RecordCache:
    """Caches the best record of each workload as JSON.

    The best record is the one that lookups return (the served record). It is cached until it
    changes. Call all methods from one event loop.
    """

    def __init__(self, ledger: ClaimLedger, invalidation: Invalidation) -> None:
        self._ledger = ledger
        self._invalidation = invalidation
        self._kept: LRU[tuple[RecordKind, str], bytes] = LRU(MOST_KEPT)
        invalidation.watch(self._kept)
        self._reads = Batcher(self._read)
        self._query = in_thread(self._from_database)

    async def find(self, kind: RecordKind, workloads: Collection[str]) -> RecordBytes:
        """Return the best record of each workload as JSON, by workload key.

        The best record is the one that lookups return (the served record). The value is b"" for a
        workload without a record.

        Args:
            kind: the target key, the number of threads and the numerics mode of the records.
            workloads: the keys of the workloads, without duplicates.

        Raises:
            StorageError: if the database cannot be read.
        """
        await self._invalidation.refresh()
        found = self._known(kind, workloads)
        if len(found) == len(workloads):
            return found
        return await self._reads.ask((kind, workloads))

    def _known(self, kind: RecordKind, workloads: Collection[str]) -> dict[str, bytes]:
        get = self._kept.get
        return {each: found for each in workloads if (found := get((kind, each))) is not None}

    async def _read(
        self, asked: Sequence[tuple[RecordKind, Collection[str]]]
    ) -> Sequence[RecordBytes]:
        wanted: dict[RecordKind, set[str]] = defaultdict(set)
        for kind, workloads in asked:
            wanted[kind].update(workloads)
        found = {kind: self._known(kind, workloads) for kind, workloads in wanted.items()}
        new = {kind: workloads - found[kind].keys() for kind, workloads in wanted.items()}
        version = self._invalidation.version
        read = await self._query({kind: workloads for kind, workloads in new.items() if workloads})
        for kind, records in read.items():
            found[kind].update(records)
            if version == self._invalidation.version:  # else a record may have changed meanwhile
                for workload, record in records.items():
                    self._kept.put((kind, workload), record, names=(workload,))
        return [found[kind] for kind, _ in asked]

    def _from_database(
        self, wanted: Mapping[RecordKind, Collection[str]]
    ) -> Mapping[RecordKind, RecordBytes]:
        found: dict[RecordKind, RecordBytes] = {}
        for kind, workloads in wanted.items():
            records = dict.fromkeys(workloads, b"")
            stored = self._ledger.served([RecordKey(each, *kind) for each in sorted(workloads)])
            for key, one in stored.items():
                view = record_view(one.record, one.attestation)
                records[key.workload_key] = view.model_dump_json().encode()
            found[kind] = records
        return found
