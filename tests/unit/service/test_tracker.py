"""A job's progress as its events tell it."""

from __future__ import annotations

from service.jobs.tracker import Tracker


def test_it_begins_with_tuning_and_the_whole_budget() -> None:
    progress = Tracker([], 7).progress
    assert (progress.phase, progress.trials_budget) == ("tuning", 7)
    assert progress.tasks_total == progress.trials_done == 0
