"""Gradient-boosted trees over loop-nest features (Chen & Guestrin 2016; as AutoTVM and Ansor do).

What is predicted is comparable within a task only, so that one model serves all tasks and carries
what it learned of one workload to the next. A base model, trained on everything that was ever
measured for a target, is corrected by a run's own samples: boosting goes on from its predictions.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import numpy as np

from tuner.cost_model.metrics import evaluate_order
from tuner.cost_model.protocol import CostModel, Sample, normalised_throughput
from tuner.features import COLUMNS, FEATURE_VERSION

ROUNDS = 60
"""Rounds of a model that is trained from scratch, some twenty times in a run: 80 took 0.1 s of CPU
time at 100 samples and 0.3 s at 800."""

LOCAL_ROUNDS = 30
"""Trees that correct a base model."""

MOST_ROUNDS = 400
PATIENCE = 60
"""Rounds of a base model at most, and how many in a row may bring nothing on the held-out tasks."""

FOREST = 4
"""Trees of a round of a base model. Single ones, of different seeds, ordered between 0.838 and
0.853 of the pairs of 153 unseen tasks, a forest of four 0.858."""

MINIMUM_SAMPLES = 8
"""Below this a model knows less than the order in which knobs are listed."""


class Objective(StrEnum):
    """What training minimises."""

    THROUGHPUT = "throughput"
    """Squared error of the throughput over the task's best; the fast end weighs more."""
    NDCG = "ndcg"
    """Discounted cumulative gain of each task's order (LambdaMART, Burges 2010)."""
    PAIRWISE = "pairwise"
    """Pairs of a task in the wrong order (RankNet)."""


DEFAULT_OBJECTIVE = Objective.THROUGHPUT
"""What models are trained for, unless told otherwise. Of unseen tasks, corrected by eight samples
of their own, its first picks are at 0.963 of the best and it orders 0.834 of the pairs (ndcg 0.963
and 0.825, pairwise 0.945 and 0.820; without own samples 0.954 and 0.814, 0.948 and 0.786, 0.958
and 0.820; by chance 0.757 and 0.502): `benchmarks.cost_model`."""

_PARAMETERS: dict[Objective, dict[str, Any]] = {
    Objective.THROUGHPUT: {"objective": "reg:squarederror"},
    Objective.NDCG: {
        "objective": "rank:ndcg",
        "ndcg_exp_gain": False,
        "lambdarank_pair_method": "topk",
        "lambdarank_num_pair_per_sample": 8,
        # second derivatives of ranking losses are small: with 1 hardly a leaf would be made
        "min_child_weight": 0.01,
    },
    Objective.PAIRWISE: {
        "objective": "rank:pairwise",
        "ndcg_exp_gain": False,
        "lambdarank_pair_method": "mean",
        "lambdarank_num_pair_per_sample": 8,
        "min_child_weight": 0.01,
    },
}


