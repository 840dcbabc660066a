"""Gradient-boosted trees over loop-nest features (Chen & Guestrin 2016), as in AutoTVM and Ansor.

One model predicts for all tasks, so that the trials of one workload improve the predictions for
others. Scores are comparable only within a task. A base model is trained on all trials of a target.
A tuning run adds trees to it, fitted to the run's own samples.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

import numpy as np

from tilewright.tuner.analysis.features import COLUMNS, ESTIMATE_COLUMNS, FEATURE_VERSION
from tilewright.tuner.cost_model.metrics import evaluate_order
from tilewright.tuner.cost_model.pairs import AllPairs
from tilewright.tuner.cost_model.protocol import CostModel, Sample, normalised_throughput

ROUNDS = 60
"""Number of boosting rounds of a model that is trained from scratch.

A tuning run trains such a model about twenty times. With 80 rounds, this took 0.1 s of CPU time
with 100 samples, and 0.3 s with 800.
"""

LOCAL_ROUNDS = 30
"""Number of boosting rounds in which a tuning run corrects a base model."""

MOST_ROUNDS = 400
PATIENCE = 60
"""Number of boosting rounds without a gain on the stopping samples after which the training of a
base model ends. `MOST_ROUNDS` limits its rounds in all."""

FOREST = 4
"""Number of trees per boosting round of a base model. On 153 unseen tasks, single trees of
different seeds ordered 0.838 to 0.853 of the pairs correctly, and a forest of four trees 0.858."""

MINIMUM_SAMPLES = 8
"""Minimum number of samples for training. A model trained on fewer samples ranks candidates worse
than the values of a single knob do."""


class Objective(StrEnum):
    """The loss function that training minimises."""

    THROUGHPUT = "throughput"
    """Squared error of the throughput relative to the task's best throughput. Fast candidates have
    a larger weight."""
    NDCG = "ndcg"
    """Normalised discounted cumulative gain of each task's order (LambdaMART, Burges 2010)."""
    PAIRWISE = "pairwise"
    """Loss over sampled pairs of a task's candidates, for pairs in the wrong order (RankNet, as in
    XGBoost)."""
    ALL_PAIRS = "all-pairs"
    """Loss over all pairs of a task's candidates, for pairs in the wrong order. The order of a pair
    counts as more certain if its times differ more (`AllPairs`)."""


DEFAULT_OBJECTIVE = Objective.ALL_PAIRS
"""Default training objective.

On 633 tasks of families that were not in the training data, 150 rounds ordered 0.901 of the pairs
correctly. The first pick reached 0.970 of the best throughput. With `throughput`, the figures are
0.840 and 0.963.

With eight of a task's own samples as the only training data, the figures are 0.861 and 0.963; with
`throughput`, 0.767 and 0.949. Averages of the ranks of several objectives were not better.
"""

_PARAMETERS: dict[Objective, dict[str, Any]] = {
    Objective.THROUGHPUT: {"objective": "reg:squarederror"},
    Objective.NDCG: {
        "objective": "rank:ndcg",
        "ndcg_exp_gain": False,
        "lambdarank_pair_method": "topk",
        "lambdarank_num_pair_per_sample": 8,
        # Second derivatives of ranking losses are small: with 1, trees would have few leaves.
        "min_child_weight": 0.01,
    },
    Objective.PAIRWISE: {
        "objective": "rank:pairwise",
        "ndcg_exp_gain": False,
        "lambdarank_pair_method": "mean",
        "lambdarank_num_pair_per_sample": 8,
        "min_child_weight": 0.01,
    },
    # AllPairs gives the derivatives. XGBoost's objective applies to predictions: the raw scores.
    Objective.ALL_PAIRS: {"objective": "reg:squarederror", "base_score": 0.0},
}

_MONOTONE = tuple(-int(column in ESTIMATE_COLUMNS) for column in COLUMNS)
"""Monotonicity constraints of the feature columns, as XGBoost expects them.

Of two candidates that differ in only one component of the estimate, the one with more cycles is
never predicted to be faster. The measured times of a few tasks contradict this, and a run's own
samples must be able to override it. Therefore only base models are constrained.

The constraint applies only to the objective `all-pairs`, whose scores do not have an absolute scale
within a task. With `throughput`, it cost 2 of 100 pairs.
"""

_ESTIMATE = COLUMNS.index("estimate")
_TRUST = 2.0
"""Decrease of the initial score for `all-pairs` per doubling of the estimated time.

A candidate estimated twice as fast then is the faster one with a probability of 0.88. These initial
scores raised the fraction of pairs in the correct order from 0.893 to 0.901. On rows of an operator
that was not in the training data, they raised it from 0.960 to 0.985.
"""


