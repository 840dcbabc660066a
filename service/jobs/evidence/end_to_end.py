"""Decides by an end-to-end race whether a model is built with its tuned schedules.

Kernels are timed one by one. A kernel that is faster alone may be slower in its model, where its
neighbours change the contents of the caches. So the device runs the program with tuned schedules
and the program with default schedules in interleaved order (A B B A). The ratio of their times has
a confidence interval (`tuner.measure.statistics`). If the tuned program is not clearly faster,
tasks with a small or uncertain gain fall back to their defaults, and the race is repeated. If the
tuned program is still not faster, all tasks fall back to their defaults.

The result is stored in the database, so that a model is not raced again with the same schedules. A
race on a remote worker is repeated before other jobs use its result (`race_review`). If the two
races contradict each other, both are discarded and the model is built with its defaults.

Only `select_schedules` decides which records are used. All code that compiles a model with records
from the database calls it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Any

from tilewright.compiler.mode import Mode
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.program.build import CODEGEN_VERSION
from tilewright.compiler.program.builder import ProgramBuilder
from tilewright.compiler.program.kernels import KernelCache
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.schedule.select import untuned_schedule
from tilewright.db.review_state import Attestation, ReviewState
from tilewright.db.storage import Storage
from tilewright.db.stores.claim_rows import record_id
from tilewright.service.jobs.device.device import Device, DeviceError, Variant
from tilewright.service.jobs.device.loadables import of_compiled
from tilewright.service.jobs.evidence.race_review import review_race
from tilewright.service.jobs.knowledge.ladder import Match, find
from tilewright.service.jobs.plan.planning import Planned
from tilewright.service.show.units import finite, speedup
from tilewright.tuner.measure.statistics import Comparison, Outcome
from tilewright.tuner.protocol.measurement import RecordKey, TuningRecord
from tilewright.tuner.protocol.run_results import Race

PROGRAMS = 3
"""Largest number of programs in one race: untuned, tuned and partly tuned."""

ALL_DEFAULTS = "no tuned schedule differs from them"
NOT_RACED = "not raced end to end yet: a tuning job does that"
TAKEN_BACK = "each race was withdrawn before its verdict could be used: the next job races again"

ATTEMPTS = 2
"""Largest number of races of one model in one job. The second one is needed if the first is
withdrawn before its verdict is used."""

SURE_RATIO = 0.97
"""Limit of a task's time relative to the incumbent's. The gain is certain if the whole confidence
interval of this ratio lies below the limit."""


class Served(StrEnum):
    """Which schedules an artifact is built from: tuned schedules, defaults, or a mixture."""

    TUNED = "tuned"
    PARTLY = "partly"
    """Default schedules for the tasks whose gain is doubtful, tuned schedules for all others."""
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision on which schedules a model is built from, and its reason.

    A race times the program with tuned schedules against the program with default schedules.

    Attributes:
        served: whether tuned schedules, defaults or a mixture are used.
        outcome: the outcome of the race, such as "faster" for the tuned program. If defaults are
            used, it is the outcome with all tuned schedules. "same" means that no schedule differs
            from its default. "not_run" means that no race was run. Then either the device cannot
            run the programs, or there is neither a device nor a stored race of the same programs.
        comparison: the measured ratio of times in this race; None without a race.
        dropped: the keys of the workloads that fell back to their defaults.
        reason: the reason, as text for users.
        device: the model name of the CPU on which the race ran.
        attestation: how many workers, of how many owners, ran the race; None without a race.
        untuned_seconds: the fastest run of the untuned program in the race; None if unknown.
    """

    served: Served
    outcome: str
    comparison: Comparison | None = None
    dropped: tuple[str, ...] = ()
    reason: str = ""
    device: str = ""
    attestation: Attestation | None = None
    untuned_seconds: float | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "served": self.served.value,
            "outcome": self.outcome,
            "comparison": None if self.comparison is None else self.comparison.to_json(),
            "dropped": list(self.dropped),
            "reason": self.reason,
            "device": self.device,
            "attestation": self.attestation,
            "untuned_seconds": self.untuned_seconds,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Verdict:
        """Return the verdict that `to_json` converted to JSON.

        Raises KeyError for a missing entry, and ValueError for an invalid one.
        """
        comparison = data["comparison"]
        return cls(
            Served(data["served"]),
            str(data["outcome"]),
            None if comparison is None else Comparison.from_json(comparison),
            tuple(data["dropped"]),
            str(data["reason"]),
            str(data.get("device", "")),
            None if data.get("attestation") is None else Attestation(data["attestation"]),
            finite(data.get("untuned_seconds")),
        )


