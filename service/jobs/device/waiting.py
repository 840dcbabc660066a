"""Decides which jobs wait for a worker, and explains to users why no worker measures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache

from tilewright.db.storage import Storage
from tilewright.db.stores.workers import Health, Presence
from tilewright.service.jobs.device.job_target import target_names

MOST_NAMED = 5
"""Workers that a reason lists by name."""


@dataclass(frozen=True, slots=True)
class WorkerPool:
    """All workers in the database, and target names by key; decides which jobs can be measured."""

    workers: Sequence[Presence]
    names: Mapping[str, str]

    @staticmethod
    def of(storage: Storage) -> WorkerPool:
        """Read the workers and the targets of a database."""
        return WorkerPool(list(storage.workers.presences().values()), target_names(storage))

    def serves(self, target_key: str, worker_id: str | None) -> bool:
        """Whether a worker may measure for a target; with `worker_id`, whether that worker may."""
        return any(map(may_measure, self._fitting(target_key, worker_id)))

    def reason(self, target_key: str, worker_id: str | None) -> str:
        """Return one sentence: why no worker measures, a remedy, and the workers that exist."""
        if worker_id is not None:
            return f"the job is for one worker alone: {self._absence(worker_id)}"
        target = self._name(target_key)
        command = f"`tilewright server worker --server URL --target {target}`"
        parts = []
        for worker in self._fitting(target_key, worker_id)[:MOST_NAMED]:
            parts.append(_standing(worker))
        others = [w for w in self.workers if w.health is Health.HEALTHY]
        names = [f"'{w.name}' ({self._best(w)})" for w in others[:MOST_NAMED]]
        if len(others) > MOST_NAMED:
            names.append(f"{len(others) - MOST_NAMED} more")
        known = f"workers for other targets: {', '.join(names)}" if names else "no other is alive"
        start = f"no worker runs target '{target}'; start one on its device with {command}"
        return "; ".join([start, *parts, known])

    def _absence(self, worker_id: str) -> str:
        """The state of the only worker that may measure, and a remedy."""
        worker = next((each for each in self.workers if each.id == worker_id), None)
        if worker is None:
            return f"worker '{worker_id}' is not known any more; submit the job for another"
        said = _standing(worker)
        named = [each for each in self.workers if each.name == worker.name and may_measure(each)]
        if any(each.id != worker_id for each in named):
            said += f"; another worker is called '{worker.name}' now: submit the job again for it"
        return said

    def _fitting(self, target_key: str, worker_id: str | None) -> list[Presence]:
        """The workers that could measure, by time of last contact, latest first."""
        found = [
            worker
            for worker in self.workers
            if (target_key in worker.target_keys if worker_id is None else worker.id == worker_id)
        ]
        return sorted(found, key=lambda worker: -worker.last_heartbeat)

    def _name(self, target_key: str) -> str:
        return self.names.get(target_key, target_key)

    def _best(self, worker: Presence) -> str:
        return self._name(worker.target_keys[0]) if worker.target_keys else "no target"


def may_measure(worker: Presence) -> bool:
    """Whether a worker gets requests.

    A worker in quarantine does, because only a successful request ends its quarantine.
    """
    return worker.health in (Health.HEALTHY, Health.QUARANTINED)


def match_jobs(storage: Storage, *, only_wake: bool = False) -> int:
    """Move jobs without a worker to waiting, and jobs with one to the queue; return their number.

    Any process may call it. With `only_wake`, waiting jobs are queued, but no job starts to wait;
    that suffices after the registration of a worker.
    """

    @cache
    def workforce() -> WorkerPool:  # lazy: mostly no job waits
        return WorkerPool.of(storage)

    return storage.jobs.match(
        lambda target_key, worker_id: workforce().serves(target_key, worker_id),
        lambda target_key, worker_id: workforce().reason(target_key, worker_id),
        only_wake=only_wake,
    )


def _standing(worker: Presence) -> str:
    """The reason why a worker does not measure, and a remedy."""
    said = f"worker '{worker.name}' is {worker.health}"
    match worker.health:
        case Health.DRAINING:
            return f"{said} (`tilewright device resume {worker.name}` gives it work again)"
        case Health.LOST | Health.GONE:
            heard = datetime.fromtimestamp(worker.last_heartbeat, UTC)
            heard_text = f"{heard:%Y-%m-%d at %H:%M} UTC"
            return f"{said}, heard of last on {heard_text} (start it again on its device)"
        case _:
            return said
