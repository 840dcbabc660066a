"""The target of a job, which users name as a target, or as a worker by its name or id."""

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
    """The target of a job, and the worker to which the job is restricted.

    `worker_id` is None if any worker that runs the target may measure.
    """

    target: Target
    worker_id: str | None = None


def resolve_job_target(name: str, storage: Storage) -> JobTarget:
    """Return the target and the worker that a user's name for a target means.

    The name is tried as `host` (the machine of this process) or a described target, then as the key
    of a stored target, and then as a worker. A worker stands for the best target that it runs.

    Raises:
        UnknownTargetError: if the name matches none of them, or several live workers.
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
    """Whether a name is `host` or a described target. Workers are not looked up."""
    try:
        resolve_target(name)
    except UnknownTargetError:
        return False
    return True


def resolve_worker(name: str, storage: Storage) -> RegisteredWorker:
    """Return the worker with this id or name, or else the worker whose id begins with `name`.

    If several workers match, the live one is chosen. If none of them is alive, the worker with the
    most recent contact is chosen.

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

    It is `name` itself if that is a key, or else the key of the named target.

    Raises:
        UnknownTargetError: if `name` is neither a target nor a live worker, or several live workers
            have the name.
    """
    return name if is_target_key(name) else resolve_job_target(name, storage).target.key


def target_of_key(key: str, storage: Storage) -> Target:
    """Return the described target with this key, or else a target that a job or worker registered.

    Raises:
        NotFoundError: if no target has this key.
    """
    for target in known_targets().values():
        if target.key == key:
            return target
    _, description = storage.workloads.target(key)
    return Target.from_json(description)


def mode_of(job: Job, storage: Storage) -> Mode:
    """Return the mode in which code is generated for a job.

    Raises:
        NotFoundError: if the database does not have the target.
    """
    target = target_of_key(job.target_key, storage)
    return Mode(target, job.threads, job.numerics)


def target_names(storage: Storage) -> dict[str, str]:
    """Return the name of every described or stored target, by key."""
    described = {target.key: target.name for target in known_targets().values()}
    return {**storage.workloads.targets(), **described}
