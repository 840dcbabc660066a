"""The cost model `none`, which gives all candidates the same score.

Throughout a run with this model, search strategies rank candidates by their estimated times or, if
the option `estimates` is off, choose at random. The model serves as a baseline for other models.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.tuner.cost_model.protocol import CostModel, Sample


class NoModel:
    """A cost model that ignores all samples and scores every candidate 0."""

    trained = False

    def train(self, samples: Sequence[Sample]) -> None:
        """Do nothing."""

    def predict(self, rows: np.ndarray) -> np.ndarray:
        return np.zeros(len(rows), dtype=np.float64)

    def save(self) -> bytes:
        return b""

    def load(self, data: bytes) -> None:
        if data:
            raise ValueError("cost model 'none' stores no model, so it cannot load one")


def make_model(seed: int) -> CostModel:
    """Create the cost model `none`. The seed has no effect."""
    return NoModel()