@dataclass(frozen=True, slots=True)
class FixedSchedules:
    """A schedule source backed by a mapping from workload key to schedule.

    A workload that is not in the mapping gets its default schedule.
    """

    schedules: Mapping[str, Schedule]

    def best(self, workload_key: str, mode: Mode) -> Schedule | None:
        return self.schedules.get(workload_key)


@dataclass(frozen=True, slots=True)
class SelectedSchedules:
    """The schedules from which a model is built, and why they were selected.

    Attributes:
        planned: the plans of the model, one for each size.
        schedules: the tuned schedules; all other workloads have the default.
        verdict: the decision behind the selection.
        known: the number of workloads for which the database has a record of the same workload.
        workloads: the number of workloads of the model.
        records: the ids of the records in use, by workload key.
        related: the number of workloads for which the database only has a record of a similar
            workload. The similar one differs only in numbers, such as quantisation scales.
    """

    planned: tuple[Planned, ...]
    schedules: FixedSchedules
    verdict: Verdict
    known: int
    workloads: int
    records: Mapping[str, str] = field(default_factory=dict)
    related: int = 0


def select_schedules(
    planned: Sequence[Planned],
    storage: Storage,
    device: Device | None = None,
    *,
    job_id: str = "",
    kernels: KernelCache | None = None,
    weight_limit_bytes: int | None = None,
) -> SelectedSchedules:
    """Select the schedules with which to build a model: tuning records, or defaults.

    Defaults are selected if the tuned program was not faster in an end-to-end race. With a device,
    the race is run unless its result is stored. Without a device, only a stored result counts. If
    there is neither a device nor a stored result, the records are used, because each kernel alone
    was faster than its default; the outcome of the verdict is then "not_run".

    Args:
        planned: the plans of the model, one for each size.
        storage: the database with the records and the results of races.
        device: the device for races; None to run nothing.
        job_id: the job that builds the model; "" without one.
        kernels: the cache of compiled kernels.
        weight_limit_bytes: the limit of the packed weights; None for no limit.

    Raises:
        CompilerError: if a program does not compile.
    """
    workloads = {w.key: w for each in planned for w, _ in each.workloads}
    mode = planned[0].mode
    wanted = {RecordKey(key, *mode.key): workload for key, workload in workloads.items()}
    steps = find(wanted, mode, storage, Match.OTHER_NUMBERS, holding=True)
    found = {key.workload_key: step.stored.record for key, step in steps.items()}
    own = sum(step.match is Match.EXACT for step in steps.values())
    untuned = {key: workload for each in planned for key, workload in each.untuned.items()}
    tuned = {k: r for k, r in found.items() if _differs(r, planned[0], untuned[k])}
    verdict = _verdict(planned, tuned, storage, device, job_id, kernels, weight_limit_bytes)
    kept = {key: r.schedule for key, r in tuned.items() if key not in verdict.dropped}
    used = {
        key: record_id(one.key, one.schedule.digest, one.trial_id)
        for key, one in tuned.items()
        if key in kept
    }
    schedules = FixedSchedules(kept)
    return SelectedSchedules(
        tuple(planned), schedules, verdict, own, len(workloads), used, len(steps) - own
    )


