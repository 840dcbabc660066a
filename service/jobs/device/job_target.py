"""The target of a job, which users name as a target, or as a worker by its name or id."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.compiler.errors import UnknownTargetError
from tilewright.compiler.mode import Mode
from tilewright.compiler.targets.host import resolve_target
from tilewright.compiler.targets.target import Target, known_targets
from tilewright.db.errors import NotFoundError
from tilewright.db.storage import Storage
from tilewright.db.stores.job_rows import Job
from tilewright.db.stores.workers import Health, RegisteredWorker
from tilewright.service.jobs.device.targets import is_target_key


@dataclass(frozen=True, slots=True)
class JobTarget:
    """A target, and the only worker that measures; None for any worker that runs the target."""

    target: Target
    worker_id: str | None = None


def resolve_job_target(name: str, storage: Storage) -> JobTarget:
    """The target and worker that a name stands for. It names `host` (the machine of this process),
    a described target, the key of a stored one, or a worker, which stands for the best target that
    it runs.

    Raises:
        UnknownTargetError: if it is none of them, or several living workers have the name.
    """
    try:
        return JobTarget(resolve_target(name))
    except UnknownTargetError as error:
        unknown = error
    try:
        return JobTarget(target_of_key(name, storage))
    except NotFoundError:
        pass  # a worker, then
    try:
        worker = resolve_worker(name, storage)
    except UnknownTargetError as error:
        raise UnknownTargetError(f"{unknown}; {error}") from error
    return JobTarget(target_of_key(worker.target_keys[0], storage), worker.id)


def is_described(name: str) -> bool:
    """Whether a name is that of a described target or `host`, whatever workers there are."""
    try:
        resolve_target(name)
    except UnknownTargetError:
        return False
    return True


def resolve_worker(name: str, storage: Storage) -> RegisteredWorker:
    """The worker with this id or name, or else the worker whose id has this prefix. If several
    match, the live one is chosen, else the one with the most recent contact.

    Raises:
        UnknownTargetError: if no worker matches, several are alive, or it runs no target.
    """
    everybody = storage.workers.list()
    found = [w for w in everybody if name in (w.id, w.name)]
    found = found or [w for w in everybody if name and w.id.startswith(name)]
    alive = [w for w in found if w.health in (Health.HEALTHY, Health.DRAINING)]
    if len(alive) > 1:
        ids = ", ".join(worker.id for worker in alive)
        raise UnknownTargetError(f"'{name}' matches several workers: give one of {ids}")
    worker = max(alive or found, key=lambda each: each.last_heartbeat, default=None)
    if worker is None:
        names = sorted({w.name for w in storage.workers.list(alive=True)})
        known = f"those alive are {', '.join(names)}" if names else "none is alive"
        raise UnknownTargetError(f"there is no worker '{name}': {known}")
    if not worker.target_keys:
        raise UnknownTargetError(f"worker '{worker.name}' runs no target that is known here")
    return worker


def target_key_of(name: str, storage: Storage) -> str:
    """The key by which records are looked up: a key unchanged, or else the named target's key.

    Raises:
        UnknownTargetError: as `resolve_job_target` does.
    """
    return name if is_target_key(name) else resolve_job_target(name, storage).target.key


def target_of_key(key: str, storage: Storage) -> Target:
    """A described target, or a target registered by a job or a worker. Raises NotFoundError."""
    for target in known_targets().values():
        if target.key == key:
            return target
    _, description = storage.workloads.target(key)
    return Target.from_json(description)


def mode_of(job: Job, storage: Storage) -> Mode:
    """The mode of a job. Raises NotFoundError for an unknown target."""
    target = target_of_key(job.target_key, storage)
    return Mode(target, job.threads, job.numerics)


def target_names(storage: Storage) -> dict[str, str]:
    """Key -> name of every target that is described or stored."""
    described = {target.key: target.name for target in known_targets().values()}
    return {**storage.workloads.targets(), **described}
