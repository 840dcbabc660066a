"""Resolves the target that a user names for a job: by a target's name or key, or by a worker."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.compiler.errors import UnknownTargetError, suggestion
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
    """The target of a job, and the only worker that may measure for the job, if there is one.

    `worker_id` is None if any worker of the target may measure.
    """

    target: Target
    worker_id: str | None = None


def resolve_job_target(name: str, storage: Storage) -> JobTarget:
    """Find the target that a user named for a job.

    The name is tried in this order: `host` (the machine of this process) or a target that the
    compiler describes, such as `x86-64-v3`; the key of a stored target; the name or id of a worker.
    A worker's name selects the best target of that worker, and restricts the job to the worker.

    Raises:
        UnknownTargetError: if nothing has this name, or several live workers have it.
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
    """Whether a name is `host` or a target that the compiler describes, such as `x86-64-v3`."""
    try:
        resolve_target(name)
    except UnknownTargetError:
        return False
    return True


def resolve_worker(name: str, storage: Storage) -> RegisteredWorker:
    """Return the worker with this id or name, or else the worker whose id begins with `name`.

    If several workers match, the only live one is returned, or the one with the most recent contact
    if none is alive.

    Raises:
        UnknownTargetError: if no worker matches, several live workers match, or the worker runs no
            target.
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
        raise UnknownTargetError(f"there is no worker '{name}': {known}{suggestion(name, names)}")
    if not worker.target_keys:
        raise UnknownTargetError(f"worker '{worker.name}' runs no target that is known here")
    return worker


def target_key_of(name: str, storage: Storage) -> str:
    """Return the key under which records are stored for a target.

    Args:
        name: a target's key, which is returned unchanged, or any name that `resolve_job_target`
            accepts, such as a worker's name.
        storage: the database with the targets and workers.

    Raises:
        UnknownTargetError: if nothing has this name, or several live workers have it.
    """
    return name if is_target_key(name) else resolve_job_target(name, storage).target.key


def target_of_key(key: str, storage: Storage) -> Target:
    """Return the target with this key: one that the compiler describes, or one stored in the
    database.

    Raises:
        NotFoundError: if no target has this key.
    """
    for target in known_targets().values():
        if target.key == key:
            return target
    _, description = storage.workloads.target(key)
    return Target.from_json(description)


def mode_of(job: Job, storage: Storage) -> Mode:
    """Return a job's mode for code generation: its target, threads and numerics.

    Raises:
        NotFoundError: if the database does not have the target.
    """
    target = target_of_key(job.target_key, storage)
    return Mode(target, job.threads, job.numerics)


def target_names(storage: Storage) -> dict[str, str]:
    """Return the names of all targets by key: described by the compiler or stored in the
    database.
    """
    described = {target.key: target.name for target in known_targets().values()}
    return {**storage.workloads.targets(), **described}
