"""The protocol of cost models, as search strategies use it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tilewright.tuner.measure.points import SizePoint
from tilewright.tuner.protocol.measurement import Measurement


@dataclass(frozen=True, slots=True)
class Sample:
    """A measured candidate for training.

    It has its task, its feature row, and its seconds for one run (None: it failed).
    """

    task: str
    row: np.ndarray
    run_seconds: float | None


def point_samples(
    task: str, points: Sequence[SizePoint], row: np.ndarray, measurement: Measurement
) -> list[Sample]:
    """A measured candidate for training: one sample, or one at each of a workload's sizes.

    Each size is a task of its own, because times of different sizes say nothing of schedules.

    Args:
        task: the name of the task.
        points: where the candidate was measured, or would have been if it had not failed.
        row: what `FeatureExtractor.row` gives for these points.
        measurement: of the candidate.
    """
    if not points[0].sizes:
        return [Sample(task, row, measurement.run_seconds)]
    seconds: list[float | None] = []
    if measurement.ok:
        seconds += [each.run_seconds for each in measurement.at_sizes]
    return [
        Sample(f"{task} {dict(point.sizes)}", at_point, found)
        for point, at_point, found in zip(points, row, seconds or [None] * len(points), strict=True)
    ]


class CostModel(Protocol):
    """Predicts scores of candidates from features. Higher is better; the scale depends on the
    model.
    """

    @property
    def trained(self) -> bool:
        """Whether the model has been trained, so that its predictions are informative."""

    def train(self, samples: Sequence[Sample]) -> None:
        """Learn from all samples of all tasks, replacing what earlier calls learned.

        A model taken over by `load` is kept and corrected.
        """

    def predict(self, rows: np.ndarray) -> np.ndarray:
        """Return scores (number,), float64, of rows (number, columns). Untrained, all scores are
        equal.
        """

    def save(self) -> bytes:
        """The trained model as bytes that `load` reads; empty if untrained."""

    def load(self, data: bytes) -> None:
        """Take over a saved model.

        Raises:
            ValueError: if the bytes are not a saved model of this kind and feature version.
        """


def normalised_throughput(samples: Sequence[Sample]) -> np.ndarray:
    """Return the throughput of each sample relative to its task's best: 1 for the best, 0 if
    failed.
    """
    best: dict[str, float] = {}
    for sample in samples:
        if sample.run_seconds is not None:
            best[sample.task] = min(best.get(sample.task, sample.run_seconds), sample.run_seconds)
    return np.array(
        [best[s.task] / s.run_seconds if s.run_seconds else 0.0 for s in samples], dtype=np.float64
    )
