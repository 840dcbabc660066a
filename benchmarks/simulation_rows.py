"""Compare lookups and leases in a full database with those in an empty one."""

from __future__ import annotations

import argparse
import hashlib
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import sqlalchemy as sa

from benchmarks.service_load import database_url
from benchmarks.service_load_server import TARGET, record_of_load, settings_of
from benchmarks.simulated_tuner import LIBRARY, batch
from benchmarks.simulated_workers import measured
from tilewright.db.engine import writing
from tilewright.db.models import ClaimRow, TrialRow
from tilewright.db.storage import Storage
from tilewright.db.stores.claim_rows import record_values, serve
from tilewright.db.stores.requests import NewRequest
from tilewright.db.stores.statements import table_of
from tilewright.service.storage import open_storage
from tilewright.tuner.protocol.measurement import RecordKey, Trial
from tilewright.tuner.protocol.version import PROTOCOL

FEW = 100
"""Number of records in the "empty" database, because the looked-up records must exist."""

TIMES = 100
"""Number of lookups or leases in a round."""


@dataclass(frozen=True, slots=True)
class RowsResult:
    """Milliseconds of an operation in the empty and the full database.

    `ratio` (full over empty) is the median over rounds.
    """

    database: str
    what: str
    empty_ms: float
    full_ms: float
    ratio: float


ROWS_HEADER = ["database", "what", "empty ms", "full ms", "ratio"]


def rows_cells(result: RowsResult) -> list[str]:
    """The cells of a result's row in the table, in the order of ROWS_HEADER."""
    times = f"{result.empty_ms:.2f}", f"{result.full_ms:.2f}", f"{result.ratio:.2f}"
    return [result.database, result.what, *times]


def compare_rows(database: str, asked: argparse.Namespace) -> Iterator[RowsResult]:
    """Time lookups and leases alternately in an empty and a full database.

    Yields a result for each of the two operations.
    """
    with ExitStack() as stack:
        kinds: dict[str, Mapping[str, Callable[[], float]]] = {}
        for name, trials, records in (
            ("empty", 0, FEW),
            ("full", asked.trials, asked.records),
        ):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="simulation-")))
            url = stack.enter_context(database_url(database, folder))
            storage = open_storage(settings_of(url, folder))
            stack.callback(storage.close)
            fill_rows(storage, trials, records)
            kinds[name] = {
                "lookup": _lookups(storage, records),
                "lease": _leases(storage),
            }
        for what in ("lookup", "lease"):
            for each in kinds.values():
                each[what]()  # the first is slower
            rounds = [(kinds["empty"][what](), kinds["full"][what]()) for _ in range(asked.rounds)]
            yield RowsResult(
                database,
                what,
                median(empty for empty, _ in rounds) * 1e3,
                median(full for _, full in rounds) * 1e3,
                median(full / empty for empty, full in rounds),
            )


def workload(number: int) -> str:
    """An artificial workload key made from a number."""
    return f"{number:064d}"


def fill_rows(storage: Storage, trials: int, records: int) -> None:
    """Fill a database with copies of one record and of one trial.

    There are ten trials per workload.
    """
    values = record_values(record_of_load(workload(0)), storage.clock())
    with writing(storage.engine) as connection:
        serve(connection, values)
        _copy(connection, table_of(ClaimRow), records, 1)
    if trials:
        key = RecordKey(workload(0), TARGET)
        made = record_of_load(workload(0))
        trial = Trial("0", key, made.schedule, made.measurement, job_id="j")
        storage.records.add_trials([trial])
        with writing(storage.engine) as connection:
            _copy(connection, table_of(TrialRow), trials, 10)
    with storage.engine.connect() as connection:
        connection.exec_driver_sql("ANALYZE")


def _copy(connection: sa.Connection, table: sa.Table, count: int, of_each: int) -> None:
    """Copy the only row of a table until it has `count` rows.

    Each copy has its own id, and `of_each` copies share a workload.
    """
    number = sa.literal_column("n", sa.Integer)
    digits = {"sqlite": "printf('%064d', n / {})", "postgresql": "lpad((n / {})::text, 64, '0')"}
    key: sa.ColumnElement[str] = sa.literal_column(digits[connection.dialect.name].format(of_each))
    numbers = sa.select(sa.literal(1).label("n")).cte("numbers", recursive=True)
    numbers = numbers.union_all(sa.select(numbers.c.n + 1).where(numbers.c.n < count - 1))
    if count < 2:
        return
    own = {"id": sa.cast(number, sa.Text), "workload_key": key, "subject": key}
    columns = [column for column in table.c if column.name != "serial"]
    query = sa.select(*(own.get(column.name, column) for column in columns))
    query = query.select_from(table.join(numbers, sa.true()))
    connection.execute(sa.insert(table).from_select([c.name for c in columns], query))


def _lookups(storage: Storage, records: int) -> Callable[[], float]:
    """A function that performs TIMES random record lookups and returns the seconds per lookup."""
    drawn = random.Random(0)

    def measure() -> float:
        keys = [RecordKey(workload(drawn.randrange(records)), TARGET) for _ in range(TIMES)]
        began = time.perf_counter()
        for key in keys:
            if storage.records.best_record(key) is None:
                raise RuntimeError(f"no record of '{key.workload_key}'")
        return (time.perf_counter() - began) / TIMES

    return measure


def _leases(storage: Storage) -> Callable[[], float]:
    """A function that performs TIMES measurement requests and returns the seconds of each.

    A request is submitted, claimed, reported and acknowledged.
    """
    library = storage.blobs.put(LIBRARY)
    worker = storage.workers.register("one", [TARGET], {}, protocol=PROTOCOL, owner=None)
    rounds = iter(range(1_000_000))

    def measure() -> float:
        name = hashlib.sha256(str(next(rounds)).encode()).hexdigest()[:32]
        began = time.perf_counter()
        for number in range(TIMES):
            request = batch(name, number, library)
            storage.leases.submit(
                [NewRequest(request.request_id, TARGET, request.to_json(), (library,))]
            )
            (lease,) = storage.leases.claim(worker.id, [TARGET], limit=1, lease_seconds=30.0)
            result = measured(request, worker.id)
            storage.leases.complete(lease.lease_id, worker.id, name, result.to_json())
            storage.leases.acknowledge([request.request_id])
        return (time.perf_counter() - began) / TIMES

    return measure
