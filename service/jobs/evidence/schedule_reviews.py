"""Reviews tuning records: measures a record's schedule a second time, next to the default schedule.

A record is weakly attested if only workers of one owner measured it. Jobs may use such a record.
But the next job that could use it reviews it first, if a worker of another owner is connected. An
idle tuner reviews such records, too (`service.jobs.evidence.weak_records`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.compiler.program.build import CODEGEN_VERSION
from tilewright.db.storage import Storage
from tilewright.db.stores.claim_ledger import JobRecords
from tilewright.db.stores.claim_rows import StoredRecord
from tilewright.service.jobs.device.device import Device
from tilewright.service.jobs.evidence.review import Review, Reviewed, SecondReport
from tilewright.service.version import version
from tilewright.tuner.cancel import CancelToken
from tilewright.tuner.fixed_trials import FixedTrials, Wanted
from tilewright.tuner.measure.builder import Builder
from tilewright.tuner.measure.references import ReferenceCache
from tilewright.tuner.measure.statistics import Outcome
from tilewright.tuner.options import TuneOptions
from tilewright.tuner.protocol.measurement import Measurement, Phase, Status, Trial
from tilewright.tuner.store import RecordStore
from tilewright.tuner.tasks import Task

SLOWER = 2.0
"""Factor by which a second measurement may be slower than expected before the record is
disputed."""

DEVICES_DIFFER = 8.0
"""Limit of the speed ratio of two devices of one target, which is computed from the times of the
default schedules. It is limited because it depends on a time that the reviewed device reports."""

CONFIRM_SECONDS = 120.0
"""Longest time in seconds that a job waits for second measurements."""

_CONTRADICTS = (Status.CRASH, Status.RUN_ERROR, Status.RUN_TIMEOUT, Status.WRONG_ANSWER)


def records_of(device: Device, storage: Storage, job_id: str) -> RecordStore:
    """Return the record store to which a job writes its results.

    Records that the service's own machine measures can be used at once. Records that remote workers
    measure are provisional until a second measurement confirms them.
    """
    if device.trusted:
        return storage.records
    return JobRecords(storage.records, storage.ledger, job_id)


@dataclass(frozen=True, slots=True)
class ScheduleReviews:
    """Reviews tuning records: measures their schedules again, and confirms or disputes each record.

    Each call of a method takes at most `seconds`.

    Attributes:
        storage: the database with the records.
        builder: compiles the kernels to measure.
        device: the job's device; it selects other workers for the second measurements.
        job_id: the job.
        references: the cache of expected outputs.
        token: stops a review early.
        seconds: the time limit of a call.
        clock: returns the time in seconds.
    """

    storage: Storage
    builder: Builder
    device: Device
    job_id: str
    references: ReferenceCache
    token: CancelToken
    seconds: float = CONFIRM_SECONDS
    clock: Callable[[], float] = time.monotonic

    def confirm(self, tasks: Sequence[Task]) -> Reviewed:
        """Review the unconfirmed records that this job has stored for tasks.

        Each record is measured a second time, and then confirmed or disputed.

        Args:
            tasks: the tasks whose records are reviewed.

        Returns:
            the number of confirmed records, and a sentence for each disputed record. `open` is the
            number of all records of the job that are neither confirmed nor disputed.

        Raises:
            CompilerError: if the kernels cannot be compiled.
            DatabaseError: if the database fails.
        """
        ledger, review = self.storage.ledger, self._review(tasks)
        keys = {task.key for task in tasks}
        waiting = [one for one in ledger.provisional(self.job_id) if one.record.key in keys]
        found = review.repeat(waiting)
        return replace(found, open=len(ledger.provisional(self.job_id)))

    def doubt(self, tasks: Sequence[Task]) -> Reviewed:
        """Review stored records: measure again the records that only one owner has measured.

        A record is measured only if a connected worker can make it more trustworthy, such as a
        worker of another owner. If the second measurement contradicts a record, no job uses the
        record any more. Jobs whose compiled models use the record get an event.

        Args:
            tasks: the job's tasks. The records that lookups return for them are reviewed.

        Returns:
            the number of confirmed records, and a sentence for each disputed record.

        Raises:
            CompilerError: if the kernels cannot be compiled.
            DatabaseError: if the database fails.
        """
        served = self.storage.ledger.served([task.key for task in tasks])
        return self.back(tasks, list(served.values()))

    def back(self, tasks: Sequence[Task], records: Sequence[StoredRecord]) -> Reviewed:
        """Review the given records: measure again those records that only one owner has measured.

        A record is measured only if a connected worker can make it more trustworthy, such as a
        worker of another owner. Records from another version of the code generator are left out.

        Args:
            tasks: the tasks of the records.
            records: the records.

        Returns:
            the number of confirmed records, and a sentence for each disputed record.

        Raises:
            CompilerError: if the kernels cannot be compiled.
            DatabaseError: if the database fails.
        """
        review = self._review(tasks)
        present = [one for one in records if one.record.holds(CODEGEN_VERSION)]
        return review.repeat(review.doubtful(present))

    def _review(self, tasks: Sequence[Task]) -> Review[StoredRecord]:
        ends = self.clock() + self.seconds

        def stopped() -> bool:
            return self.token.cancelled or self.clock() >= ends

        return Review(self.storage, self.device, _SchedulesAgain(self, tasks, stopped), stopped)


class _SchedulesAgain:
    """Performs the second measurements of tuning records for a `Review`.

    The record's schedule and the task's default schedule run in interleaved order on one device.
    """

    def __init__(
        self, reviews: ScheduleReviews, tasks: Sequence[Task], stopped: Callable[[], bool]
    ) -> None:
        self._reviews = reviews
        self._tasks = {task.key: task for task in tasks}
        self._stopped = stopped

    def name(self, claim: StoredRecord) -> str:
        return self._tasks[claim.record.key].name

    def repeat(
        self, claims: Sequence[StoredRecord], device: Device
    ) -> Sequence[SecondReport | None]:
        again = [self._tasks[one.record.key].as_measured(one.record) for one in claims]
        reviews = self._reviews
        options = TuneOptions(
            trials=1,  # nothing is searched
            job_id=reviews.job_id,
            codegen_version=CODEGEN_VERSION,
            compiler_version=version(),
        )
        trials = FixedTrials(
            reviews.builder,
            device.runner,
            reviews.storage.records,
            options,
            reviews.references,
        ).measure(map(_wanted, again, claims), self._stopped)
        return [self._report(one, task, trials) for one, task in zip(claims, again, strict=True)]

    def _report(
        self, claim: StoredRecord, task: Task, trials: Sequence[Trial]
    ) -> SecondReport | None:
        second = _of(trials, task, claim.record.schedule.digest)
        if second is None:
            return None
        ratio = _default_ratio(task, claim, trials, self._reviews.storage)
        reason = contradiction(claim.record.measurement, second, ratio)
        return SecondReport(second.to_json(), second.worker, second.certified, reason)


def contradiction(first: Measurement, second: Measurement, devices_ratio: float | None) -> str:
    """Return why a second measurement of a schedule contradicts the first, or "" if it does not.

    A contradiction is a kernel that now fails, times out, computes wrong values, or is slower than
    the default schedule. A kernel that takes more than `SLOWER` times the expected time is a
    contradiction, too. The expected time is the first time, multiplied by `devices_ratio` if known.

    Args:
        first: the measurement in the stored record.
        second: the later measurement, maybe on another device.
        devices_ratio: the default schedule's time on the second device divided by its time on the
            first device; None if unknown. Ratios outside the range from 1 / DEVICES_DIFFER to
            DEVICES_DIFFER count as the nearest end of the range.
    """
    names = f"worker '{first.worker}'", f"worker '{second.worker}'"
    if second.status in _CONTRADICTS:
        why = f": {second.error}" if second.error else ""
        return f"{names[0]} found it right, on {names[1]} it ended as {second.status}{why}"
    pair = second.comparison
    if pair is not None and pair.outcome is Outcome.SLOWER:
        return f"{names[0]} found it the fastest, on {names[1]} it is slower than the default"
    said, seen = first.run_seconds, second.run_seconds
    if said is None or seen is None:
        return ""
    ratio = 1.0 if devices_ratio is None else devices_ratio
    expected = said * min(max(ratio, 1.0 / DEVICES_DIFFER), DEVICES_DIFFER)
    if seen <= SLOWER * expected:
        return ""
    return f"{said:.3g} s on {names[0]}, {seen:.3g} s on {names[1]}"


def _wanted(task: Task, one: StoredRecord) -> Wanted:
    schedules = dict.fromkeys((task.space.default(), one.record.schedule))
    # the default runs next to each record, and two records may have one schedule
    return Wanted(task, tuple(schedules), Phase.CONFIRM, "confirm", one.id)


def _of(trials: Sequence[Trial], task: Task, digest: str) -> Measurement | None:
    found: Mapping[str, Measurement] = {
        trial.schedule.digest: trial.measurement for trial in trials if trial.key == task.key
    }
    return found.get(digest)


def _default_ratio(
    task: Task, one: StoredRecord, trials: Sequence[Trial], storage: Storage
) -> float | None:
    """Return the time of a task's default schedule on a second device, relative to a first device.

    Args:
        task: the task.
        one: a stored record; the worker that measured it is the first device.
        trials: measurements on the second device, from the review of the record.
        storage: the database, which has measurements on the first device.

    Returns:
        the second device's time divided by the first device's time; None if a time is unknown.
    """
    default = task.space.default()
    second = _of(trials, task, default.digest)
    times = [
        trial.measurement.run_seconds
        for trial in storage.records.trials(task.key)
        if trial.schedule == default
        and not trial.withdrawn
        and trial.phase is not Phase.CONFIRM
        and trial.measurement.distribution == task.distribution
        and trial.measurement.worker == one.worker
        and trial.codegen_version == CODEGEN_VERSION
    ]
    first = min((seconds for seconds in times if seconds), default=None)
    if second is None or second.run_seconds is None or first is None:
        return None
    return second.run_seconds / first
