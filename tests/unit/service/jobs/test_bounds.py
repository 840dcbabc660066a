"""The least time that a device allows each task, if there is time to ask for it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.service.jobs.test_cost_models import product
from tilewright.compiler.mode import Mode
from tilewright.compiler.targets.target import known_targets
from tilewright.service.jobs.device.device import DeviceError
from tilewright.service.jobs.report.bounds import LEAST_BUDGET_SECONDS, bounds_within
from tilewright.tuner.tasks import make_task


class Silent:
    """A device without an answer; it counts the requests."""

    asked = 0

    def runs(self, target: object) -> bool:
        return True

    def speeds(self, target: object) -> Any:
        self.asked += 1
        raise DeviceError("busy")


@pytest.mark.parametrize("seconds", [None, LEAST_BUDGET_SECONDS, 1.0])
def test_a_small_budget_does_not_measure_the_machine(seconds: float | None) -> None:
    device: Any = Silent()
    tasks = [make_task(product(8), Mode(known_targets()["x86-64-v3"]))]
    bounds = bounds_within(seconds, tasks, device)
    if seconds == 1.0:
        assert bounds is None
    else:
        assert bounds is not None and list(bounds()) == [0.0] and device.asked == 1
