"""Saves the results that workers report for their leases, several in one transaction."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from tilewright.db.errors import NotFoundError, StaleLeaseError
from tilewright.db.stores.blame import blame_others, judge, readmit, workers
from tilewright.db.stores.measure_queue import leases, lock_leases, requests
from tilewright.db.stores.requests import Completion, Held, JsonObject, LeaseOutcome, RequestState

_LATE = (LeaseOutcome.LOST.value, LeaseOutcome.CANCELLED.value)
"""Outcomes of ended leases for which results are still received. In these cases the lease ended
without a report of its worker, which may not have noticed the end."""


@dataclass(frozen=True, slots=True)
class Report:
    """A worker's result for a lease.

    Attributes:
        lease_id, worker_id: the lease and the worker that holds it.
        result_key: the worker's name for the result. The same result may be reported twice.
        result: the result as JSON.
    """

    lease_id: str
    worker_id: str
    result_key: str
    result: JsonObject


def held(connection: sa.Connection, named: Iterable[tuple[str, str]]) -> Sequence[Held | None]:
    """Return the request for each (lease id, worker id) pair.

    The entry is None if the worker has no such lease.
    """
    wanted = list(named)
    query = (
        sa.select(
            leases.c.id, leases.c.worker_id, requests.c.id.label("request_id"), requests.c.payload
        )
        .join(requests, requests.c.id == leases.c.request_id)
        .where(leases.c.id.in_(sorted({lease_id for lease_id, _ in wanted})))
    )
    found = {
        (row.id, row.worker_id): Held(row.id, row.request_id, row.payload)
        for row in connection.execute(query)
    }
    return [found.get(name) for name in wanted]


def save(
    connection: sa.Connection, reports: Sequence[Report], now: float, most_failures: int
) -> Sequence[Completion | NotFoundError | StaleLeaseError]:
    """Save workers' results in the given order.

    Args:
        connection: in a writing transaction.
        reports: the results.
        now: the present time, in seconds since the epoch.
        most_failures: the number of failures within an hour after which a worker is put into
            quarantine.

    Returns:
        for each report, in order: the outcome, or the error for a report that cannot be saved.
    """
    batch = _Batch(connection, {report.lease_id for report in reports}, now)
    judged = [batch.judge(report) for report in reports]
    batch.write(connection, most_failures)
    return judged


class _Batch:
    """The leases of several results and their requests, locked and read once.

    `judge` updates these copies, so that a later result sees the effect of earlier ones. `write`
    saves all changes.
    """

    def __init__(self, connection: sa.Connection, names: Collection[str], now: float) -> None:
        of = sa.select(leases.c.request_id).where(leases.c.id.in_(sorted(names)))
        read = ("id", "serial", "state", "lease_id", "attempt", "only_worker")
        columns = (requests.c[name] for name in read)
        query = sa.select(*columns).where(requests.c.id.in_(of)).order_by(requests.c.serial)
        rows = connection.execute(query.with_for_update())
        self._requests = {row.id: dict(row._mapping) for row in rows}
        locked = lock_leases(connection, leases.c.id.in_(sorted(names)))
        self._leases = {row.id: dict(row._mapping) for row in locked}
        self._now = now
        self._accepted: list[Report] = []
        self._late: list[Report] = []

    def judge(self, report: Report) -> Completion | NotFoundError | StaleLeaseError:
        """Decide whether a result is accepted, a duplicate, late or invalid.

        A result is late if its lease was lost or cancelled, and its request is not queued again or
        is reserved for another worker. A result is invalid if its worker never had the lease, or
        the lease ended in another way; the error is then returned, not raised.
        """
        lease = self._leases.get(report.lease_id)
        request = self._requests.get(lease["request_id"]) if lease else None
        if lease is None or request is None or lease["worker_id"] != report.worker_id:
            return NotFoundError("lease", report.lease_id)
        if lease["result_key"] == report.result_key:
            late = lease["outcome"] == LeaseOutcome.LATE.value
            return Completion.LATE if late else Completion.DUPLICATE
        ended = lease["ended_at"] is not None
        if ended and lease["outcome"] not in _LATE:
            return over(report.lease_id, lease["request_id"], lease["outcome"])
        queued = request["state"] == RequestState.QUEUED.value
        free = queued and request["only_worker"] in (None, report.worker_id)
        lease["result_key"] = report.result_key
        if ended and not free:
            lease["outcome"] = LeaseOutcome.LATE.value
            self._late.append(report)
            return Completion.LATE
        lease |= {"outcome": LeaseOutcome.COMPLETED.value, "ended_at": self._now}
        request["state"] = RequestState.DONE.value
        self._accepted.append(report)
        return Completion.ACCEPTED

    def write(self, connection: sa.Connection, most_failures: int) -> None:
        """Save the accepted and the late results, and update quarantines of workers accordingly."""
        for report in self._late:
            # the worker is alive, so the lost lease is not its fault
            values = {"outcome": LeaseOutcome.LATE.value, "blame": None}
            update = sa.update(leases).where(leases.c.id == report.lease_id).values(values)
            late = {"result_key": report.result_key, "late_result": dict(report.result)}
            connection.execute(update.values(late))
        if self._accepted:
            connection.execute(_END_LEASE, [self._lease_values(each) for each in self._accepted])
            connection.execute(_END_REQUEST, [self._values(each) for each in self._accepted])
            self._judge_workers(connection, most_failures)

    def _lease_values(self, report: Report) -> dict[str, Any]:
        return {"lease": report.lease_id, "key": report.result_key, "now": self._now}

    def _values(self, report: Report) -> dict[str, Any]:
        serial = self._request(report)["serial"]
        whose = {"by": report.worker_id, "lease": report.lease_id}
        return {"request": serial, "outcome": dict(report.result), "now": self._now, **whose}

    def _request(self, report: Report) -> dict[str, Any]:
        return self._requests[self._leases[report.lease_id]["request_id"]]

    def _judge_workers(self, connection: sa.Connection, most_failures: int) -> None:
        """Update quarantines of workers after the accepted results.

        A worker in quarantine whose request succeeded is readmitted. The success also shows that
        any worker which failed the same request before was faulty. That worker is blamed, and
        quarantined if it now has `most_failures` recent failures.
        """
        names = sorted({report.worker_id for report in self._accepted})
        ill = sa.select(workers.c.id).where(
            workers.c.id.in_(names), workers.c.quarantined_at.is_not(None)
        )
        in_quarantine = set(connection.execute(ill).scalars())
        tried = [each for each in self._accepted if each.worker_id in in_quarantine]
        blamed: set[str] = set()
        for report in self._accepted:
            request = self._request(report)
            if request["attempt"] > 1:
                blamed |= blame_others(connection, request["id"], report.worker_id)
        # in a fixed order, so that two processes cannot deadlock
        for name in sorted(blamed | {report.worker_id for report in tried}):
            for report in tried:
                if report.worker_id == name:
                    taken_at = self._leases[report.lease_id]["taken_at"]
                    readmit(connection, name, taken_at, self._now)
            if name in blamed:
                judge(connection, name, self._now, most_failures)


def over(lease_id: str, request_id: str, outcome: str) -> StaleLeaseError:
    """Return the error for an operation on a lease that has ended with `outcome`."""
    return StaleLeaseError(f"lease '{lease_id}' of '{request_id}' has ended: {outcome}")


_END_LEASE = (
    sa.update(leases)
    .where(leases.c.id == sa.bindparam("lease"))
    .values(
        result_key=sa.bindparam("key"),
        outcome=LeaseOutcome.COMPLETED.value,
        blame=None,
        ended_at=sa.bindparam("now"),
    )
)

_END_REQUEST = (
    sa.update(requests)
    .where(requests.c.serial == sa.bindparam("request"))
    .values(
        state=RequestState.DONE.value,
        result=sa.bindparam("outcome"),
        worker_id=sa.bindparam("by"),
        lease_id=sa.bindparam("lease"),
        error=None,
        finished_at=sa.bindparam("now"),
    )
)
