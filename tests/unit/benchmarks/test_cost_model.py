"""The benchmark's split into training and test data for cost models."""

from __future__ import annotations

import numpy as np

from benchmarks.cost_model import FOLDS, folds_of_families, folds_of_tasks
from tilewright.tuner.cost_model.protocol import Sample

SAMPLES = {
    family: [
        Sample(f"{family} {task}", np.zeros(1, np.float32), 1e-3)
        for task in range(number + 3)
        for _ in range(2)
    ]
    for number, family in enumerate("abcdefgh")
}


def _tasks(family: str) -> set[str]:
    return {sample.task for sample in SAMPLES[family]}


def test_every_task_is_left_out_once() -> None:
    everything = set().union(*map(_tasks, SAMPLES))
    for folds in (folds_of_tasks(SAMPLES), folds_of_families(SAMPLES)):
        assert len(folds) == FOLDS
        assert sum(map(len, folds)) == len(everything) == len(set().union(*folds))


def test_of_a_family_left_out_nothing_is_learned() -> None:
    for family in SAMPLES:
        assert any(_tasks(family) <= set(fold) for fold in folds_of_families(SAMPLES))


def test_of_tasks_left_out_others_of_their_family_are_learned_from() -> None:
    for fold in folds_of_tasks(SAMPLES):
        assert not any(_tasks(family) <= set(fold) for family in SAMPLES)
