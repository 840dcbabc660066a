"""Why a job has tuned nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tilewright.service.jobs.evidence.review import Reviewed
from tilewright.service.jobs.pipeline.incomplete import untuned
from tilewright.service.options import JobBudget
from tilewright.tuner.events import Ended, Screened
from tilewright.tuner.protocol.measurement import Status


def reason(ended: Ended, screened: int, compared: int) -> str:
    """The message about a job whose candidates all worked, and which has no record."""
    status = SimpleNamespace(key="key", from_store=False)
    finished = SimpleNamespace(
        tasks=(status,), ended=ended, screened=Screened(screened, 7.0), reason=""
    )
    outcome: Any = SimpleNamespace(
        finished=finished, confirmed=Reviewed(), selected=None, verification=None
    )
    counts = {Status.OK: screened + compared}
    records = SimpleNamespace(best_records=lambda keys: {}, count_trials=lambda job: counts)
    storage: Any = SimpleNamespace(records=records)
    found = untuned(outcome, JobBudget(100, 8.0), storage, "job")
    assert found is not None and not found.is_failure
    return found.reason


def test_comparisons_without_time_are_told_from_lost_ones() -> None:
    assert reason(Ended.TIME, 0, 0) == "no trial fitted into 8 s"
    assert reason(Ended.TIME, 4, 0) == "the comparison of 4 trials did not fit into 8 s"
    lost = "trials none passed the comparison with the default"
    assert reason(Ended.TIME, 4, 2) == f"of 6 {lost}"
    assert reason(Ended.GAIN, 4, 0) == f"of 4 {lost}"
