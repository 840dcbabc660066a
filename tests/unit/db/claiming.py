"""Tuners that take jobs."""

from __future__ import annotations

from typing import Any

from tilewright.db.stores.jobs import JobClaim, JobStore


def take(jobs: JobStore, tuner: str = "tuner-1", **options: Any) -> JobClaim:
    taken = jobs.claim(tuner, 30.0, **options)
    assert taken is not None
    return taken[0]
