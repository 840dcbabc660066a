"""The option `--on WORKER`, with which a command runs its programs on a worker of the service."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.service.cli.common import UserError

if TYPE_CHECKING:
    from tilewright.compiler.targets.target import Target
    from tilewright.db.storage import Storage
    from tilewright.service.jobs.device.device import Device
    from tilewright.service.jobs.inputs.given_inputs import GivenInputs

OnOption = Annotated[
    str | None,
    typer.Option(
        "--on",
        metavar="WORKER",
        help="Run on this worker (a name or an id) of the service that has the same database",
    ),
]


@contextmanager
def device_for(
    on: str | None, target: str, storage: Storage, given: GivenInputs | None = None
) -> Iterator[tuple[Device, Target]]:
    """Yield the device on which a command runs its programs, and the target for which it compiles.

    Args:
        on: the name or id of a worker; None for this machine.
        target: a target's name; "host" is the best target of the device.
        storage: the database, in which a worker's requests are queued.
        given: samples and values for the inputs of programs; only for this machine.

    Raises:
        UserError: if the worker does not take work now or does not run the target, or if `given` is
            stated for a worker.
        UnknownTargetError: if the worker or the target is unknown.
    """
    from tilewright.compiler.targets.host import resolve_target
    from tilewright.db.stores.workers import Health
    from tilewright.service.jobs.device.job_target import resolve_worker, target_of_key
    from tilewright.service.jobs.device.leased_device import LeasedDevice
    from tilewright.service.jobs.device.local_device import LocalDevice
    from tilewright.service.jobs.inputs.given_inputs import NONE_GIVEN
    from tilewright.tuner.cancel import CancelToken

    given = given or NONE_GIVEN
    if on is None:
        with LocalDevice(given) as here:
            yield here, resolve_target(target)
        return
    if given != NONE_GIVEN:
        raise UserError("--samples and --value are for this machine, not for a worker")
    worker = resolve_worker(on, storage)
    if worker.health is not Health.HEALTHY:
        raise UserError(f"worker '{worker.name}' is {worker.health}: it takes no work now")
    if target == "host":
        chosen = target_of_key(worker.target_keys[0], storage)
    else:
        chosen = resolve_target(target)
        if chosen.key not in worker.target_keys:
            raise UserError(f"worker '{worker.name}' does not run target '{chosen.name}'")
    job_id = f"on-{secrets.token_hex(8)}"
    with LeasedDevice(storage, job_id, chosen, CancelToken(), CancelToken(), [worker.id]) as device:
        try:
            yield device, chosen
        finally:
            # no request of an interrupted command remains in the queue
            storage.leases.cancel(job_id=job_id)
