"""One suite for every cost model, and the additional requirements on the learned one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright.tuner.analysis.features import COLUMNS
from tilewright.tuner.cost_model import Sample, cost_models, make_cost_model
from tilewright.tuner.cost_model.protocol import normalised_throughput


def _samples(gemm: Any, step: int = 3, task: str = "gemm", scale: float = 1.0) -> list[Sample]:
    extractor = gemm.features()
    kept, rows = extractor.rows(list(gemm.space.points[::step]))
    return [Sample(task, row, scale * gemm.seconds(s)) for s, row in zip(kept, rows, strict=True)]


@pytest.mark.parametrize("name", sorted(cost_models()))
class TestCostModel:
    def test_an_untrained_model_has_no_favourites(self, name: str, gemm: Any) -> None:
        model = make_cost_model(name, 0)
        assert not model.trained
        scores = model.predict(np.stack([s.row for s in _samples(gemm)]))
        assert len(set(scores.tolist())) == 1
        assert model.predict(np.zeros((0, len(COLUMNS)), np.float32)).shape == (0,)

    def test_one_finite_score_a_row_and_the_same_from_the_same_seed(
        self, name: str, gemm: Any
    ) -> None:
        samples = _samples(gemm)
        rows = np.stack([s.row for s in samples])
        scores = []
        for _ in range(2):
            model = make_cost_model(name, 7)
            model.train(samples)
            scores.append(model.predict(rows))
        assert scores[0].shape == (len(rows),)
        assert np.isfinite(scores[0]).all()
        assert np.array_equal(scores[0], scores[1])

    def test_failures_and_nothing_can_be_learned_from(self, name: str, gemm: Any) -> None:
        model = make_cost_model(name, 0)
        model.train([])
        model.train([Sample("t", s.row, None) for s in _samples(gemm)])
        assert np.isfinite(model.predict(np.stack([s.row for s in _samples(gemm)]))).all()

    def test_a_saved_model_predicts_the_same(self, name: str, gemm: Any) -> None:
        samples = _samples(gemm)
        rows = np.stack([s.row for s in samples])
        model = make_cost_model(name, 0)
        model.train(samples)
        again = make_cost_model(name, 1)
        again.load(model.save())
        assert np.allclose(again.predict(rows), model.predict(rows))

    def test_damaged_bytes_are_refused(self, name: str) -> None:
        with pytest.raises(ValueError):
            make_cost_model(name, 0).load(b"{}garbage")


def test_throughput_is_normalised_within_each_task(gemm: Any) -> None:
    row = np.zeros(len(COLUMNS), np.float32)
    samples = [
        Sample("small", row, 1e-6),
        Sample("small", row, 4e-6),
        Sample("large", row, 1e-2),
        Sample("large", row, None),
    ]
    assert normalised_throughput(samples).tolist() == [1.0, 0.25, 1.0, 0.0]


def test_trees_rank_what_they_have_not_seen(gemm: Any) -> None:
    model = make_cost_model("xgboost", 0)
    train = _samples(gemm, step=4) + _samples(gemm, step=4, task="longer", scale=100.0)
    model.train(train)
    unseen = [s for n, s in enumerate(_samples(gemm, step=1)) if n % 4]
    scores = model.predict(np.stack([s.row for s in unseen]))
    times = np.array([s.run_seconds for s in unseen])
    best = times[np.argsort(-scores)[:10]]
    assert best.mean() < np.quantile(times, 0.15)


def test_another_feature_version_is_refused(gemm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_cost_model("xgboost", 0)
    model.train(_samples(gemm))
    data = model.save()
    monkeypatch.setattr("tilewright.tuner.cost_model.xgboost.FEATURE_VERSION", 999)
    with pytest.raises(ValueError, match="feature version"):
        make_cost_model("xgboost", 0).load(data)


def test_an_unknown_model_is_named() -> None:
    with pytest.raises(ValueError, match="oracle"):
        make_cost_model("oracle", 0)
