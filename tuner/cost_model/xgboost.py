"""Gradient-boosted trees over loop-nest features (Chen & Guestrin 2016; as AutoTVM and Ansor do).

What is predicted is comparable within a task only, so that one model serves all tasks and carries
what it learned of one workload to the next. A base model, trained on everything that was ever
measured for a target, is corrected by a run's own samples: boosting goes on from its predictions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

import numpy as np

from tuner.analysis.features import COLUMNS, ESTIMATE_COLUMNS, FEATURE_VERSION
from tuner.cost_model.metrics import evaluate_order
from tuner.cost_model.pairs import AllPairs
from tuner.cost_model.protocol import CostModel, Sample, normalised_throughput

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
    """Some pairs of a task in the wrong order (RankNet, as XGBoost does it)."""
    ALL_PAIRS = "all-pairs"
    """All pairs of a task, each as sure as times are (`AllPairs`)."""


DEFAULT_OBJECTIVE = Objective.ALL_PAIRS
"""What models are trained for, unless told otherwise. With families left out, on 633 tasks and with
150 rounds, it orders 0.901 of the pairs and its first pick is at 0.970 of the best, `throughput`
0.840 and 0.963; of a task's own samples alone, eight, 0.861 and 0.963, `throughput` 0.767 and
0.949. Averages of the ranks of several objectives were no better."""

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
    # The derivatives come from AllPairs; this is for predictions, which are its scores as they are.
    Objective.ALL_PAIRS: {"objective": "reg:squarederror", "base_score": 0.0},
}

_MONOTONE = tuple(-int(column in ESTIMATE_COLUMNS) for column in COLUMNS)
"""Of two candidates that differ in a part of the estimate alone, the one with more cycles is never
the faster. Where times say otherwise it is so for a few tasks, and their own samples may say so:
only base models are held to it, and of those only `all-pairs`, whose scores do not say how far the
candidates of a task are from its best (`throughput` lost 2 of 100 pairs by it)."""

_ESTIMATE = COLUMNS.index("estimate")
_TRUST = 2.0
"""Scores for `all-pairs` start from the estimate, this much for each doubling of its time: a
candidate that it finds twice as fast is the faster one with a probability of 0.88. Pairs in order
0.901 for 0.893, and of rows of an operator that was left out 0.985 for 0.960."""


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
        rounds = LOCAL_ROUNDS if self._base is not None else ROUNDS
        self._fit(samples, rounds, self._parameters())

    def train_base(self, samples: Sequence[Sample], held_out: Sequence[Sample]) -> None:
        """Learn from scratch, with as many rounds as order the held-out samples best.

        Rounds are judged by the pairs that they order, whatever the objective: by the squared error
        training ended after 22 to 54 rounds, and 150 ordered more pairs. The held-out samples must
        be of other tasks: else the rounds that remember best would be chosen. In the end they are
        trained on, too.
        """
        import xgboost

        self._base = None
        ordered = _by_task(held_out)
        try:
            evaluate_order(ordered, np.zeros(len(ordered)))
        except ValueError:  # nothing to judge by
            self._fit([*samples, *held_out], ROUNDS, self._base_parameters())
            return

        def pairwise(predicted: np.ndarray, matrix: Any) -> tuple[str, float]:
            return "pairwise", evaluate_order(ordered, predicted).pairwise

        learned = _by_task(samples)
        booster = xgboost.train(
            {**self._base_parameters(), "disable_default_eval_metric": True},
            self._matrix(learned),
            num_boost_round=MOST_ROUNDS,
            evals=[(self._matrix(ordered), "stopping")],
            obj=self._derivatives(learned),
            custom_metric=pairwise,
            maximize=True,
            early_stopping_rounds=PATIENCE,
            verbose_eval=False,
        )
        self._fit([*samples, *held_out], int(booster.best_iteration) + 1, self._base_parameters())

    def predict(self, rows: np.ndarray) -> np.ndarray:
        if self._booster is None or not len(rows):
            return np.zeros(len(rows), dtype=np.float64)
        predicted = self._booster.inplace_predict(rows, base_margin=self._start(rows))
        return np.asarray(predicted, dtype=np.float64)

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

    def _fit(self, samples: Sequence[Sample], rounds: int, parameters: Mapping[str, Any]) -> None:
        import xgboost

        ordered = _by_task(samples)
        self._booster = xgboost.train(
            dict(parameters),
            self._matrix(ordered),
            num_boost_round=rounds,
            obj=self._derivatives(ordered),
            xgb_model=self._base,
        )
        self._booster.set_attr(feature_version=str(FEATURE_VERSION), objective=self._objective)

    def _parameters(self) -> dict[str, Any]:
        return {**self._common, **_PARAMETERS[self._objective]}

    def _base_parameters(self) -> dict[str, Any]:
        found = {**self._parameters(), "num_parallel_tree": FOREST}
        if self._objective is Objective.ALL_PAIRS:
            found["monotone_constraints"] = _MONOTONE
        return found

    def _derivatives(self, ordered: Sequence[Sample]) -> AllPairs | None:
        """Those of the samples in the order of `_by_task`; None where XGBoost has them."""
        if self._objective is not Objective.ALL_PAIRS:
            return None
        return AllPairs([sample.task for sample in ordered], normalised_throughput(ordered))

    def _start(self, rows: np.ndarray) -> np.ndarray | None:
        """Scores (number,) that boosting starts from; None for those that it takes from labels."""
        if self._objective is not Objective.ALL_PAIRS:
            return None
        return np.asarray(-_TRUST * rows[:, _ESTIMATE], dtype=np.float32)

    def _matrix(self, ordered: Sequence[Sample]) -> Any:
        """Rows in the order of `_by_task` with the target; for a ranking, tasks are numbered."""
        import xgboost

        scores = normalised_throughput(ordered)
        rows = np.stack([sample.row for sample in ordered])
        if self._objective is Objective.ALL_PAIRS:
            return xgboost.DMatrix(rows, label=scores, base_margin=self._start(rows))
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
