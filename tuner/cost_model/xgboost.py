"""Gradient-boosted trees over loop-nest features (Chen & Guestrin 2016; as AutoTVM and Ansor do).

The target is throughput normalised within the task, so that one model serves all tasks and carries
what it learned of one workload to the next.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from tuner.cost_model.protocol import CostModel, Sample, normalised_throughput
from tuner.features import COLUMNS, FEATURE_VERSION

ROUNDS = 80
"""Trees. More did not rank better at the few hundred samples that a job has."""

MINIMUM_SAMPLES = 8
"""Below this a model knows less than the order in which knobs are listed."""


class XGBoostModel:
    """Trees trained from scratch on every call: some tens of milliseconds for hundreds of rows."""

    def __init__(self, seed: int, threads: int = 1) -> None:
        self._parameters = {
            "objective": "reg:squarederror",
            "eta": 0.15,
            "max_depth": 6,
            "min_child_weight": 1.0,
            "subsample": 0.9,
            "colsample_bytree": 0.7,
            "lambda": 1.0,
            "tree_method": "hist",
            "max_bin": 64,
            "nthread": threads,
            "seed": seed,
            "verbosity": 0,
        }
        self._booster: Any = None

    @property
    def trained(self) -> bool:
        return self._booster is not None

    def train(self, samples: Sequence[Sample]) -> None:
        import xgboost

        if len(samples) < MINIMUM_SAMPLES:
            return
        scores = normalised_throughput(samples)
        rows = np.stack([sample.row for sample in samples])
        # A slow candidate only has to be known as slow: the fast ones are what is to be ranked.
        weights = 0.25 + scores
        data = xgboost.DMatrix(rows, label=scores, weight=weights, feature_names=list(COLUMNS))
        self._booster = xgboost.train(self._parameters, data, num_boost_round=ROUNDS)
        self._booster.set_attr(feature_version=str(FEATURE_VERSION))

    def predict(self, rows: np.ndarray) -> np.ndarray:
        if self._booster is None or not len(rows):
            return np.zeros(len(rows), dtype=np.float64)
        import xgboost

        data = xgboost.DMatrix(rows, feature_names=list(COLUMNS))
        return np.asarray(self._booster.predict(data), dtype=np.float64)

    def save(self) -> bytes:
        """XGBoost's own JSON, which any of its versions reads."""
        return bytes(self._booster.save_raw("json")) if self._booster is not None else b""

    def load(self, data: bytes) -> None:
        import xgboost

        try:
            json.loads(data)
            booster = xgboost.Booster()
            booster.load_model(bytearray(data))
        except (ValueError, xgboost.core.XGBoostError) as error:
            raise ValueError(f"not a saved XGBoost model: {error}") from error
        if booster.attr("feature_version") != str(FEATURE_VERSION):
            raise ValueError(
                f"a model of feature version {booster.attr('feature_version')}, "
                f"not {FEATURE_VERSION}"
            )
        booster.set_param({"nthread": self._parameters["nthread"], "verbosity": 0})
        self._booster = booster


def make_model(seed: int) -> CostModel:
    """A model with one thread: the other cores build and measure."""
    return XGBoostModel(seed)
