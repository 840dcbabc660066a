"""Scalar code takes next to none of any model's time, and the check detects its share."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import scalar_share
from benchmarks.collection_quantised import QUANTISED
from tests.integration.small_models import SMALL
from tilewright.compiler.mode import Mode
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.schedule.select import untuned_schedule

MODELS = Path(__file__).parents[2] / "models"
EXPORTED = sorted(path.name for path in MODELS.glob("*.onnx"))
BUILT = {**SMALL, **QUANTISED}


@pytest.mark.parametrize("name", [*EXPORTED, *BUILT])
def test_scalar_code_takes_little_of_a_model(name: str) -> None:
    model = BUILT[name]().SerializeToString() if name in BUILT else MODELS / name
    found = scalar_share.scalar_share(model)
    assert found.share <= scalar_share.MOST, found.text()


def test_scalar_code_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """One element at a time, convolutions take most of their model."""

    def scalar_convolutions(workload: Workload, mode: Mode) -> Schedule:
        if "conv" in workload.operators:
            return Schedule.of("scalar")
        return untuned_schedule(workload, mode)

    monkeypatch.setattr(scalar_share, "untuned_schedule", scalar_convolutions)
    found = scalar_share.scalar_share(SMALL["convolutions"]().SerializeToString())
    assert found.share > 0.8
    assert found.share == pytest.approx(sum(found.workloads.values()))
    assert "conv" in found.text()


def test_code_that_takes_no_time_has_no_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scalar_share, "_estimated", lambda *_: (scalar_share.SCALAR, 0.0))
    found = scalar_share.scalar_share(SMALL["convolutions"]().SerializeToString())
    assert found.workloads and found.share == 0
