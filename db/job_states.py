"""The states of a tuning job, and the table of all allowed transitions."""

from __future__ import annotations

from enum import StrEnum

from tilewright.db.errors import StateError


class JobState(StrEnum):
    """The state of a tuning job. Succeeded, incomplete, failed and cancelled are final."""

    QUEUED = "queued"  # waits for a tuner
    WAITING = "waiting_for_worker"  # no live worker runs its target; no tuner holds it
    PAUSED = "paused"  # its owner stopped it, and may resume it
    RUNNING = "running"  # a tuner holds it and measures
    VERIFYING = "verifying"  # measured; the artifact is built and verified
    SUCCEEDED = "succeeded"
    INCOMPLETE = "incomplete"  # nothing was tuned or verified; `reason` has the cause
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        return not TRANSITIONS[self]


_STOPPED = frozenset({JobState.PAUSED, JobState.CANCELLED})  # by its owner, at any time

# queued <- running: a tuner that shuts down gives its job back.
# waiting <- running: the last worker for its target is gone.
# running <- waiting: no worker came in time, and the job ends with the known records.
# running <- verifying: a tuner died while verifying; its successor starts from the records.
# failed <- queued, waiting: the job killed every tuner that took it.
TRANSITIONS: dict[JobState, frozenset[JobState]] = {
    JobState.QUEUED: _STOPPED | {JobState.WAITING, JobState.RUNNING, JobState.FAILED},
    JobState.WAITING: _STOPPED | {JobState.QUEUED, JobState.RUNNING, JobState.FAILED},
    JobState.PAUSED: frozenset({JobState.QUEUED, JobState.CANCELLED}),
    JobState.RUNNING: _STOPPED
    | {
        JobState.QUEUED,
        JobState.WAITING,
        JobState.VERIFYING,
        JobState.SUCCEEDED,
        JobState.INCOMPLETE,
        JobState.FAILED,
    },
    JobState.VERIFYING: _STOPPED
    | {
        JobState.QUEUED,
        JobState.WAITING,
        JobState.RUNNING,
        JobState.SUCCEEDED,
        JobState.INCOMPLETE,
        JobState.FAILED,
    },
    JobState.SUCCEEDED: frozenset(),
    JobState.INCOMPLETE: frozenset(),
    JobState.FAILED: frozenset(),
    JobState.CANCELLED: frozenset(),
}

FINAL_STATES = frozenset(state for state, following in TRANSITIONS.items() if not following)
HELD_STATES = frozenset({JobState.RUNNING, JobState.VERIFYING})  # a tuner holds a claim


def check_transition(job_id: str, old: JobState, new: JobState) -> None:
    """Raise StateError unless `TRANSITIONS` allows the change from `old` to `new`."""
    if new not in TRANSITIONS[old]:
        raise StateError(f"job '{job_id}' is {old}, which cannot become {new}")
