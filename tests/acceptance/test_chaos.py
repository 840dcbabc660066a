"""A short chaos on SQLite: a few kills, requests lost and doubled, a slow clock, three liars.

`python -m benchmarks.chaos` is the long one.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.chaos import Plan, prepared
from benchmarks.faulty_proxy import Fault
from benchmarks.liars import Lie

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(600)]


def test_what_must_hold_holds(tmp_path: Path) -> None:
    plan = Plan(kills=8, database="sqlite", seed=1, open_jobs=2, pause_seconds=5.0, end_seconds=240)
    with prepared(plan, tmp_path) as chaos:
        outcome = chaos.play()
    found = outcome.found
    assert not found.wrong
    assert outcome.kills.total() == 8
    assert found.jobs.total() >= 2
    assert found.measured > 0 and found.trials > 0, "the honest workers measured nothing"
    assert sum(n for fault, n in outcome.faults.items() if fault != Fault.NONE) > 0
    assert outcome.statuses[Lie.DIGESTS].keys() <= {422, 404, 409}, "a wrong digest was taken"
    assert outcome.statuses[Lie.TIMES] and outcome.statuses[Lie.LEASES], "a liar was not heard"
