"""Checks of the database after a chaos run (`benchmarks.chaos`).

The service's guarantees must hold although processes were killed and workers reported false
results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tilewright.db.review_state import ReviewState
from tilewright.db.storage import Storage
from tilewright.db.stores.claim_rows import StoredRecord
from tilewright.db.stores.leases import LeaseOutcome, LeaseStatus, RequestState, RequestStatus
from tilewright.tuner.protocol.batches import LEAST_SECONDS, MeasureRequest
from tilewright.tuner.protocol.measurement import Phase
from tilewright.tuner.protocol.messages import kind_of, read_request
from tilewright.tuner.protocol.version import RequestKind

_HAS_RESULT = (LeaseOutcome.COMPLETED, LeaseOutcome.LATE)


@dataclass(slots=True)
class Found:
    """Statistics of the final database, and all violations.

    `wrong` has one sentence per broken guarantee. `errors` has the reasons why jobs failed.
    `measured` counts the requests that honest workers finished. `late` counts their results that
    arrived after another worker's result.
    """

    jobs: Counter[str] = field(default_factory=Counter)
    trials: int = 0
    measured: int = 0
    late: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    records: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def check(
    storage: Storage,
    job_ids: Sequence[str],
    finished: Mapping[str, Counter[str]],
    liars: Collection[str],
) -> Found:
    """Check all jobs, leases and records of the database.

    Args:
        storage: the service's stores.
        job_ids: every job that was submitted.
        finished: for each honest worker's id, how often it finished each request.
        liars: ids of the workers that report false results.
    """
    found = Found()
    requests: dict[str, RequestStatus] = {}
    for job_id in job_ids:
        job = storage.jobs.get(job_id)
        found.jobs[job.state.value] += 1
        if why := job.error or job.reason:
            found.errors.append(f"{job.state}: {why}")
        if not job.state.final:
            found.wrong.append(f"job {job_id} is {job.state}")
        of_job = storage.leases.of_job(job_id)
        requests |= {status.request_id: status for status in of_job}
        found.wrong += _of_job(storage, job_id, of_job, found)
    # a tuner without a job has requests, too (`service.jobs.evidence.weak_records`)
    done = {name for names in finished.values() for name in names}
    requests |= storage.leases.status(sorted(done - requests.keys()))
    leases = {name: storage.leases.history(name) for name in requests}
    for name, history in leases.items():
        outcomes = Counter(lease.outcome.value for lease in history if lease.outcome)
        found.outcomes += outcomes
        if outcomes[LeaseOutcome.COMPLETED.value] > 1:
            found.wrong.append(f"request {name} was completed {outcomes} times")
    found.wrong += _lost(finished, requests, leases, found)
    for record in _records(storage):
        found.records[record.state.value] += 1
    found.wrong += _served_lies(storage, liars)
    return found


def _of_job(
    storage: Storage, job_id: str, requests: Sequence[RequestStatus], found: Found
) -> Iterator[str]:
    """Compare the stored trials of a job with the results of its requests.

    Yields a sentence for each fault: a trial is missing or differs from the reported samples,
    samples are implausible, or a schedule was measured twice.

    Args:
        storage: the service's stores.
        job_id: the job.
        requests: the job's requests, each with its result.
        found: receives the number of trials.
    """
    trials = {trial.id: trial for trial in storage.records.trials_of_job(job_id)}
    found.trials += len(trials)
    least = {
        name: max(LEAST_SECONDS, request.least_seconds)
        for name, payload in storage.leases.payloads([r.request_id for r in requests]).items()
        if isinstance(request := read_request(payload), MeasureRequest)
    }
    for status in requests:
        if status.result is None or kind_of(status.result) is RequestKind.RUN:
            continue
        for entry in status.result["measurements"]:
            samples = entry["measurement"]["samples_seconds"]
            if any(not least[status.request_id] <= seconds < 1e3 for seconds in samples):
                yield f"request {status.request_id} was answered with {samples} seconds"
            stored = trials.get(entry["trial_id"])
            if stored is None:
                if status.acknowledged:
                    yield f"trial {entry['trial_id']} of job {job_id} was lost"
            elif list(stored.measurement.samples_seconds) != samples:
                yield f"trial {entry['trial_id']} of job {job_id} is not what was measured"
    screened = Counter(
        (trial.key, trial.schedule.digest)
        for trial in trials.values()
        if trial.phase is Phase.SCREEN and trial.measurement.ok
    )
    for (_, digest), count in screened.items():
        if count > 1:
            yield f"job {job_id} measured schedule {digest} {count} times"


def _lost(
    finished: Mapping[str, Counter[str]],
    requests: Mapping[str, RequestStatus],
    leases: Mapping[str, Sequence[LeaseStatus]],
    found: Found,
) -> Iterator[str]:
    """Yield a sentence for each result of an honest worker that was lost or measured twice."""
    for worker_id, names in finished.items():
        for name, count in names.items():
            found.measured += 1
            if count > 1:
                yield f"request {name} was measured {count} times by one worker"
            mine = [lease for lease in leases.get(name, ()) if lease.worker_id == worker_id]
            ends = [lease.outcome for lease in mine]
            found.late += LeaseOutcome.LATE in ends
            if not any(outcome in _HAS_RESULT for outcome in ends):
                yield f"request {name}, which {worker_id} finished, was lost: {ends}"
            elif requests[name].state not in (RequestState.DONE, RequestState.CANCELLED):
                yield f"request {name} was finished, and is {requests[name].state}"


def _records(storage: Storage) -> Iterator[StoredRecord]:
    page = storage.ledger.list()
    yield from page
    while page.next is not None:
        page = storage.ledger.list(after=page.next)
        yield from page


def _served_lies(storage: Storage, liars: Collection[str]) -> Iterator[str]:
    """Yield a sentence for each record that the service delivers although it is not trustworthy.

    Such a tuning record is unconfirmed, or a worker that reports false results measured it.

    Args:
        storage: the service's stores.
        liars: the ids of the workers that report false results.
    """
    keys = {record.record.key for record in _records(storage)}
    for key, served in storage.ledger.served(list(keys)).items():
        if served.state is not ReviewState.CONFIRMED:
            yield f"record {served.id} is {served.state}, and served"
        if served.worker in liars:
            seconds = served.record.measurement.run_seconds
            second = served.confirmation
            by = "nobody" if second is None else f"'{second.worker}'"
            what = f"{seconds} s of '{served.worker}' are served for {key.workload_key}"
            yield f"{what}, confirmed by {by}"
