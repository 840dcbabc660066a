"""The interface of cost models for search strategies, and their training samples."""

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

    Attributes:
        task: the name of its task. Only samples of one task are compared.
        row: its features, (columns,).
        run_seconds: the time of one run; None if the candidate failed.
    """

    task: str
    row: np.ndarray
    run_seconds: float | None


def point_samples(
    task: str, points: Sequence[SizePoint], row: np.ndarray, measurement: Measurement
) -> list[Sample]:
    """Convert a measured candidate to training samples: one per measured size.

    Each size is a separate task, because times at different sizes are not comparable. Without open
    sizes, there is one sample.

    Args:
        task: the name of the task.
        points: the sizes at which the candidate was to be measured.
        row: the features by `FeatureExtractor.row` for these points.
        measurement: the candidate's measurement.
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
    """Predicts scores of candidates from features.

    A higher score means a faster candidate. Scores have no unit.
    """

    @property
    def trained(self) -> bool:
        """Whether the model has been trained; an untrained model returns equal scores."""

    def train(self, samples: Sequence[Sample]) -> None:
        """Fit the model to all samples of all tasks, instead of those of earlier calls.

        A model loaded by `load` is kept and corrected.
        """

    def predict(self, rows: np.ndarray) -> np.ndarray:
        """Return float64 scores (number,) for rows (number, columns); equal ones if untrained."""

    def save(self) -> bytes:
        """Return the trained model as bytes, for the method `load`; empty if untrained."""

    def load(self, data: bytes) -> None:
        """Replace this model by a saved one.

        Raises:
            ValueError: if the bytes are not a saved model of this kind and feature version.
        """


def normalised_throughput(samples: Sequence[Sample]) -> np.ndarray:
    """Return each sample's throughput relative to its task's best: 1 for the best, 0 for
    a failure.
    """
    best: dict[str, float] = {}
    for sample in samples:
        if sample.run_seconds is not None:
            best[sample.task] = min(best.get(sample.task, sample.run_seconds), sample.run_seconds)
    return np.array(
        [best[s.task] / s.run_seconds if s.run_seconds else 0.0 for s in samples], dtype=np.float64
    )
