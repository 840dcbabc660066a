"""Scenarios of collection_service: cancel a job, kill its tuner, or run it together with jobs of
large models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from benchmarks.collection_fleet import TUNER, ObservedService, lives, waited
from tilewright.db.stores.jobs import Job

GONE_SECONDS = 1.0
"""How long the processes of a job may live after it was cancelled, or its tuner killed."""

ENOUGH_TRIALS = 5


class Moment(StrEnum):
    """Phases of a job in chronological order, by their names in the job's events."""

    IMPORT = "importing"
    PLAN = "planning"
    REFERENCES = "references"
    TUNE = "tuning"
    RACE = "settling"
    VERIFY = "verifying"


ORDER = ("", "importing", "planning", "waiting", "tuning", "settling", "building", "verifying")


def reached(moment: Moment, phase: str, children: int, trials: int) -> bool:
    """Whether a job has come to a moment, or is past it.

    Args:
        moment: one of the job's phases.
        phase: what the job's progress says.
        children: processes that compute for the job.
        trials: how many it has measured.
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
    """A job that was cancelled.

    Attributes:
        phase: that of its progress just then.
        processes: how many computed for it.
        gone_seconds: how long the last of them lived; None: longer than anyone waited.
        left_seconds: until the tuner has let go of the job.
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
    """Submit a model, and cancel its job when it comes to a moment."""
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
    """A job whose tuner was killed.

    Attributes:
        orphans: processes below the tuner, its builders among them.
        gone_seconds: how long the last of them lived; None: longer than anyone waited.
        ended_seconds: from the kill until the job had ended.
        trials: how many it had measured before.
        broken: finished measurements that were lost, in words.
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
    """Submit a model, kill the tuner when the job comes to a moment, and start another."""
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
    """A small model's job, at the same time as jobs of large models.

    Attributes:
        alone_seconds: of its job without others, from its submission to its end; None if it did
            not end.
        wall_seconds: the same with the other jobs.
        phases: those of the other jobs when it ended.
        states: how the jobs ended, the small one first.
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
    """The time of a model's job without others."""
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
    """Submit a small model while large ones are being tuned."""
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
    """Wait until a job comes to a moment, or ends."""

    def there() -> bool:
        job = service.job(job_id)
        progress = job.progress
        children = len(service.children())
        return job.state.final or reached(moment, progress.phase, children, progress.trials_done)

    waited(there, patience)


def took(job: Job) -> float | None:
    """Seconds from a job's submission to its end; None while it goes on."""
    if job.finished_at is None:
        return None
    return round(job.finished_at - job.created_at, 1)


def _round(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 2)


def _added(first: float | None, then: float | None) -> float | None:
    return None if first is None or then is None else round(first + then, 2)
