"""Stores the measurements that ended jobs left in the lease queue."""

from __future__ import annotations

from tilewright.compiler.errors import ScheduleError
from tilewright.db.storage import Storage
from tilewright.service.jobs.device.remote_runner import result_of
from tilewright.tuner.measure.batch import trials_of
from tilewright.tuner.protocol.messages import read_request
from tilewright.tuner.protocol.runs import RunRequest
from tilewright.tuner.protocol.version import ProtocolError


def store_orphaned_results(storage: Storage) -> int:
    """Store the remaining measurements of ended jobs in the lease queue, as trials for later jobs.

    No tuner has stored them, because the job was cancelled while no tuner ran it, or the tuner was
    killed during the cancellation. Any process may call this function at any time, because a trial
    is stored only once.

    Returns:
        the number of stored trials.

    Raises:
        StorageError: if the database fails.
    """
    count = 0
    while left := storage.leases.left_behind():
        names = [status.request_id for status in left]
        payloads = storage.leases.payloads(names)
        for status in left:
            payload = payloads.get(status.request_id)
            if payload is None:
                continue  # deleted meanwhile
            try:
                request = read_request(payload)
                if isinstance(request, RunRequest):
                    continue  # its result matters only to its job
                trials = trials_of(request, result_of(request, status))
            except (ProtocolError, ScheduleError):
                continue  # of an older release
            storage.records.add_trials(trials)
            count += len(trials)
        storage.leases.acknowledge(names)
    return count
