"""A model without predictions: all candidates score the same, so strategies choose at random."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.tuner.cost_model.protocol import CostModel, Sample


class NoModel:
    """A cost model that is never trained: all candidates have equal scores."""

    trained = False

    def train(self, samples: Sequence[Sample]) -> None:
        """Ignore the samples."""

    def predict(self, rows: np.ndarray) -> np.ndarray:
        return np.zeros(len(rows), dtype=np.float64)

    def save(self) -> bytes:
        return b""

    def load(self, data: bytes) -> None:
        if data:
            raise ValueError("cost model 'none' stores no model, so it cannot load one")


def make_model(seed: int) -> CostModel:
    """Create the model. The seed has no effect."""
    return NoModel()
