"""Find the limits of the service by simulated workers, with a real database and API.

`python -m benchmarks.simulation` starts the API and a tuner as processes on SQLite and PostgreSQL
with 10,000 queued jobs, and connects increasing numbers of workers. Workers and builders are
simulated; claims, results, heartbeats, jobs and trials are real. With `--rows` it compares lookups
and leases in a database with 1,000,000 trials and 100,000 records with those in an empty database.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import repeat
from pathlib import Path

from benchmarks.processor_time import processor_seconds
from benchmarks.report import Origin, markdown_table, write_result
from benchmarks.service_load import database_url
from benchmarks.service_load_client import Answered, Wanted, measure, until_answered
from benchmarks.service_load_server import serve_bare, serve_service, serving, settings_of
from benchmarks.simulated_tuner import BATCH, BATCHES, queue_jobs, tuning
from benchmarks.simulated_workers import Crowd, CrowdOutcomes
from benchmarks.simulation_rows import ROWS_HEADER, RowsResult, compare_rows, rows_cells
from tilewright.db.stores.tokens import Scope
from tilewright.service.storage import open_storage

START_SECONDS = 180.0


@dataclass(frozen=True, slots=True)
class Level:
    """Results for one number of workers. Latencies are in seconds."""

    database: str
    replicas: int
    workers: int
    batch_seconds: float
    trials_per_second: float
    wanted_per_second: float  # what the workers would measure if they never waited
    claim_p50: float
    claim_p99: float
    result_p50: float
    result_p99: float
    heartbeat_p50: float
    heartbeat_p99: float
    heartbeats_per_second: float
    lost_leases: int
    failures: dict[str, int]
    bare_per_second: float  # rate of a bare FastAPI route on this machine just before
    processor_ms: dict[str, float]  # of a trial, by process


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command-line options of the simulation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[50, 200, 1000, 5000])
    parser.add_argument("--jobs", type=int, default=10_000, help="queued jobs")
    parser.add_argument("--seconds", type=float, default=15.0, help="that a crowd is looked at")
    parser.add_argument(
        "--warm", type=float, default=8.0, help="seconds from the first claim till then"
    )
    parser.add_argument(
        "--batch-seconds", type=float, default=1.4, help="that a worker measures a batch of 8"
    )
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--at-a-time", type=int, default=4, help="jobs of a tuner")
    parser.add_argument("--batches", type=int, default=BATCHES, help="of 8 trials, of a job")
    parser.add_argument(
        "--rows", action="store_true", help="compare a full database with an empty one"
    )
    parser.add_argument("--trials", type=int, default=1_000_000)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--databases", nargs="+", default=["sqlite", "postgresql"])
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/simulation"))
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line: simulate and write the report."""
    asked = options(arguments)
    levels: list[Level] = []
    rows: list[RowsResult] = []
    for database in asked.databases:
        if asked.rows:
            for result in compare_rows(database, asked):
                rows.append(result)
                print(*rows_cells(result), flush=True)
                write(asked.output, Origin.of(asked), levels, rows)
            continue
        for workers in asked.workers:
            for level in crowd(database, workers, asked):
                levels.append(level)
                print(*cells(level), level.failures, flush=True)
                write(asked.output, Origin.of(asked), levels, rows)
    return 0


