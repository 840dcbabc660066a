"""Workers: the processes on target devices, what their device is, and when they last spoke."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import sqlalchemy as sa

from db.clock import Clock, system_clock


class Health(StrEnum):
    HEALTHY = "healthy"
    LOST = "lost"  # no heartbeat for too long
    DRAINING = "draining"  # takes no new leases
    GONE = "gone"  # said good-bye


@dataclass(frozen=True, slots=True)
class Worker:
    id: str
    name: str
    target_keys: tuple[str, ...]  # what it can run
    device: Mapping[str, Any]  # model name, cores, caches, governor, ...
    protocol: int
    owner: str | None  # token id
    health: Health  # as of the clock's now
    last_heartbeat: float
    leases_lost: int
    created_at: float


class WorkerStore:
    def __init__(
        self, engine: sa.Engine, clock: Clock = system_clock, *, lost_after_seconds: float = 60.0
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._lost_after_seconds = lost_after_seconds

    def register(
        self,
        name: str,
        target_keys: Sequence[str],
        device: Mapping[str, Any],
        *,
        protocol: int = 1,
        owner: str | None = None,
        worker_id: str | None = None,
    ) -> Worker:
        """A new worker, or (with the id it had) the same one after a restart."""
        raise NotImplementedError

    def heartbeat(self, worker_id: str, device: Mapping[str, Any] | None = None) -> Worker:
        """It lives; device facts may have changed (governor). Raises NotFoundError."""
        raise NotImplementedError

    def get(self, worker_id: str) -> Worker:
        """Raises NotFoundError."""
        raise NotImplementedError

    def list(self, *, alive: bool = False) -> Sequence[Worker]:
        """All workers, or those that are healthy; the longest-lived first."""
        raise NotImplementedError

    def drain(self, worker_id: str, draining: bool = True) -> Worker:
        """Take it out of service, or back. Raises NotFoundError."""
        raise NotImplementedError

    def leave(self, worker_id: str) -> None:
        """It says good-bye. Raises NotFoundError."""
        raise NotImplementedError
