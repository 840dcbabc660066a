"""Chaos test: the service keeps its guarantees despite killed processes, lost requests, wrong
clocks and lying workers.

`python -m benchmarks.chaos` starts PostgreSQL, two replicas of the service (the clock of one is 60
s slow), a tuner, two honest workers behind a proxy that loses, delays and duplicates requests, and
three workers that report false results. Under a load of small jobs it kills processes in a random
order, which is determined by a seed. At the end every job must have reached a final state, every
finished measurement must be counted exactly once, and the service must not serve any false report.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from benchmarks.chaos_checks import Found, check
from benchmarks.faulty_proxy import Faults, FaultyProxy
from benchmarks.fleet import Fleet, answers, free_port, until
from benchmarks.liars import Liar, Lie
from benchmarks.onnx_writer import OnnxWriter
from benchmarks.postgres import Postgres
from benchmarks.report import Origin, markdown_table, write_result
from tilewright.db.engine import reading
from tilewright.db.errors import DatabaseError
from tilewright.db.models import LeaseRow
from tilewright.db.stores.tokens import Scope
from tilewright.service.api.schemas.jobs import JobRequest
from tilewright.service.client import Client, ClientError
from tilewright.service.embedded import owner_token
from tilewright.service.settings import Settings
from tilewright.service.storage import open_storage

WRONG_BY_SECONDS = -60.0
"""Seconds that are added to the clock of the second replica."""

WORKERS = ("worker-a", "worker-b")
WEIGHTS = {"web": 2, "web-slow": 2, "tuner": 3, "worker-a": 3, "worker-b": 3, "postgresql": 1}
"""Relative frequency with which each process is killed."""

MOST_JOBS = 100_000

SETTINGS = {
    "TILEWRIGHT_LEASE_SECONDS": "8",
    "TILEWRIGHT_HEARTBEAT_SECONDS": "1",
    "TILEWRIGHT_JOB_LEASE_SECONDS": "4",
    "TILEWRIGHT_LONG_POLL_SECONDS": "2",
    "TILEWRIGHT_WORKER_LOST_SECONDS": "20",
    "TILEWRIGHT_HOUSEKEEPING_SECONDS": "1",
    # nothing goes before it is looked at in the end
    "TILEWRIGHT_KEEP_FINISHED_SECONDS": "86400",
    "TILEWRIGHT_BUILDERS": "1",
}


_HEARD_SECONDS = 60.0
"""Longest time in seconds to wait until every liar has received an answer."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Parameters of a chaos run.

    At most `kills` processes are killed, none later than `seconds` after the start. The pause
    between two kills is random, at most `pause_seconds`. `open_jobs` jobs of `trials` trials each
    are kept open all the time. After the last kill the jobs have `end_seconds` to end.
    """

    kills: int
    database: str = "postgresql"
    seed: int = 0
    open_jobs: int = 3
    trials: int = 12
    pause_seconds: float = 6.0
    seconds: float = 1500.0
    end_seconds: float = 600.0


@dataclass(slots=True)
class Outcome:
    """Events that a chaos run counted, and the result of its final checks.

    `kills`, `ended` (unexpected exits) and `faults` count by process or by kind of fault.
    `statuses` counts, for each kind of lie, the HTTP statuses of the service's answers.
    """

    kills: Counter[str] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    statuses: dict[str, Counter[int]] = field(default_factory=dict)
    seconds: float = 0.0
    found: Found = field(default_factory=Found)

    def to_json(self) -> dict[str, Any]:
        found = {each.name: getattr(self.found, each.name) for each in fields(self.found)}
        mine = {each.name: getattr(self, each.name) for each in fields(self)}
        return {**mine, "found": found}


class Chaos:
    """One execution of a plan: its service, database and workers, with all files in one folder."""

    def __init__(self, plan: Plan, folder: Path, stack: ExitStack) -> None:
        self.plan = plan
        self.random = random.Random(plan.seed)
        self.outcome = Outcome()
        self._postgres: Postgres | None = None
        url = f"sqlite:///{folder}/data/tilewright.db"
        if plan.database == "postgresql":
            self._postgres = stack.enter_context(Postgres(folder / "postgresql"))
            url = self._postgres.url
        settings = Settings(data_folder=folder / "data", database_url=url)
        settings.data_folder.mkdir(mode=0o700, exist_ok=True)
        self.storage = open_storage(settings)
        stack.callback(self.storage.close)
        owner = owner_token(settings, self.storage)
        ports = {"web": free_port(), "web-slow": free_port()}
        proxy = FaultyProxy(free_port(), list(ports.values()), Faults(), plan.seed)
        self.proxy = stack.enter_context(proxy)
        serve = ["tilewright.service.cli", "server", "run", "--no-tuner", "--no-worker", "--port"]
        commands = {
            "web": ["-m", *serve, str(ports["web"])],
            "web-slow": [
                *("-m", "benchmarks.shifted_clock", str(WRONG_BY_SECONDS)),
                *(*serve, str(ports["web-slow"])),
            ],
            "tuner": ["-m", "tilewright.service.cli", "server", "tuner"],
            **{name: self._worker(name, folder) for name in WORKERS},
        }
        environment = {
            **SETTINGS,
            "TILEWRIGHT_DATA_FOLDER": str(settings.data_folder),
            "TILEWRIGHT_DATABASE_URL": url,
        }
        self.fleet = Fleet(folder, commands, environment)
        stack.callback(self.fleet.stop)
        self.url = f"http://127.0.0.1:{ports['web']}"
        self.client = stack.enter_context(Client(self.url, owner, timeout_seconds=20.0))
        self.liars = [
            Liar(kind, self.url, self._token(kind.value), self._live_leases, plan.seed + number)
            for number, kind in enumerate(Lie)
        ]
        self._spools = [folder / name for name in WORKERS]
        self._models = folder
        self._wanted = 0
        self._deck: list[str] = []

    def _token(self, name: str) -> str:
        return self.storage.tokens.create(name, [Scope.MEASURE])[0]

    def _worker(self, name: str, folder: Path) -> list[str]:
        file = folder / f"{name}.token"
        file.touch(mode=0o600)
        file.write_text(self._token(name))
        return [
            *("-m", "tilewright.service.worker", "--server", self.proxy.url, "--name", name),
            *("--token-file", str(file), "--spool", str(folder / name)),
        ]

    def _live_leases(self) -> list[tuple[str, str]]:
        """Return (lease id, worker id) for all live leases, read from the database.

        A lease assigns a measurement request to a worker. Liars (workers that report false results)
        use the ids to attack other workers' leases. The API would not reveal the ids. The list is
        empty while the database is down.
        """
        query = sa.select(LeaseRow.id, LeaseRow.worker_id).where(LeaseRow.ended_at.is_(None))
        try:
            with reading(self.storage.engine) as connection:
                return [(row.id, row.worker_id) for row in connection.execute(query)]
        except DatabaseError:
            return []

    def play(self) -> Outcome:
        """Run the plan, and return what happened.

        All processes are started, and some of them killed. When all jobs have ended, the database
        is checked.
        """
        began = time.monotonic()
        self.fleet.start("web")
        until(lambda: answers(self.url), "the service answers")
        self.fleet.start_missing()
        until(self._workers_came, "the honest workers")
        for liar in self.liars:
            liar.start()
        try:
            self._kill_all(began)
            self._hear_liars()
            self._settle()
        finally:
            for liar in self.liars:
                liar.stop()
        self.fleet.stop()
        self.outcome.faults = Counter({k.value: n for k, n in self.proxy.seen.items()})
        self.outcome.statuses = {liar.kind.value: liar.statuses for liar in self.liars}
        self.outcome.found = self._look()
        self.outcome.seconds = time.monotonic() - began
        return self.outcome

    def _workers_came(self) -> bool:
        return {worker.name for worker in self.storage.workers.list()} >= set(WORKERS)

    def _kill_all(self, began: float) -> None:
        while self.outcome.kills.total() < self.plan.kills:
            if time.monotonic() - began > self.plan.seconds:
                return
            self._feed()
            self._pause(self.plan.pause_seconds)
            self._feed()
            self._kill(self._victim())

    def _victim(self) -> str:
        """Choose the next process to kill.

        Names come from a shuffled deck, which contains each name as often as its weight in WEIGHTS.
        Tuners are spared while an open job has lost more than three of them, because a job may fail
        after five lost tuners.
        """
        if not self._deck:
            names = [name for name in WEIGHTS if name != "postgresql" or self._postgres is not None]
            self._deck = [name for name in names for _ in range(WEIGHTS[name])]
            self.random.shuffle(self._deck)
        # a job that takes five tuners in a row with it fails, and rightly
        spared = not self._rested() and any(name != "tuner" for name in self._deck)
        place = next(n for n, name in enumerate(self._deck) if not (spared and name == "tuner"))
        return self._deck.pop(place)

    def _rested(self) -> bool:
        return all(self.storage.jobs.get(job).attempts <= 3 for job in self._open_jobs())

    def _kill(self, victim: str) -> None:
        self.outcome.ended.update(self.fleet.start_missing())
        if victim == "postgresql":
            assert self._postgres is not None
            self._postgres.kill()
            self._pause(1.0)
            self._postgres.start()
        else:
            self.fleet.kill(victim)
            self._pause(1.0)
        self.outcome.ended.update(self.fleet.start_missing())
        self.outcome.kills[victim] += 1
        print(f"{self.outcome.kills.total()}: {victim}", flush=True)

    def _pause(self, most_seconds: float) -> None:
        time.sleep(self.random.uniform(0.1, 1.0) * most_seconds)

    def _open_jobs(self) -> list[str]:
        """Identifiers of all unfinished jobs, read from the database.

        The client's own list would be incomplete, because the answer to a submission may have been
        lost.
        """
        return [job.id for job in self.storage.jobs.list(limit=MOST_JOBS) if not job.state.final]

    def _feed(self) -> None:
        """Submit jobs until `open_jobs` of the plan are open, or until a request fails.

        A failed submission is repeated at the next call, with the same idempotency key.
        """
        while len(self._open_jobs()) < self.plan.open_jobs:
            model = self._models / f"model-{self._wanted}.onnx"
            if not model.exists():
                model.write_bytes(small_model(self._wanted))
            try:
                digest = self.client.upload(model).digest
                request = JobRequest(model=digest, trials=self.plan.trials, stop_gain=0.0)
                self.client.submit(request, f"chaos-{self.plan.seed}-{self._wanted}")
            except ClientError:
                return  # tried again after the next kill, by the same name
            self._wanted += 1

    def _hear_liars(self) -> None:
        """Submit jobs until each liar (a worker that reports false results) has received an answer.

        The wait ends after 60 s in any case. On a slow machine, the honest workers may have done
        all the work before the liars sent a report.
        """
        ends = time.monotonic() + _HEARD_SECONDS
        while time.monotonic() < ends and not all(liar.statuses for liar in self.liars):
            self.outcome.ended.update(self.fleet.start_missing())
            self._feed()
            self._pause(1.0)

    def _settle(self) -> None:
        """Wait until every job has ended and every worker's results have reached the service.

        The wait ends after `end_seconds` of the plan in any case.
        """
        ends = time.monotonic() + self.plan.end_seconds
        while time.monotonic() < ends:
            self.outcome.ended.update(self.fleet.start_missing())
            spooled = any(True for spool in self._spools for _ in spool.rglob("spool/*.json"))
            if not self._open_jobs() and not spooled:
                return
            time.sleep(0.5)

    def _look(self) -> Found:
        ids: dict[str, str] = {}
        twice: list[str] = []
        for worker in self.storage.workers.list():
            if ids.setdefault(worker.name, worker.id) != worker.id and worker.name in WORKERS:
                twice.append(f"'{worker.name}' is two workers: {ids[worker.name]}, {worker.id}")
        finished = {ids[name]: self.fleet.measured(name) for name in WORKERS}
        liars = {liar.worker_id for liar in self.liars} | {
            worker.id for worker in self.storage.workers.list() if worker.name.startswith("liar-")
        }
        jobs = [job.id for job in self.storage.jobs.list(limit=MOST_JOBS)]
        found = check(self.storage, jobs, finished, liars)
        found.wrong += twice
        if len(jobs) < self._wanted:
            found.wrong.append(f"{self._wanted} jobs were taken, {len(jobs)} are there")
        for liar in self.liars:
            found.wrong += [f"{liar.name} was believed: {what}" for what in liar.believed]
        return found


def small_model(number: int) -> bytes:
    """A serialised ONNX model with one matrix product, whose sizes depend on `number`."""
    rows, depth, columns = 16 + number % 7, 32 + 4 * (number // 7), 64
    writer = OnnxWriter(f"small-{number}", number)
    x = writer.input("x", (rows, depth))
    weight = writer.constant(writer.normal((depth, columns), depth**-0.5), "weight")
    y = writer.node("MatMul", x, weight, output="y")
    return bytes(writer.finish([(y, (rows, columns))]).SerializeToString())


@contextmanager
def prepared(plan: Plan, folder: Path) -> Iterator[Chaos]:
    """Context with a `Chaos` object, whose processes are stopped at the end."""
    with ExitStack() as stack:
        yield Chaos(plan, folder, stack)


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command-line options of the chaos test."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--database", choices=["sqlite", "postgresql"], default="postgresql")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=3, help="that are open at a time")
    parser.add_argument("--trials", type=int, default=12, help="of each job")
    parser.add_argument("--pause", type=float, default=6.0, help="seconds between kills at most")
    parser.add_argument("--seconds", type=float, default=3600.0, help="after which none is killed")
    parser.add_argument("--folder", type=Path, help="where logs and data stay")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/chaos"))
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the plan and write the report. The exit code is 1 if a guarantee was broken."""
    asked = options(arguments)
    plan = Plan(
        kills=asked.kills,
        database=asked.database,
        seed=asked.seed,
        open_jobs=asked.jobs,
        trials=asked.trials,
        pause_seconds=asked.pause,
        seconds=asked.seconds,
    )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # nothing is left running
    with ExitStack() as stack:
        folder = asked.folder or Path(stack.enter_context(tempfile.TemporaryDirectory("-chaos")))
        folder.mkdir(parents=True, exist_ok=True)
        outcome = stack.enter_context(prepared(plan, folder)).play()
    origin = Origin.of(asked)
    write_result(asked.output, origin, {"outcome": outcome.to_json()}, report(origin, outcome))
    print(*outcome.found.wrong, sep="\n")
    return 1 if outcome.found.wrong else 0


