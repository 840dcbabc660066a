"""Import of tuning records from other services, many at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from tilewright.db.changes import invalidate_lookups
from tilewright.db.review_state import Attestation, ReviewState
from tilewright.db.stores.claim_rows import (
    claims,
    key_of,
    record_of,
    record_values,
    served_rows,
)
from tilewright.db.stores.statements import chunks
from tilewright.tuner.protocol.measurement import Measurement, RecordKey, TuningRecord

Foreign = tuple[TuningRecord, Measurement | None]
"""A tuning record to import, and the second measurement of its schedule, or None without one."""


def adopt(
    connection: sa.Connection, new: Sequence[Foreign], now: float
) -> Sequence[ReviewState | None]:
    """Store imported records, and serve each unless a faster record of its key exists.

    The served record of a key is the one that lookups return. If a workload has dynamic dimensions,
    only records that were measured at the same sizes are compared. An imported record that was
    measured at other sizes than the served record does not replace it. All records are imported by
    a few SQL statements.

    Args:
        connection: in a transaction that `claim_rows.changing` opened.
        new: the records, each with the second measurement of its schedule if there was one.
        now: the present time, in seconds since the epoch.

    Return the new state of each record, in order; None for a record that was already stored, which
    does not change.
    """
    rows = [_values(record, confirmation, now) for record, confirmation in new]
    known = _known(connection, [row["id"] for row in rows])
    fastest: dict[RecordKey, Measurement] = {}
    before: dict[RecordKey, list[int]] = {}
    for row in served_rows(connection, [record.key for record, _ in new]):
        key = key_of(row)
        fastest[key] = record_of(row).measurement  # of the newest: it comes last
        before.setdefault(key, []).append(row.serial)
    states: list[ReviewState | None] = []
    added: list[dict[str, Any]] = []
    served: dict[RecordKey, dict[str, Any]] = {}
    for (record, _), values in zip(new, rows, strict=True):
        if values["id"] in known:
            states.append(None)
            continue
        known.add(values["id"])
        added.append(values)
        if record.key in fastest and not _beats(record.measurement, fastest[record.key]):
            values["state"] = ReviewState.SUPERSEDED.value
        else:
            if record.key in served:
                served[record.key]["state"] = ReviewState.SUPERSEDED.value
            served[record.key], fastest[record.key] = values, record.measurement
        states.append(ReviewState(values["state"]))
    for some in chunks([serial for key in served for serial in before.get(key, ())]):
        update = sa.update(claims).where(claims.c.serial.in_(some))
        connection.execute(update.values(state=ReviewState.SUPERSEDED.value))
    if added:
        connection.execute(sa.insert(claims), added)
    invalidate_lookups(connection, {key.workload_key for key in served})
    return states


def _beats(new: Measurement, old: Measurement) -> bool:
    if new.distribution != old.distribution or new.run_seconds is None:
        return False
    return old.run_seconds is None or new.run_seconds < old.run_seconds


def _values(record: TuningRecord, confirmation: Measurement | None, now: float) -> dict[str, Any]:
    return {
        **record_values(record, now),
        "review": None if confirmation is None else confirmation.to_json(),
        "attestation": Attestation.IMPORTED.value,
    }


def _known(connection: sa.Connection, names: Sequence[str]) -> set[str]:
    found: set[str] = set()
    for some in chunks(names):
        query = sa.select(claims.c.id).where(claims.c.id.in_(some))
        found.update(connection.execute(query).scalars())
    return found