def crowd(database: str, workers: int, asked: argparse.Namespace) -> Iterator[Level]:
    """Simulate this many workers on a new database, and yield the measured rates and latencies.

    `database` is the kind of database, and `asked` has the options of the benchmark.
    """
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="simulation-"))
        url = stack.enter_context(database_url(database, Path(folder)))
        storage = open_storage(settings_of(url, Path(folder)))
        secret, _ = storage.tokens.create("simulated", [Scope.ADMIN])
        queue_jobs(storage, asked.jobs)
        storage.close()
        ports = [
            stack.enter_context(serving(serve_service, url, folder)) for _ in range(asked.replicas)
        ]
        for port in ports:
            until_answered(
                Wanted(port, repeat(b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n")), START_SECONDS
            )
        crowds = [Crowd(port, secret, workers // len(ports), asked.batch_seconds) for port in ports]
        bare = bare_rate()
        seen = asyncio.run(_watch(crowds, stack, url, folder, asked))
        yield level_of(database, workers, seen, asked, bare)


def bare_rate() -> float:
    """Responses per second of a bare FastAPI route to 20 clients.

    This measures the machine's present speed.
    """
    with serving(serve_bare) as port:
        wanted = Wanted(port, repeat(b"GET /bare HTTP/1.1\r\nHost: h\r\n\r\n"))
        until_answered(wanted, START_SECONDS)
        return measure(wanted, 20, 1.0).rate


@dataclass(frozen=True, slots=True)
class Seen:
    """Observations in one period of a simulation.

    They are the statistics of the crowds, the length of the period, and the processor time by
    process.
    """

    outcomes: Sequence[CrowdOutcomes]
    seconds: float
    processor_seconds: Mapping[str, float]


async def _watch(
    crowds: Sequence[Crowd], stack: ExitStack, url: str, folder: str, asked: argparse.Namespace
) -> Seen:
    """Register all workers, start the tuner, and observe the crowds after a warm-up."""
    tasks = [task for each in crowds for task in await each.enter()]
    stack.enter_context(tuning(url, folder, asked.at_a_time, asked.batches))
    try:
        async with asyncio.timeout(START_SECONDS):
            while not any(each.outcomes.claims for each in crowds):  # the tuner starts
                await asyncio.sleep(0.1)
        await asyncio.sleep(asked.warm)
        for each in crowds:
            each.outcomes = CrowdOutcomes()
        before = processor_seconds(Path(folder))
        began = time.perf_counter()
        await asyncio.sleep(asked.seconds)
        seconds = time.perf_counter() - began
        after = processor_seconds(Path(folder))
        taken = {name: after[name] - before[name] for name in after}
        for task in tasks:
            if task.done():
                task.result()  # a bug of the simulation
        return Seen([each.outcomes for each in crowds], seconds, taken)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def level_of(
    database: str,
    workers: int,
    seen: Seen,
    asked: argparse.Namespace,
    bare: float,
) -> Level:
    """Compute the rates, latencies and processor times of a simulation from its statistics."""
    outcomes, seconds = seen.outcomes, seen.seconds
    trials = sum(each.trials for each in outcomes)

    def quantile(kind: str, share: float) -> float:
        found = [latency for each in outcomes for latency in getattr(each, kind)]
        return Answered(seconds, found, 0).quantile(share) if found else float("nan")

    failures: dict[str, int] = {}
    for each in outcomes:
        for name, count in each.failures.items():
            failures[name] = failures.get(name, 0) + count
    return Level(
        database,
        asked.replicas,
        workers,
        asked.batch_seconds,
        trials_per_second=trials / seconds,
        wanted_per_second=workers * BATCH / asked.batch_seconds if asked.batch_seconds else 0.0,
        claim_p50=quantile("claims", 0.5),
        claim_p99=quantile("claims", 0.99),
        result_p50=quantile("results", 0.5),
        result_p99=quantile("results", 0.99),
        heartbeat_p50=quantile("heartbeats", 0.5),
        heartbeat_p99=quantile("heartbeats", 0.99),
        heartbeats_per_second=sum(len(each.heartbeats) for each in outcomes) / seconds,
        lost_leases=sum(each.lost for each in outcomes),
        failures=failures,
        bare_per_second=bare,
        processor_ms={
            name: taken * 1e3 / max(1, trials)
            for name, taken in sorted(seen.processor_seconds.items())
            if taken > 0
        },
    )


HEADER = [
    "database",
    "replicas",
    "workers",
    "trials a second",
    "wanted",
    "claim p50 ms",
    "p99",
    "result p50 ms",
    "p99",
    "heartbeat p50 ms",
    "p99",
    "heartbeats a second",
    "leases lost",
    "failed",
    "bare route",
    "processor ms a trial",
]


def cells(level: Level) -> list[str]:
    """The cells of a level's row in the table, in the order of HEADER."""
    pairs = [
        (level.claim_p50, level.claim_p99),
        (level.result_p50, level.result_p99),
        (level.heartbeat_p50, level.heartbeat_p99),
    ]
    return [
        level.database,
        str(level.replicas),
        str(level.workers),
        f"{level.trials_per_second:.0f}",
        f"{level.wanted_per_second:.0f}",
        *(f"{seconds * 1e3:.0f}" for pair in pairs for seconds in pair),
        f"{level.heartbeats_per_second:.0f}",
        str(level.lost_leases),
        str(sum(level.failures.values())),
        f"{level.bare_per_second:.0f}",
        f"{sum(level.processor_ms.values()):.2f}: "
        + ", ".join(f"{name} {taken:.2f}" for name, taken in level.processor_ms.items()),
    ]


def write(
    output: Path, origin: Origin, levels: Sequence[Level], rows: Sequence[RowsResult]
) -> None:
    """Write the results as data and as a report in Markdown."""
    data = {
        "levels": [asdict(level) for level in levels],
        "rows": [asdict(each) for each in rows],
    }
    parts = [
        "# Simulation",
        origin.sentence(),
        "Workers and builders are faked, database, api, queue and stores are not. All of it, the\n"
        "workers too, shares the machine; `bare route` is what a FastAPI route that does nothing\n"
        "answers a second there just before, to set the others against. `wanted` is what the\n"
        "workers would measure if they never waited. `processor ms a trial` is what all processes\n"
        "together took of a processor for one: two that are ours alone bear 2000 over that many\n"
        "a second.",
    ]
    if levels:
        parts.append(markdown_table(HEADER, [cells(level) for level in levels], text=1))
    if rows:
        parts.append(markdown_table(ROWS_HEADER, [rows_cells(each) for each in rows], text=2))
    write_result(output, origin, data, "\n\n".join(parts) + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
