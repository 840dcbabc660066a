"""Finds a schedule for any workload, even if the workload was never tuned.

A workload is a fused subgraph. The schedule comes from the most closely related workload with a
stored record (`service.jobs.knowledge.ladder`). Without a related workload, the default schedule is
used.

A borrowed schedule is usually slower than a schedule tuned for the workload. This slowdown is
estimated from workloads that were measured both with their own schedule and with one borrowed in
the same way.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.compiler.errors import CompilerError
from tilewright.compiler.mode import Mode
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.schedule.select import untuned_schedule
from tilewright.db.review_state import ReviewState
from tilewright.db.storage import Storage
from tilewright.db.stores.claim_rows import StoredRecord
from tilewright.db.stores.shapes import distance
from tilewright.service.jobs.device.job_target import target_names
from tilewright.service.jobs.knowledge.ladder import (
    Match,
    Near,
    find,
    near_records,
    near_shapes,
    step_to,
)
from tilewright.tuner.protocol.measurement import RecordKey

LIKE = 1.5
"""Limit of the distance between two measured workloads, as a multiple of the distance for which a
slowdown is estimated. Pairs within the limit are evidence for the estimate."""

LEAST_DISTANCE = 0.1
"""Smallest distinguished distance between the sizes of two workloads: a tenth of a doubling of
every size. Smaller distances count as equal to it."""

MOST_RECORDS = 500
"""Limit of the records of another target, newest first, from which the slowdown of its schedules on
the present target is estimated."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A schedule for a requested workload, with its expected slowdown relative to a tuned one.

    Attributes:
        match: the kind of record from which the schedule comes.
        schedule: a valid schedule of the requested workload.
        record: the record from which the schedule comes; None for the default.
        run_seconds: the time of the schedule on the requested workload; None if it was not
            measured.
        expected_loss: the expected slowdown relative to a tuned schedule, as a fraction, such as
            0.1 for 10 % more time; None if nothing was measured.
        pairs: the number of cases from which the slowdown is estimated. In each, a workload was
            measured with its own schedule and with a borrowed one.
        distance: the root mean square of log2 of the ratios between the sizes of the record's
            workload and the requested ones; None for the default.
        sentence: an explanation for the user.
    """

    match: Match
    schedule: Schedule
    record: StoredRecord | None
    run_seconds: float | None
    expected_loss: float | None
    pairs: int
    distance: float | None
    sentence: str


@dataclass(frozen=True, slots=True)
class _Losses:
    """The expected slowdown of a borrowed schedule.

    Attributes:
        expected: the median slowdown of a borrowed schedule relative to the fastest measured
            schedule of the same workload, such as 0.1 for 10 % more time; None without a
            measurement.
        pairs: the number of slowdowns of which `expected` is the median.
    """

    expected: float | None
    pairs: int

    @classmethod
    def of(cls, losses: Sequence[float]) -> _Losses:
        return cls(statistics.median(losses) if losses else None, len(losses))

    def sentence(self) -> str:
        if self.expected is None:
            return "its slowdown has not been measured"
        pairs = "one pair" if self.pairs == 1 else f"{self.pairs} pairs"
        return f"{self.expected:.0%} slower than tuned is expected, by {pairs} of measurements"


def best_answer(storage: Storage, workload_key: str, mode: Mode) -> Answer:
    """Return the best available schedule for a workload: tuned, borrowed or the default.

    Raises:
        NotFoundError: if the database does not contain the workload.
        CompilerError: if no template supports the workload.
    """
    key = RecordKey(workload_key, *mode.key)
    stored = storage.ledger.served([key]).get(key)
    if stored is not None:
        return _exact(stored)
    workload = Workload.parse(storage.workloads.workload(workload_key))
    below, last = Match.OTHER_NUMBERS, Match.SAME_INSTRUCTIONS
    step = find({key: workload}, mode, storage, last, start=below, holding=False).get(key)
    if step is not None:
        if step.match is Match.OTHER_NUMBERS:
            return _other_numbers(step.stored, storage, key)
        return _same_instructions(step.stored, storage, key)
    near = near_shapes(workload, mode, storage)
    default = untuned_schedule(workload, mode)
    times = storage.shapes.times(
        [workload_key, *(each.workload_key for _, each in near)], *mode.key
    )
    fallback = _default(workload_key, default, near, times, storage, mode)
    step = step_to(key, workload, near, mode, storage)
    if step is None:
        return fallback
    losses = _shape_losses(near, near_records(near, mode, storage), times, step.distance)
    if (
        losses.expected is not None
        and fallback.expected_loss is not None
        and losses.expected > fallback.expected_loss
    ):
        return fallback
    record = step.stored.record
    name = storage.workloads.workload(record.key.workload_key).splitlines()[1]
    return Answer(
        Match.NEAREST_SHAPE,
        record.schedule,
        step.stored,
        times.get(workload_key, {}).get(record.schedule.digest),
        losses.expected,
        losses.pairs,
        step.distance,
        f"tuned for another shape ({name}): {losses.sentence()}",
    )


def _exact(stored: StoredRecord) -> Answer:
    interval = stored.record.measurement.interval
    sure = "" if interval is None else f", undisturbed {interval.low:.3g} to {interval.high:.3g} s"
    samples = len(stored.record.measurement.samples_seconds)
    return Answer(
        Match.EXACT,
        stored.record.schedule,
        stored,
        stored.record.run_seconds,
        0.0,
        0,
        0.0,
        f"tuned for this workload and target: the fastest of {samples} samples{sure}, "
        f"{stored.attestation.sentence}",
    )


def _other_numbers(stored: StoredRecord, storage: Storage, key: RecordKey) -> Answer:
    """Return the schedule of a workload with other constants (such as scales), and its slowdown.

    The slowdown is relative to the fastest measured schedule of the requested workload. It is known
    only if the borrowed schedule and another schedule were measured on the requested workload.

    Args:
        stored: the tuning record of the workload with other constants.
        storage: the database.
        key: the record key of the requested workload.
    """
    times = storage.shapes.times([key.workload_key], key.target_key, key.threads, key.numerics)
    here = times.get(key.workload_key, {})
    seconds = here.get(stored.record.schedule.digest)
    pairs = [seconds / min(here.values()) - 1.0] if seconds is not None and len(here) > 1 else []
    losses = _Losses.of(pairs)
    return Answer(
        Match.OTHER_NUMBERS,
        stored.record.schedule,
        stored,
        seconds,
        losses.expected,
        losses.pairs,
        0.0,
        f"tuned for a workload that differs in numbers alone, such as scales: {losses.sentence()}",
    )


def _same_instructions(stored: StoredRecord, storage: Storage, key: RecordKey) -> Answer:
    """Return the answer for a record of another target with the same instructions."""
    other_key = stored.record.key.target_key
    losses = _target_losses(storage, key, other_key)
    return Answer(
        Match.SAME_INSTRUCTIONS,
        stored.record.schedule,
        stored,
        None,
        losses.expected,
        losses.pairs,
        0.0,
        f"tuned for '{target_names(storage)[other_key]}', which has the same instructions: "
        f"{losses.sentence()}",
    )


def _target_losses(storage: Storage, key: RecordKey, other: str) -> _Losses:
    """Estimate how much slower schedules tuned for another target are on this target.

    The estimate is the median over workloads that were measured on this target with two schedules
    or more. One of them must be the other target's schedule. Its slowdown is relative to the
    fastest of these schedules.

    Args:
        storage: the database.
        key: a record key with this target.
        other: the key of the other target.
    """
    there = storage.ledger.list(
        target_key=other,
        threads=key.threads,
        numerics=key.numerics,
        state=ReviewState.CONFIRMED,
        limit=MOST_RECORDS,
    )
    keys = [one.record.key.workload_key for one in there]
    times = storage.shapes.times(keys, key.target_key, key.threads, key.numerics)
    losses = []
    for one in there:
        here = times.get(one.record.key.workload_key, {})
        seconds = here.get(one.record.schedule.digest)
        if seconds is not None and len(here) > 1:
            losses.append(seconds / min(here.values()) - 1.0)
    return _Losses.of(losses)


def _shape_losses(
    near: Near,
    records: Mapping[RecordKey, StoredRecord],
    times: Mapping[str, Mapping[str, float]],
    away: float,
) -> _Losses:
    """Estimate how much slower a workload is with a schedule that was tuned for other sizes.

    The estimate uses pairs of workloads in `near`: the tuned schedule of one workload was measured
    on the other workload. The slowdown is relative to the fastest measured schedule of that
    workload. The result has the median slowdown and the number of pairs. Pairs whose sizes differ
    by much more than `away` are left out.

    Args:
        near: workloads that differ only in sizes, from `near_shapes`.
        records: the confirmed tuning records of these workloads.
        times: the measured seconds by workload key and schedule digest.
        away: the distance between the requested sizes and the sizes for which the schedule was
            tuned.
    """
    schedules = {key.workload_key: one.record.schedule.digest for key, one in records.items()}
    losses = []
    for _, one in near:
        for _, other in near:
            if one is other or other.workload_key not in schedules:
                continue
            here = times.get(one.workload_key, {})
            seconds = here.get(schedules[other.workload_key])
            apart = distance(one.sizes, other.sizes)
            if seconds is not None and apart <= LIKE * max(away, LEAST_DISTANCE):
                losses.append(seconds / min(here.values()) - 1.0)
    return _Losses.of(losses)


def _default(
    workload_key: str,
    default: Schedule,
    near: Near,
    times: Mapping[str, Mapping[str, float]],
    storage: Storage,
    mode: Mode,
) -> Answer:
    losses = []
    texts = storage.workloads.workloads([each.workload_key for _, each in near])
    for _, each in near:
        here = times.get(each.workload_key, {})
        try:
            relative = Workload.parse(texts[each.workload_key])
            untuned = untuned_schedule(relative, mode)
        except (CompilerError, KeyError):
            continue  # of another release
        seconds = here.get(untuned.digest)
        if seconds is not None and len(here) > 1:
            losses.append(seconds / min(here.values()) - 1.0)
    found = _Losses.of(losses)
    return Answer(
        Match.DEFAULT,
        default,
        None,
        times.get(workload_key, {}).get(default.digest),
        found.expected,
        found.pairs,
        None,
        f"the untuned default: {found.sentence()}",
    )
