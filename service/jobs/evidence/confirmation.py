"""Records of devices that are not ours are measured again before they are served to other jobs.

A worker may lie, or be sick without knowing. What it says is the best schedule of a workload would
be served for ever. So its schedule and the default run once more, interleaved, on another worker
where there is one. The record is confirmed if it holds there, disputed if it does not, and stays
provisional if nobody could tell. One that rests on the word of one owner's workers is served, and
says so; the next job that could use it measures it again where another owner's worker is, or a
tuner without a job does (`service.jobs.evidence.weak_records`).
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilewright.compiler.program.build import CODEGEN_VERSION
from tilewright.db.standing import Witness
from tilewright.db.storage import Storage
from tilewright.db.stores.record_ledger import JobRecords, StoredRecord
from tilewright.service.jobs.device.device import Device
from tilewright.service.jobs.evidence.withdrawal import tell
from tilewright.service.version import version
from tilewright.tuner.cancel import CancelToken
from tilewright.tuner.fixed_trials import FixedTrials, Wanted
from tilewright.tuner.measure.builder import Builder
from tilewright.tuner.measure.measurement import Measurement, Phase, RecordKey, Status, Trial
from tilewright.tuner.measure.references import ReferenceCache
from tilewright.tuner.measure.statistics import Outcome
from tilewright.tuner.options import TuneOptions
from tilewright.tuner.store import RecordStore
from tilewright.tuner.tasks import Task

SLOWER = 2.0
"""A record is disputed if its schedule takes so many times longer when it is measured again."""

DEVICES_DIFFER = 8.0
"""By what factor the devices of one target may differ: their defaults tell, but not more than
this, because the first device said what its default takes."""

CONFIRM_SECONDS = 120.0
"""How long a job waits for second measurements."""

ROUNDS = 2
"""How often others are asked: once more where those who were asked went away."""

_CONTRADICTS = (Status.CRASH, Status.RUN_ERROR, Status.RUN_TIMEOUT, Status.WRONG_ANSWER)


@dataclass(frozen=True, slots=True)
class Confirmed:
    """What the second measurements of a job's new records said.

    `disputed` has a sentence for each record that was contradicted. `open` are still provisional.
    """

    confirmed: int = 0
    disputed: tuple[str, ...] = ()
    open: int = 0

    def __add__(self, later: Confirmed) -> Confirmed:
        """Both together; what is open is so at the end."""
        disputed = self.disputed + later.disputed
        return Confirmed(self.confirmed + later.confirmed, disputed, later.open)

    def to_json(self) -> dict[str, Any]:
        return {
            "confirmed": self.confirmed,
            "disputed": list(self.disputed),
            "open": self.open,
        }


def records_of(device: Device, storage: Storage, job_id: str) -> RecordStore:
    """Where a job keeps its trials and records: what our own machine measured is served at once."""
    if device.trusted:
        return storage.records
    return JobRecords(storage.records, storage.ledger, job_id)


@dataclass(frozen=True, slots=True)
class SecondMeasurements:
    """Measures records of a job's tasks again, for at most so many seconds each time."""

    storage: Storage
    builder: Builder
    device: Device
    job_id: str
    references: ReferenceCache
    token: CancelToken
    seconds: float = CONFIRM_SECONDS
    clock: Callable[[], float] = time.monotonic

    def confirm(self, tasks: Sequence[Task]) -> Confirmed:
        """Measure the provisional records of the job again, and say which hold.

        Raises:
            CompilerError: if the kernels cannot be made.
            DatabaseError: if the database fails.
        """
        ledger = self.storage.ledger
        by_key = {task.key: task for task in tasks}
        waiting = [one for one in ledger.provisional(self.job_id) if one.record.key in by_key]
        found = self._again(waiting, by_key)
        return replace(found, open=len(ledger.provisional(self.job_id)))

    def doubt(self, tasks: Sequence[Task]) -> Confirmed:
        """Measure records that are served on one owner's word again, where another's can measure.

        What is contradicted is not served any more, and jobs that were built with it are told.
        Raises what `confirm` does.
        """
        served = self.storage.ledger.served([task.key for task in tasks])
        return self.back(tasks, list(served.values()))

    def back(self, tasks: Sequence[Task], records: Sequence[StoredRecord]) -> Confirmed:
        """Measure those of these records of the tasks again that rest on one owner's word, where
        another's can measure. Raises what `confirm` does."""
        by_key = {task.key: task for task in tasks}
        weak = [one for one in records if one.backing.weak]
        worth = {one: self.device.worth(one) for one in {each.witness for each in weak}}
        doubtful = [
            one
            for one in weak
            if one.record.holds(CODEGEN_VERSION) and worth[one.witness].rank > one.backing.rank
        ]
        return self._again(doubtful, by_key)

    def _again(
        self, waiting: Sequence[StoredRecord], by_key: Mapping[RecordKey, Task]
    ) -> Confirmed:
        ends = self.clock() + self.seconds
        options = TuneOptions(
            trials=1,  # nothing is searched
            job_id=self.job_id,
            codegen_version=CODEGEN_VERSION,
            compiler_version=version(),
        )

        def stopped() -> bool:
            return self.token.cancelled or self.clock() >= ends

        found = Confirmed()
        least: dict[Witness, int] = {}
        left = list(waiting)
        for _ in range(ROUNDS):
            groups: dict[Witness, list[StoredRecord]] = defaultdict(list)
            for one in left:
                groups[one.witness].append(one)
            left = []
            for witness, records in groups.items():
                worth = self.device.worth(witness).rank
                if worth < least.setdefault(witness, worth):
                    continue  # who is left tells less than who went away
                again = [by_key[one.record.key].as_measured(one.record) for one in records]
                trials = FixedTrials(
                    self.builder,
                    self.device.beside(witness).runner,
                    self.storage.records,
                    options,
                    self.references,
                ).measure(map(_wanted, again, records), stopped)
                for one, task in zip(records, again, strict=True):
                    second = _of(trials, task, one.record.schedule.digest)
                    if second is None:
                        left.append(one)
                    else:
                        found += self._judge(one, task, second, trials)
            if stopped():
                break
        return found

    def _judge(
        self, one: StoredRecord, task: Task, second: Measurement, trials: Sequence[Trial]
    ) -> Confirmed:
        """What a second measurement, one of these trials, makes of a record."""
        storage = self.storage
        ratio = _default_ratio(task, one, trials, storage)
        reason = contradiction(one.record.measurement, second, ratio)
        if reason:
            if storage.ledger.dispute(one.id, second, reason):
                tell(storage, storage.ledger.uses(one.id), reason, [one.id])
            return Confirmed(disputed=(f"'{task.name}': {reason}",))
        ours = self.device.trusted
        held = second.certified and storage.ledger.confirm(one.id, second, ours=ours)
        return Confirmed(int(held))


def contradiction(first: Measurement, second: Measurement, devices_ratio: float | None) -> str:
    """Why a second measurement contradicts the first; empty if it does not.

    Args:
        first: what made the record.
        second: of the same schedule, maybe on another device.
        devices_ratio: how many times longer the default takes on the second device; None if that
            is not known.
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
    # the default runs beside each record, and a schedule may be that of two
    return Wanted(task, tuple(schedules), Phase.CONFIRM, "confirm", one.id)


def _of(trials: Sequence[Trial], task: Task, digest: str) -> Measurement | None:
    found: Mapping[str, Measurement] = {
        trial.schedule.digest: trial.measurement for trial in trials if trial.key == task.key
    }
    return found.get(digest)


def _default_ratio(
    task: Task, one: StoredRecord, trials: Sequence[Trial], storage: Storage
) -> float | None:
    """The default's time on the second device over that on the first; None if one is unknown."""
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