class XGBoostModel:
    """Trees trained anew on every call: some tenths of a second for hundreds of rows.

    After `load`, `train` goes on from the loaded model and replaces only what it added before.
    """

    def __init__(
        self, seed: int, objective: Objective = DEFAULT_OBJECTIVE, threads: int = 1
    ) -> None:
        self._objective = objective
        self._common = {
            "eta": 0.1,
            "max_depth": 6,
            "min_child_weight": 1.0,
            "subsample": 0.8,
            # Anew for each split: most columns say nearly what others do, and none should take over
            "colsample_bynode": 0.3,
            "lambda": 1.0,
            "tree_method": "hist",
            "max_bin": 64,
            "nthread": threads,
            "seed": seed,
            "verbosity": 0,
        }
        self._base: Any = None
        self._booster: Any = None

    @property
    def trained(self) -> bool:
        return self._booster is not None

    @property
    def objective(self) -> Objective:
        """What it was trained for; that of the loaded model after `load`."""
        return self._objective

    @property
    def rounds(self) -> int:
        """Trees."""
        return int(self._booster.num_boosted_rounds()) if self._booster is not None else 0

    def train(self, samples: Sequence[Sample]) -> None:
        if len(samples) < MINIMUM_SAMPLES:
            return
        self._fit(samples, LOCAL_ROUNDS if self._base is not None else ROUNDS)

    def train_base(self, samples: Sequence[Sample], held_out: Sequence[Sample]) -> None:
        """Learn from scratch, with as many rounds as order the held-out samples best.

        What counts is pairs in order, whatever the objective: by the squared error training ended
        after 22 to 54 rounds, and 150 ordered more of them. The held-out samples must be of other
        tasks, or the number of rounds is that which remembers best. They are trained on in the
        end, too.
        """
        import xgboost

        self._base = None
        ordered = _by_task(held_out)
        try:
            evaluate_order(ordered, np.zeros(len(ordered)))
        except ValueError:  # nothing to judge by
            self._fit([*samples, *held_out], ROUNDS, FOREST)
            return

        def pairwise(predicted: np.ndarray, matrix: Any) -> tuple[str, float]:
            return "pairwise", evaluate_order(ordered, predicted).pairwise

        booster = xgboost.train(
            {**self._parameters(FOREST), "disable_default_eval_metric": True},
            self._matrix(samples),
            num_boost_round=MOST_ROUNDS,
            evals=[(self._matrix(ordered), "stopping")],
            custom_metric=pairwise,
            maximize=True,
            early_stopping_rounds=PATIENCE,
            verbose_eval=False,
        )
        self._fit([*samples, *held_out], int(booster.best_iteration) + 1, FOREST)

    def predict(self, rows: np.ndarray) -> np.ndarray:
        if self._booster is None or not len(rows):
            return np.zeros(len(rows), dtype=np.float64)
        return np.asarray(self._booster.inplace_predict(rows), dtype=np.float64)

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
        version = booster.attr("feature_version")
        if version != str(FEATURE_VERSION) or booster.num_features() != len(COLUMNS):
            raise ValueError(f"a model of feature version {version}, not {FEATURE_VERSION}")
        # An unknown objective is a ValueError, too
        self._objective = Objective(booster.attr("objective") or "")
        booster.set_param({"nthread": self._common["nthread"], "verbosity": 0})
        self._base = self._booster = booster

    def _fit(self, samples: Sequence[Sample], rounds: int, forest: int = 1) -> None:
        import xgboost

        self._booster = xgboost.train(
            self._parameters(forest),
            self._matrix(samples),
            num_boost_round=rounds,
            xgb_model=self._base,
        )
        self._booster.set_attr(feature_version=str(FEATURE_VERSION), objective=self._objective)

    def _parameters(self, forest: int) -> dict[str, Any]:
        return {
            **self._common,
            **_PARAMETERS[self._objective],
            "num_parallel_tree": forest,
        }

    def _matrix(self, samples: Sequence[Sample]) -> Any:
        """Rows with the target; for a ranking, those of a task side by side and numbered."""
        import xgboost

        ordered = _by_task(samples)
        scores = normalised_throughput(ordered)
        rows = np.stack([sample.row for sample in ordered])
        if self._objective is Objective.THROUGHPUT:
            # A slow candidate only has to be known as slow: the fast ones are to be ranked.
            return xgboost.DMatrix(rows, label=scores, weight=0.25 + scores)
        numbers = {task: n for n, task in enumerate(dict.fromkeys(s.task for s in ordered))}
        return xgboost.DMatrix(
            rows, label=scores, qid=np.array([numbers[sample.task] for sample in ordered])
        )


def _by_task(samples: Sequence[Sample]) -> list[Sample]:
    """In the order of the rows of their matrix."""
    return sorted(samples, key=lambda sample: sample.task)


def make_model(seed: int) -> CostModel:
    """A model with one thread: the other cores build and measure."""
    return XGBoostModel(seed)