def _verdict(
    planned: Sequence[Planned],
    records: Mapping[str, TuningRecord],
    storage: Storage,
    device: Device | None,
    job_id: str,
    kernels: KernelCache | None,
    limit: int | None,
) -> Verdict:
    """Return the verdict of a race: whether tuned schedules, defaults or a mixture are used.

    If a race with these records is stored, return its verdict; otherwise run the race. Without
    records, or without a device that runs the target, no race is run.
    """
    if not records:
        return Verdict(Served.DEFAULT, "same", reason=ALL_DEFAULTS)
    schedules = {key: record.schedule for key, record in records.items()}
    identity = _identity(planned, schedules, limit)
    known = storage.ledger.race(identity, job_id)
    target = planned[0].target
    if device is None or (known is not None and not device.runs(target)):
        if known is not None:
            return replace(Verdict.from_json(known.verdict), attestation=known.attestation)
        return Verdict(Served.TUNED, "not_run", reason=NOT_RACED)
    if not device.runs(target):
        return Verdict(Served.TUNED, "not_run", reason=device.absence(target))
    programs = _Programs(planned, schedules, kernels, limit)
    for _ in range(ATTEMPTS):
        verdict = _usable(programs, records, identity, storage, device, job_id)
        if verdict is not None:
            return verdict
    return Verdict(Served.TUNED, "not_run", reason=TAKEN_BACK)


def _usable(
    programs: _Programs,
    records: Mapping[str, TuningRecord],
    identity: str,
    storage: Storage,
    device: Device,
    job_id: str,
) -> Verdict | None:
    """Return the verdict of a race: whether tuned schedules, defaults or a mixture are used.

    The verdict comes from the stored race with the key `identity`, or else from a new race. If the
    race needs a second measurement, another worker repeats it first, if one is alive
    (`race_review`). If the repetition contradicts the race, the verdict selects the default
    schedules.

    Return None if the race was withdrawn in the meantime, or if another job had already disputed
    the race. The caller then tries again.
    """
    known = storage.ledger.race(identity, job_id)
    if known is not None:
        verdict = Verdict.from_json(known.verdict)
    else:
        try:
            verdict, worker = _race(programs, records, device)
        except DeviceError as error:
            # not stored: the next job tries again
            return Verdict(Served.TUNED, "not_run", reason=str(error))
        if not (worker or device.trusted):
            return replace(
                verdict, attestation=Attestation.ONCE
            )  # by several workers: not stored either
        known = storage.ledger.add_race(
            identity,
            programs.mode.key,
            CODEGEN_VERSION,
            job_id,
            verdict.served.value,
            verdict.to_json(),
            None if device.trusted else worker,
        )
    # before the review, which takes as long as a race: retention keeps verdicts that are used
    if job_id and not storage.ledger.use([known.id], job_id):
        return None
    schedules = programs.tuned
    wins = verdict.served is not Served.DEFAULT
    dropped = verdict.dropped if wins else ()
    kept = {key: schedule for key, schedule in schedules.items() if key not in dropped}
    outcome = verdict.outcome
    review_race(
        known,
        storage,
        device,
        lambda other: programs.race(other, kept),
        [Outcome(outcome)],
        job_id=job_id,
    )
    known = storage.ledger.race_by_id(known.id) or known
    if known.state in (ReviewState.WITHDRAWN, ReviewState.DISPUTED):
        storage.ledger.leave([known.id], job_id)
    if known.state is ReviewState.WITHDRAWN:
        return None
    if known.state is ReviewState.DISPUTED:
        every = tuple(sorted(schedules))
        return Verdict(Served.DEFAULT, outcome, None, every, known.reason, verdict.device)
    return replace(verdict, attestation=known.attestation)


def _differs(record: TuningRecord, planned: Planned, workload: Workload) -> bool:
    """Whether a record's schedule differs from the workload's default."""
    return record.schedule != untuned_schedule(workload, planned.mode)


