"""Scenarios of collection_service: cancelled jobs, killed tuners, and jobs at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from benchmarks.collection_fleet import TUNER, ObservedService, lives, waited
from tilewright.db.stores.jobs import Job

GONE_SECONDS = 1.0
"""Seconds that a job's processes may live after it was cancelled or its tuner was killed."""

ENOUGH_TRIALS = 5


class Moment(StrEnum):
    """Phases of a job in chronological order, by their names in the job's events."""

    IMPORT = "importing"
    PLAN = "planning"
    REFERENCES = "references"
    TUNE = "tuning"
    RACE = "choosing"
    VERIFY = "verifying"


ORDER = ("", "importing", "planning", "waiting", "tuning", "choosing", "building", "verifying")


def reached(moment: Moment, phase: str, children: int, trials: int) -> bool:
    """Return whether a job has reached a phase.

    Args:
        moment: the phase to test for.
        phase: the current phase, from the job's progress. A job in a later phase than `moment` has
            reached `moment`.
        children: the number of child processes that compute for the job. If a child process does
            the work of `moment`, at least one must exist.
        trials: the number of trials measured so far. The tuning phase is reached after five.
    """
    wanted = "tuning" if moment is Moment.REFERENCES else moment.value
    if ORDER.index(phase) != ORDER.index(wanted):
        return ORDER.index(phase) > ORDER.index(wanted)
    match moment:
        case Moment.IMPORT | Moment.REFERENCES | Moment.VERIFY:
            return children > 0  # the work of these is done by a child
        case Moment.TUNE:
            return trials >= ENOUGH_TRIALS
        case _:
            return True


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Observations after a job was cancelled in one of its phases.

    Attributes:
        moment: the phase in which it was to be cancelled.
        phase: the phase in the job's progress when it was cancelled.
        processes: the number of processes that computed for the job.
        gone_seconds: time from the cancellation to the end of the last such process; None if one
            outlived the waiting time.
        left_seconds: time from the cancellation until the tuner logged that it no longer works on
            the job.
        state: the final state of the job.
    """

    model: str
    moment: str
    phase: str
    processes: int
    gone_seconds: float | None
    left_seconds: float | None
    state: str

    def faults(self) -> list[str]:
        faults = [] if self.state == "cancelled" else [f"it is {self.state}"]
        if self.gone_seconds is None or self.gone_seconds > GONE_SECONDS:
            faults.append("its processes live")
        return faults + ([] if self.left_seconds is not None else ["the tuner goes on with it"])


def cancel(
    service: ObservedService,
    model: str,
    file: Path,
    moment: Moment,
    seconds: float,
    patience: float,
) -> Cancelled:
    """Submit a model, wait until its job is in phase `moment`, and cancel the job.

    `seconds` is the tuning budget, and `patience` the maximum duration of each wait, in seconds.
    """
    job_id = service.submit(file, seconds)
    come_to(service, job_id, moment, patience)
    phase, running = service.job(job_id).progress.phase, service.children()
    if not service.job(job_id).state.final:
        service.client.cancel(job_id)
    gone = waited(lambda: not any(map(lives, {*running, *service.children()})), patience)
    left = waited(lambda: service.let_go(job_id), patience)
    state = service.job(job_id).state.value
    return Cancelled(
        model, moment.name.lower(), phase, len(running), _round(gone), _added(gone, left), state
    )


@dataclass(frozen=True, slots=True)
class Killed:
    """Observations after a tuner was killed in one of the phases of its job.

    Attributes:
        moment: the phase in which the tuner was to be killed.
        phase: the phase in the job's progress when the tuner was killed.
        orphans: the number of processes that the tuner had started, including its builders.
        gone_seconds: time from the kill to the end of the last orphan; None if one outlived the
            waiting time.
        ended_seconds: time from the kill to the end of the job; None if it did not end.
        state: the final state of the job.
        artifact: whether the job has an artifact in the end.
        trials: the number of trials measured before the kill.
        broken: one sentence for each broken guarantee, such as a measurement lost or counted twice.
    """

    model: str
    moment: str
    phase: str
    orphans: int
    gone_seconds: float | None
    ended_seconds: float | None
    state: str
    artifact: bool
    trials: int
    broken: tuple[str, ...]

    def faults(self) -> list[str]:
        faults = [] if self.state == "succeeded" and self.artifact else [f"it is {self.state}"]
        if self.gone_seconds is None or self.gone_seconds > GONE_SECONDS:
            faults.append("orphans live")
        return faults + list(self.broken)


def kill(
    service: ObservedService,
    model: str,
    file: Path,
    moment: Moment,
    seconds: float,
    patience: float,
) -> Killed:
    """Submit a model, kill the tuner when the job is in phase `moment`, and start another tuner.

    `seconds` is the tuning budget, and `patience` the maximum duration of each wait, in seconds.
    """
    job_id = service.submit(file, seconds)
    come_to(service, job_id, moment, patience)
    before, running = service.job(job_id), service.all_children()
    service.fleet.kill(TUNER)
    gone = waited(lambda: not any(map(lives, running)), patience)
    service.fleet.start_missing()
    ended = waited(lambda: service.job(job_id).state.final, patience)
    job = service.job(job_id)
    return Killed(
        model,
        moment.name.lower(),
        before.progress.phase,
        len(running),
        _round(gone),
        _added(gone, ended),
        job.state.value,
        job.artifact_digest is not None,
        before.progress.trials_done,
        tuple(service.broken_promises(job_id)),
    )


@dataclass(frozen=True, slots=True)
class Beside:
    """Duration of a small model's job that runs at the same time as jobs of large models.

    Attributes:
        others: the names of the large models.
        alone_seconds: duration of the same job without others, from submission to end; None if it
            did not end.
        wall_seconds: duration of the small model's job with the other jobs; None if it did not end.
        phases: the phases of the other jobs when the small job ended.
        states: the final states of the jobs, beginning with the small one.
    """

    model: str
    others: tuple[str, ...]
    alone_seconds: float | None
    wall_seconds: float | None
    phases: tuple[str, ...]
    states: tuple[str, ...]

    def faults(self, limit: float) -> list[str]:
        faults = [f"it is {state}" for state in self.states if state != "succeeded"]
        late = self.wall_seconds is None or self.wall_seconds > limit
        return faults + ([f"later than {limit:g} s"] if late else [])


def alone(service: ObservedService, file: Path, seconds: float, patience: float) -> float | None:
    """Duration in seconds of a model's job that runs alone.

    The result is None if it does not end within `patience` seconds. `seconds` is the tuning budget.
    """
    job_id = service.submit(file, seconds)
    service.ended(job_id, patience)
    return took(service.job(job_id))


def beside(
    service: ObservedService,
    alone_seconds: float | None,
    small: tuple[str, Path],
    large: Sequence[tuple[str, Path]],
    seconds: float,
    patience: float,
) -> Beside:
    """Submit a small model while the large models are being tuned.

    Models are given as name and file. `alone_seconds` is copied to the result. `seconds` is the
    tuning budget, and `patience` the maximum duration of each wait, in seconds.
    """
    others = [service.submit(file, seconds) for _, file in large]
    waited(lambda: all(service.job(each).started_at is not None for each in others), patience)
    mine = service.submit(small[1], seconds)
    service.ended(mine, patience)
    phases = tuple(service.job(each).progress.phase for each in others)
    for each in others:
        service.ended(each, patience)
    return Beside(
        small[0],
        tuple(name for name, _ in large),
        alone_seconds,
        took(service.job(mine)),
        phases,
        tuple(service.job(each).state.value for each in (mine, *others)),
    )


def come_to(service: ObservedService, job_id: str, moment: Moment, patience: float) -> None:
    """Wait at most `patience` seconds until a job has reached phase `moment` or has ended."""

    def there() -> bool:
        job = service.job(job_id)
        progress = job.progress
        children = len(service.children())
        return job.state.final or reached(moment, progress.phase, children, progress.trials_done)

    waited(there, patience)


def took(job: Job) -> float | None:
    """Seconds from a job's submission to its end; None if it has not ended."""
    if job.finished_at is None:
        return None
    return round(job.finished_at - job.created_at, 1)


def _round(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 2)


def _added(first: float | None, then: float | None) -> float | None:
    return None if first is None or then is None else round(first + then, 2)
