from __future__ import annotations

from itertools import product

import pytest

from tilewright.db.errors import StateError
from tilewright.db.job_states import (
    FINAL_STATES,
    HELD_STATES,
    TRANSITIONS,
    JobState,
    check_transition,
)


def test_the_table_names_every_state() -> None:
    assert set(TRANSITIONS) == set(JobState)
    ended = {JobState.SUCCEEDED, JobState.INCOMPLETE, JobState.FAILED, JobState.CANCELLED}
    assert ended == FINAL_STATES
    assert all(state.final == (state in FINAL_STATES) for state in JobState)


def test_every_state_can_be_reached_and_left_for_a_final_one() -> None:
    reached = {JobState.QUEUED}
    for _ in JobState:
        reached |= {after for state in reached for after in TRANSITIONS[state]}
    assert reached == set(JobState)
    assert all(TRANSITIONS[state] & FINAL_STATES for state in JobState if not state.final)
    assert all(JobState.QUEUED in TRANSITIONS[state] for state in HELD_STATES)


# The service's steps with a job, written out: the actor, and the step.
STEPS = {
    "a tuner takes it": ("queued", "running"),
    "a tuner that shuts down gives it back": ("running", "queued"),
    "a tuner that shuts down while verifying gives it back": ("verifying", "queued"),
    "everything is measured": ("running", "verifying"),
    "the successor of a tuner that died while verifying goes on": ("verifying", "running"),
    "nothing is left to verify": ("running", "succeeded"),
    "the artifact agrees with the reference": ("verifying", "succeeded"),
    "it killed every tuner that took it": ("queued", "failed"),
    "a workload does not compile": ("running", "failed"),
    "the artifact disagrees with the reference": ("verifying", "failed"),
    "its owner cancels it while it waits": ("queued", "cancelled"),
    "its owner cancels it while it is measured": ("running", "cancelled"),
    "its owner cancels it while it is verified": ("verifying", "cancelled"),
    "no worker for it is alive": ("queued", "waiting_for_worker"),
    "a worker appears": ("waiting_for_worker", "queued"),
    "its last worker is gone": ("running", "waiting_for_worker"),
    "its last worker is gone before the artifact was verified": ("verifying", "waiting_for_worker"),
    "no worker came in time": ("waiting_for_worker", "running"),
    "it killed every tuner, and waited for a worker in between": ("waiting_for_worker", "failed"),
    "its owner cancels it while it waits for a worker": ("waiting_for_worker", "cancelled"),
    "nothing was tuned": ("running", "incomplete"),
    "nothing was tuned, and the defaults are verified": ("verifying", "incomplete"),
    "its owner pauses it": ("queued", "paused"),
    "its owner pauses it while it waits for a worker": ("waiting_for_worker", "paused"),
    "its owner pauses it while it is measured": ("running", "paused"),
    "its owner pauses it while it is verified": ("verifying", "paused"),
    "its owner lets it go on": ("paused", "queued"),
    "its owner cancels it while it is paused": ("paused", "cancelled"),
}


@pytest.mark.parametrize("why", STEPS)
def test_what_happens_to_a_job(why: str) -> None:
    check_transition("j1", *map(JobState, STEPS[why]))


OTHERS = {*product(JobState, JobState)} - {
    (JobState(old), JobState(new)) for old, new in STEPS.values()
}


@pytest.mark.parametrize(("old", "new"), sorted(OTHERS))
def test_nothing_else_happens(old: JobState, new: JobState) -> None:
    with pytest.raises(StateError, match=f"job 'j1' is {old}, which cannot become {new}"):
        check_transition("j1", old, new)
