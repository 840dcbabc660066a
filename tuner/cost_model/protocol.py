"""The interface that search strategies use for cost models, and the models' training samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tilewright.tuner.measure.points import SizePoint
from tilewright.tuner.protocol.measurement import Measurement


@dataclass(frozen=True, slots=True)
class Sample:
    """The features of a candidate and its measured time, for training a cost model.

    Attributes:
        task: the name of the candidate's task. Only samples of one task are compared.
        row: the candidate's features, (columns,).
        run_seconds: the time of one run; None if the candidate failed.
    """

    task: str
    row: np.ndarray
    run_seconds: float | None


def point_samples(
    task: str, points: Sequence[SizePoint], row: np.ndarray, measurement: Measurement
) -> list[Sample]:
    """Convert a measured candidate to training samples: one per measured size.

    Each size is a separate task, because times at different sizes are not comparable. A workload
    without dynamic dimensions gives one sample.

    Args:
        task: the name of the task.
        points: the sizes at which the candidate was to be measured.
        row: the candidate's features, as returned by `FeatureExtractor.row` for these points.
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
    """A model that predicts the relative speed of candidates from their features.

    The prediction is a score without a unit; a higher score means a faster candidate.
    """

    @property
    def trained(self) -> bool:
        """Whether the model has been trained; an untrained model returns equal scores."""

    def train(self, samples: Sequence[Sample]) -> None:
        """Fit the model to the given samples, which may belong to several tasks.

        The result does not depend on samples of earlier calls. If a model was loaded by `load`, it
        is kept, and only corrections of its scores are fitted.
        """

    def predict(self, rows: np.ndarray) -> np.ndarray:
        """Return float64 scores (number,) for feature rows (number, columns).

        An untrained model returns equal scores.
        """

    def save(self) -> bytes:
        """Serialise the trained model, in the format that `load` reads; empty if untrained."""

    def load(self, data: bytes) -> None:
        """Replace this model by a model saved with `save`.

        Raises:
            ValueError: if the bytes were saved by another kind of model or with another version of
                the features.
        """


def normalised_throughput(samples: Sequence[Sample]) -> np.ndarray:
    """Return each sample's throughput as a fraction of its task's highest throughput.

    The fastest candidate of a task has 1, and failed candidates have 0.
    """
    best: dict[str, float] = {}
    for sample in samples:
        if sample.run_seconds is not None:
            best[sample.task] = min(best.get(sample.task, sample.run_seconds), sample.run_seconds)
    return np.array(
        [best[s.task] / s.run_seconds if s.run_seconds else 0.0 for s in samples], dtype=np.float64
    )
