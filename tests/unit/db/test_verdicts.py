"""Verdicts: the newest on an identity, and how often what was served."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from db.stores.verdicts import VerdictStore


def test_the_newest_verdict_on_an_identity_holds(engine: sa.Engine, clock: Any) -> None:
    verdicts = VerdictStore(engine, clock)
    assert verdicts.find("a") is None and verdicts.counts() == {}
    verdicts.add("a", "job", "default", {"served": "default", "ratio": 1.01})
    verdicts.add("b", "job", "tuned", {"served": "tuned"})
    verdicts.add("a", "", "tuned", {"served": "tuned", "ratio": 0.9})
    assert verdicts.find("a") == {"served": "tuned", "ratio": 0.9}
    assert verdicts.counts() == {"default": 1, "tuned": 2}
