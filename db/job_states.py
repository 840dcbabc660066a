"""The states of a tuning job and every step between them, in one table."""

from __future__ import annotations

from enum import StrEnum

from db.errors import StateError


class JobState(StrEnum):
    """Where a job stands. The last three are final."""

    QUEUED = "queued"  # waits for a tuner
    RUNNING = "running"  # a tuner holds it and measures
    VERIFYING = "verifying"  # measured; the artifact is built and compared with the reference
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        return not TRANSITIONS[self]


# queued <- running: a tuner that shuts down gives its job back.
# running <- verifying: a tuner died while verifying; its successor starts from the records.
# failed <- queued: the job killed every tuner that took it.
TRANSITIONS: dict[JobState, frozenset[JobState]] = {
    JobState.QUEUED: frozenset({JobState.RUNNING, JobState.CANCELLED, JobState.FAILED}),
    JobState.RUNNING: frozenset(
        {
            JobState.QUEUED,
            JobState.VERIFYING,
            JobState.SUCCEEDED,
            JobState.FAILED,
            JobState.CANCELLED,
        }
    ),
    JobState.VERIFYING: frozenset(
        {
            JobState.QUEUED,
            JobState.RUNNING,
            JobState.SUCCEEDED,
            JobState.FAILED,
            JobState.CANCELLED,
        }
    ),
    JobState.SUCCEEDED: frozenset(),
    JobState.FAILED: frozenset(),
    JobState.CANCELLED: frozenset(),
}

FINAL_STATES = frozenset(state for state, following in TRANSITIONS.items() if not following)
HELD_STATES = frozenset({JobState.RUNNING, JobState.VERIFYING})  # a tuner holds a claim


def check_transition(job_id: str, old: JobState, new: JobState) -> None:
    """Raise StateError unless the table has the step from old to new."""
    if new not in TRANSITIONS[old]:
        raise StateError(f"job '{job_id}' is {old}, which cannot become {new}")