class XGBoostModel:
    """A cost model of gradient-boosted trees; `CostModel` describes its methods.

    Each call of `train` builds new trees, which takes tenths of a second for hundreds of samples.
    After `load`, the loaded trees are kept, and only the trees added to them are rebuilt.
    `threads` is the number of threads for training and prediction.
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
            # Sampled for each split: many columns are correlated, and none should dominate.
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
        """The loss that training minimises; after `load`, the loss of the loaded model."""
        return self._objective

    @property
    def rounds(self) -> int:
        """Number of boosting rounds; 0 if untrained."""
        return int(self._booster.num_boosted_rounds()) if self._booster is not None else 0

    def train(self, samples: Sequence[Sample]) -> None:
        if len(samples) < MINIMUM_SAMPLES:
            return
        rounds = LOCAL_ROUNDS if self._base is not None else ROUNDS
        self._fit(samples, rounds, self._parameters())

    def train_base(self, samples: Sequence[Sample], stopping: Sequence[Sample]) -> None:
        """Train a base model from scratch, choosing the number of boosting rounds.

        First, a model is trained on `samples`, to find the number of rounds after which it best
        ranks the `stopping` samples. Then the final model is trained on both sets with this number.
        The two sets must not share tasks; otherwise too many rounds would be chosen.

        For every objective, the quality of a ranking is the fraction of pairs in the correct order.
        (In an experiment, stopping by the squared error ended after 22 to 54 rounds, but after 150
        rounds more pairs were in the correct order.)
        """
        import xgboost

        self._base = None
        ordered = _by_task(stopping)
        try:
            evaluate_order(ordered, np.zeros(len(ordered)))
        except ValueError:  # too few samples to judge by
            self._fit([*samples, *stopping], ROUNDS, self._base_parameters())
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
        self._fit([*samples, *stopping], int(booster.best_iteration) + 1, self._base_parameters())

    def predict(self, rows: np.ndarray) -> np.ndarray:
        if self._booster is None or not len(rows):
            return np.zeros(len(rows), dtype=np.float64)
        predicted = self._booster.inplace_predict(rows, base_margin=self._start(rows))
        return np.asarray(predicted, dtype=np.float64)

    def save(self) -> bytes:
        """Serialise the model in XGBoost's JSON format, which all XGBoost versions read.

        The result is empty if the model is untrained.
        """
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
        # An unknown objective raises ValueError, too.
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
        """Return the custom objective for training samples that are sorted by task.

        Return None if the objective is built into XGBoost.
        """
        if self._objective is not Objective.ALL_PAIRS:
            return None
        return AllPairs([sample.task for sample in ordered], normalised_throughput(ordered))

    def _start(self, rows: np.ndarray) -> np.ndarray | None:
        """Return the initial score of each row, (number,), to which the trees add corrections.

        With the objective ALL_PAIRS, the score follows from the candidate's estimated time. With
        other objectives, return None: XGBoost then chooses one initial score for all rows.
        """
        if self._objective is not Objective.ALL_PAIRS:
            return None
        return np.asarray(-_TRUST * rows[:, _ESTIMATE], dtype=np.float32)

    def _matrix(self, ordered: Sequence[Sample]) -> Any:
        """Convert samples that are sorted by task to an `xgboost.DMatrix` with labels.

        The label is the normalised throughput. XGBoost's ranking objectives get the task as
        query id.
        """
        import xgboost

        scores = normalised_throughput(ordered)
        rows = np.stack([sample.row for sample in ordered])
        if self._objective is Objective.ALL_PAIRS:
            return xgboost.DMatrix(rows, label=scores, base_margin=self._start(rows))
        if self._objective is Objective.THROUGHPUT:
            # Slow candidates weigh less: only the fast ones need an exact rank.
            return xgboost.DMatrix(rows, label=scores, weight=0.25 + scores)
        numbers = {task: n for n, task in enumerate(dict.fromkeys(s.task for s in ordered))}
        return xgboost.DMatrix(
            rows, label=scores, qid=np.array([numbers[sample.task] for sample in ordered])
        )


def _by_task(samples: Sequence[Sample]) -> list[Sample]:
    """Sort samples by task, so that the rows of a task are adjacent in the training matrix."""
    return sorted(samples, key=lambda sample: sample.task)


def make_model(seed: int) -> CostModel:
    """Create a model that uses one thread; the other cores build and measure candidates."""
    return XGBoostModel(seed)
