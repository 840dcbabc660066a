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
"""Limit of the workers that the reason for a wait lists by name."""


@dataclass(frozen=True, slots=True)
class WorkerPool:
    """A snapshot of all registered workers, which decides whether a job can be measured.

    Attributes:
        workers: the state of each worker.
        names: the names of the targets, by key.
    """

    workers: Sequence[Presence]
    names: Mapping[str, str]

    @staticmethod
    def of(storage: Storage) -> WorkerPool:
        """Take a snapshot of the workers and the target names in a database."""
        return WorkerPool(list(storage.workers.presences().values()), target_names(storage))

    def serves(self, target_key: str, worker_id: str | None) -> bool:
        """Whether a worker is available for a target.

        Args:
            target_key: the target of the job; not used if a worker is named.
            worker_id: the only worker that may measure; None for any worker of the target.
        """
        return any(map(may_measure, self._fitting(target_key, worker_id)))

    def reason(self, target_key: str, worker_id: str | None) -> str:
        """Return a text for the user: why no worker measures for a job, and how to change that.

        Args:
            target_key: the target of the job.
            worker_id: the only worker that may measure; None for any worker of the target.
        """
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
        """Return a text for the user: why the job's only permitted worker is unavailable, and a
        remedy.
        """
        worker = next((each for each in self.workers if each.id == worker_id), None)
        if worker is None:
            return f"worker '{worker_id}' is not known any more; submit the job for another"
        said = _standing(worker)
        named = [each for each in self.workers if each.name == worker.name and may_measure(each)]
        if any(each.id != worker_id for each in named):
            said += f"; another worker is called '{worker.name}' now: submit the job again for it"
        return said

    def _fitting(self, target_key: str, worker_id: str | None) -> list[Presence]:
        """Return the workers of a target, or the one worker with the id, whatever their health.

        The worker with the most recent contact comes first.
        """
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
    """Whether a worker is given requests: if it is healthy or in quarantine.

    A worker in quarantine gets requests, because only a successful request ends its quarantine.
    """
    return worker.health in (Health.HEALTHY, Health.QUARANTINED)


def match_jobs(storage: Storage, *, only_wake: bool = False) -> int:
    """Let queued jobs wait if no worker is available, and queue waiting jobs if one is available.

    Any process may call this function. With `only_wake`, waiting jobs are queued, but no queued job
    starts to wait; this suffices after a worker has registered.

    Returns:
        the number of jobs whose state changed.
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
    """Return a text for the user: the worker's state and, if a user can end it, how to do so."""
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