def report(origin: Origin, outcome: Outcome) -> str:
    """The chaos test's report in Markdown: events, broken guarantees, and errors of jobs."""
    found = outcome.found
    counted: dict[str, Counter[str]] = {
        "killed with `kill -9`": outcome.kills,
        "ended by itself, and was started again": outcome.ended,
        "requests of the honest workers": outcome.faults,
        "jobs": found.jobs,
        "leases": found.outcomes,
        "records": found.records,
        **{
            f"answers to lies in {kind}": Counter(
                {f"HTTP {status}": n for status, n in statuses.items()}
            )
            for kind, statuses in outcome.statuses.items()
        },
    }
    rows = [
        [what, name, str(n)] for what, some in counted.items() for name, n in sorted(some.items())
    ]
    wrong = "".join(f"- {sentence}\n" for sentence in found.wrong) or "Nothing.\n"
    failed = "".join(f"- {n} x {e}\n" for e, n in Counter(found.errors).items()) or "None.\n"
    sentences = (
        f"{outcome.kills.total()} processes were killed in {outcome.seconds / 60:.0f} minutes,\n"
        f"under a load of {found.jobs.total()} jobs. The honest workers finished {found.measured}"
        f" requests;\n{found.trials} trials are stored, those of liars among them. {found.late}"
        " results came after another\nworker's, and were not counted."
    )
    return (
        f"# Chaos\n\n{origin.sentence()}\n\n{sentences}\n\n"
        f"{markdown_table(['what', 'which', 'how many'], rows, text=2)}\n\n"
        f"## What was broken of the promises\n\n{wrong}\n"
        f"## Why jobs did not succeed\n\n{failed}"
    )


if __name__ == "__main__":
    raise SystemExit(main())
