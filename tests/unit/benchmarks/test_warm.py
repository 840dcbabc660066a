"""A base model's picks of a table, and that a warm search starts from it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.search import DEFAULT, WARM, search
from benchmarks.search_tables import Table, workload_of
from benchmarks.warm import base_model, first_picks
from tilewright.compiler.mode import Mode
from tilewright.tuner.analysis.features import FeatureExtractor, target_facts
from tilewright.tuner.cost_model.protocol import Sample
from tilewright.tuner.cost_model.xgboost import XGBoostModel
from tilewright.tuner.options import TuningError
from tilewright.tuner.protocol.measurement import Measurement, Status
from tilewright.tuner.tasks import make_task

NAME = "matmul 97x131x65"


@pytest.fixture(scope="module")
def table() -> Table:
    """Every tenth schedule of a space, and the default; those with more vectors are faster."""
    task = make_task(workload_of(NAME), Mode(), name=NAME)
    schedules = list(dict.fromkeys([task.space.default(), *list(task.space.points)[::10]]))
    known = {
        schedule: Measurement(
            Status.OK,
            samples_seconds=(1.0 / (1 + schedule.integer("vectors")),),
            object_digest=schedule.digest,
        )
        for schedule in schedules
    }
    return Table(NAME, task, known)


def _base(table: Table) -> bytes:
    """A model that has seen the table."""
    task = table.task
    facts = target_facts(task.mode.target, task.mode.threads)
    features = FeatureExtractor(task.lower, task.space.default(), facts)
    schedules, rows = features.rows(list(table.known))
    samples = [
        Sample(f"task{number % 2}", row, table.known[schedule].run_seconds)
        for number, (schedule, row) in enumerate(zip(schedules, rows, strict=True))
    ]
    model = XGBoostModel(0)
    model.train_base(samples, samples)
    return model.save()


def test_a_model_that_knows_the_table_picks_its_best(table: Table) -> None:
    picks = first_picks(table, _base(table))
    default = table.known[table.task.space.default()].run_seconds
    assert default is not None
    assert picks.model == 0
    assert picks.default == pytest.approx(default / table.best_seconds - 1)
    assert picks.estimate >= 0 and picks.refused == 0


def test_what_the_builder_refuses_is_passed_over(table: Table) -> None:
    """The choice falls to the next that builds; a candidate that fails on the device is a bad
    choice."""
    best = min(table.known, key=lambda s: table.known[s].run_seconds or 0.0)
    refused = [s for s in table.known if s.integer("vectors") == best.integer("vectors")]
    base = _base(table)

    def failing(status: Status) -> Table:
        failures = dict.fromkeys(refused, Measurement(status))
        return replace(table, known={**table.known, **failures})

    picks = first_picks(failing(Status.SPILLS), base)
    assert picks.refused == len(refused) > 0
    assert picks.model == 0
    assert first_picks(failing(Status.WRONG_ANSWER), base).model == float("inf")


def test_only_a_warm_search_starts_from_the_base_model(table: Table) -> None:
    assert search(table, DEFAULT, 0, 4, b"no model") == search(table, DEFAULT, 0, 4)
    with pytest.raises(TuningError, match="not a saved XGBoost model"):
        search(table, WARM, 0, 4, b"no model")
    assert search(table, WARM, 0, 8, _base(table)).regrets[-1] == 0


def test_a_folder_without_measurements_is_refused(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.warm.families", lambda folder, target: {})
    monkeypatch.setattr("benchmarks.warm.read_samples", lambda folder, unconstrained: {})
    with pytest.raises(SystemExit, match="too few tasks"):
        base_model(tmp_path, [table])