class _Programs:
    """A model's untuned program and its tuned programs; each is compiled for its first race."""

    def __init__(
        self,
        planned: Sequence[Planned],
        schedules: Mapping[str, Schedule],
        kernels: KernelCache | None,
        limit: int | None,
    ) -> None:
        self._planned = planned
        self.tuned = schedules
        first = planned[0]
        self.mode = first.mode
        self._builder = ProgramBuilder(FixedSchedules({}), first.mode, limit, kernels=kernels)

    def race(self, device: Device, schedules: Mapping[str, Schedule]) -> Race:
        """Race the program with these schedules against the untuned program.

        Workloads that are not in `schedules` get their default schedules.

        Raises:
            DeviceError: if the device cannot run the programs.
            CompilerError: if the program does not compile with the schedules.
        """
        challenger = _variant(self._builder.variant(FixedSchedules(schedules)), self._planned)
        return device.race([self._untuned, challenger], self.mode.threads)

    @cached_property
    def _untuned(self) -> Variant:
        return _variant(self._builder, self._planned)


def _race(
    programs: _Programs, records: Mapping[str, TuningRecord], device: Device
) -> tuple[Verdict, str]:
    """Race the tuned program against the untuned program.

    If the tuned program is not faster, a second program is raced. It has only the tuned schedules
    whose own measurement shows a large gain (`_is_sure`), and defaults for the other workloads. If
    it is not faster either, the verdict selects the defaults.

    Returns:
        the verdict, and the id of the worker that ran all races; "" on the local machine or if
        several workers ran them.
    """
    where = "" if device.facts is None else device.facts.model
    tuned = programs.tuned
    race = programs.race(device, tuned)
    (whole,) = race.comparisons
    taken = race.incumbent_seconds
    if whole.outcome is Outcome.FASTER:
        verdict = Verdict(
            Served.TUNED, whole.outcome.value, whole, device=where, untuned_seconds=taken
        )
        return verdict, race.worker
    sure = {key: schedule for key, schedule in tuned.items() if _is_sure(records[key])}
    found = f"all tuned schedules together: {whole.outcome.value}, {speedup(whole.ratio)} untuned"
    worker = race.worker
    if sure and len(sure) < len(tuned):
        race = programs.race(device, sure)
        (partly,) = race.comparisons
        worker = worker if race.worker == worker else ""
        if partly.outcome is Outcome.FASTER:
            dropped = tuple(sorted(tuned.keys() - sure.keys()))
            verdict = Verdict(
                Served.PARTLY,
                partly.outcome.value,
                partly,
                dropped,
                found,
                where,
                untuned_seconds=race.incumbent_seconds,
            )
            return verdict, worker
    verdict = Verdict(
        Served.DEFAULT,
        whole.outcome.value,
        whole,
        tuple(sorted(tuned)),
        found,
        where,
        untuned_seconds=taken,
    )
    return verdict, worker


def _is_sure(record: TuningRecord) -> bool:
    """Whether a record's measured gain is so large that the whole model probably gains too.

    When the record was measured, its schedule was timed against the schedule of the previous
    record. Without a previous record, it was timed against the default schedule. The ratio of the
    two times has a confidence interval, whose upper end must be less than `SURE_RATIO`.
    """
    comparison = record.measurement.comparison
    return comparison is not None and comparison.interval.high < SURE_RATIO


def _variant(builder: ProgramBuilder, planned: Sequence[Planned]) -> Variant:
    """Compile the model for a race, and return its programs at all sizes to time.

    `planned` has the plans (partitions into kernels) of the model. A plan for fixed sizes gives one
    program. A plan with dynamic dimensions gives one for each combination of sizes that is timed.
    """
    builder.reserve([each.served_plan for each in planned], spare=PROGRAMS)
    return [
        of_compiled(program)
        for each in planned
        for program in each.programs(builder.build(each.served_plan))
    ]


def _identity(planned: Sequence[Planned], tuned: Mapping[str, Schedule], limit: int | None) -> str:
    """Return the key under which the result of a race is stored.

    The key is a digest of all that affects the result: the kernels in order, the mode, the
    schedules, the version of the code generator, the weight limit, and the sizes that are timed.
    """
    first = planned[0]
    about = [
        [[step.workload.key for step in each.served_plan.kernels] for each in planned],
        *first.mode.key,
        sorted((key, schedule.digest) for key, schedule in tuned.items()),
        CODEGEN_VERSION,
        *([] if limit is None else [limit]),
        *([list(d.sizes) for d in each.open.drawn] for each in planned if each.open is not None),
    ]
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()
