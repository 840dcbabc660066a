from __future__ import annotations

from itertools import product

import pytest

from db.errors import StateError
from db.job_states import FINAL_STATES, HELD_STATES, TRANSITIONS, JobState, check_transition


def test_the_table_names_every_state() -> None:
    assert set(TRANSITIONS) == set(JobState)
    assert {JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED} == FINAL_STATES
    assert all(state.final == (state in FINAL_STATES) for state in JobState)


def test_every_state_can_be_reached_and_left_for_a_final_one() -> None:
    reached = {JobState.QUEUED}
    for _ in JobState:
        reached |= {after for state in reached for after in TRANSITIONS[state]}
    assert reached == set(JobState)
    assert all(TRANSITIONS[state] & FINAL_STATES for state in JobState if not state.final)
    assert all(JobState.QUEUED in TRANSITIONS[state] for state in HELD_STATES)


@pytest.mark.parametrize(("old", "new"), list(product(JobState, JobState)))
def test_steps(old: JobState, new: JobState) -> None:
    if new in TRANSITIONS[old]:
        check_transition("j1", old, new)
    else:
        with pytest.raises(StateError, match=f"job 'j1' is {old}, which cannot become {new}"):
            check_transition("j1", old, new)
