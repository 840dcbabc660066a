"""No finished measurement is lost with its job, and a stopped job queues no new one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.service.jobs.test_remote_runner import TARGET, job, make, runner, work
from tilewright.db.errors import StaleLeaseError
from tilewright.db.storage import Storage
from tilewright.db.stores.leases import NewRequest
from tilewright.service.api.housekeeping import remove_old_data
from tilewright.service.jobs.process.orphaned_results import store_orphaned_results
from tilewright.service.settings import Settings
from tilewright.tuner.protocol.measurement import Status

__all__ = ["job"]


def test_what_was_measured_for_a_job_that_was_cancelled_unheld_becomes_trials(
    storage: Storage, job: str, settings: Settings
) -> None:
    """Its tuner was killed before it stored them; the next job starts from them."""
    remote = runner(storage, job)
    for name in ("a", "b"):
        request, blobs = make(name)
        request = replace(request, job_id=job)
        remote.submit(request, blobs)
    remote.poll(0.0)
    work(storage)
    waiting, blobs = make("never measured")
    remote.submit(replace(waiting, job_id=job), blobs)
    remote.poll(0.0)
    assert store_orphaned_results(storage) == 0, "an open job's tuner does it"
    storage.jobs.cancel(job)
    remove_old_data(storage, settings)
    trials = storage.records.trials(request.key)
    assert [trial.id for trial in trials] == ["a-trial", "b-trial"]
    assert {trial.job_id for trial in trials} == {job}
    assert {trial.measurement.status for trial in trials} == {Status.OK}
    assert {trial.measurement.worker for trial in trials} == {
        worker.id for worker in storage.workers.list()
    }
    assert store_orphaned_results(storage) == 0
    assert storage.leases.left_behind() == []


def test_what_cannot_be_read_stops_no_housekeeping(storage: Storage, job: str) -> None:
    """A request of an older release, before one that is read."""
    new = NewRequest("old", TARGET, {"protocol": 1}, job_id=job)
    storage.leases.submit([new])
    worker = storage.workers.register("w", [TARGET], {})
    (lease,) = storage.leases.claim(worker.id, [TARGET], limit=1, lease_seconds=60)
    storage.leases.complete(lease.lease_id, worker.id, "old", {})
    remote = runner(storage, job)
    remote.submit(*make("a"))
    remote.poll(0.0)
    work(storage)
    storage.jobs.cancel(job)
    assert store_orphaned_results(storage) == 1
    assert storage.leases.left_behind() == []


@pytest.mark.parametrize("stop", ["cancel", "pause"])
def test_nothing_is_queued_for_a_job_that_is_stopped(storage: Storage, job: str, stop: str) -> None:
    """Its tuner asks half a second later, before it learns of the stop, and is killed then."""
    remote = runner(storage, job)
    {"cancel": storage.jobs.cancel, "pause": storage.jobs.pause}[stop](job)
    request, blobs = make("late")
    remote.submit(request, blobs)
    with pytest.raises(StaleLeaseError, match=f"job '{job}' is .*: nothing is measured for it"):
        remote.poll(0.0)
    assert work(storage) == []
    if stop == "pause":
        storage.jobs.resume(job)
        remote.poll(0.0)
        assert work(storage) == ["late"]
