"""The audit log."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from tilewright.db.stores.audit import Action, AuditStore


def test_entries_come_back_newest_first_in_pages(engine: sa.Engine, clock: Any) -> None:
    audit = AuditStore(engine, clock)
    for number in range(5):
        clock.advance(1)
        action = Action.TOKEN_CREATED if number % 2 else Action.JOB_CANCELLED
        who = {"actor": f"t{number}", "actor_name": "ci", "origin": "10.0.0.1"}
        audit.add(action, f"s{number}", **who, detail={"number": number})
    first = audit.list(limit=2)
    assert [entry.subject for entry in first] == ["s4", "s3"]
    assert [entry.subject for entry in audit.list(after=first.next)] == ["s2", "s1", "s0"]
    assert [entry.subject for entry in audit.list(action="token.created")] == ["s3", "s1"]
    assert [entry.subject for entry in audit.list(actor="t2")] == ["s2"]
    (entry,) = audit.list(subject="s0")
    assert (entry.at, entry.actor_name, entry.origin) == (clock() - 4, "ci", "10.0.0.1")
    assert entry.detail == {"number": 0}
