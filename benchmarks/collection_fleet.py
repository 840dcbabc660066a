"""A service with one tuner and one worker, for benchmarks that observe the tuner process.

The benchmarks read the memory of the tuner process and list its child processes. Some children
compute for a job, and the others are builders, which compile candidates. The two kinds have
different command lines.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.chaos_checks import check
from benchmarks.collection import BYTECODE
from benchmarks.fleet import Fleet, answers, free_port, until
from benchmarks.process_memory import MemoryWatch, resident_bytes, tree
from tilewright.db.stores.jobs import Job
from tilewright.db.stores.tokens import Scope
from tilewright.service.api.schemas.jobs import JobRequest
from tilewright.service.client import Client
from tilewright.service.embedded import owner_token
from tilewright.service.settings import Settings
from tilewright.service.storage import open_storage

WEB, TUNER, WORKER = "web", "tuner", "worker"

OF_A_JOB = b"tilewright.compiler.process.bounded"
"""Text in the command line of child processes that compute for a job."""

LEFT = ("job cancelled", "job let go", "job given back", "job ended", "job failed")
"""Messages that a tuner logs when it has finished its work for a job."""

LOOK_SECONDS = 0.02
WATCH_SECONDS = 0.2

JOB_LEASE_SECONDS = 4.0
"""Seconds after which another tuner takes over the job of a killed tuner."""


class ObservedService:
    """The API, a tuner and a worker as processes, with their database and the owner's client."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        settings = Settings(data_folder=folder / "data")
        settings.data_folder.mkdir(mode=0o700, parents=True)
        self.storage = open_storage(settings)
        stack.callback(self.storage.close)
        owner = owner_token(settings, self.storage)
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        token = folder / "worker.token"
        token.touch(mode=0o600)
        token.write_text(self.storage.tokens.create(WORKER, [Scope.MEASURE])[0])
        commands = {
            WEB: [
                "-m",
                "tilewright.service.cli",
                "server",
                "run",
                "--no-tuner",
                "--no-worker",
                "--port",
                str(port),
            ],
            TUNER: ["-m", "tilewright.service.cli", "server", "tuner"],
            WORKER: [
                *("-m", "tilewright.service.worker", "--server", url, "--name", WORKER),
                *("--token-file", str(token), "--spool", str(folder / "spool")),
            ],
        }
        environment = {
            **BYTECODE,
            "TILEWRIGHT_DATA_FOLDER": str(settings.data_folder),
            "TILEWRIGHT_LOG_FORMAT": "json",
            "TILEWRIGHT_JOB_LEASE_SECONDS": f"{JOB_LEASE_SECONDS:g}",
        }
        self.fleet = Fleet(folder, commands, environment)
        stack.callback(self.fleet.stop)
        self.fleet.start(WEB)
        until(lambda: answers(url), "the service answers")
        self.fleet.start_missing()
        until(lambda: bool(self.storage.workers.list()), "the worker")
        self.client = stack.enter_context(Client(url, owner, timeout_seconds=60.0))
        self.memory = stack.enter_context(MemoryWatch(self._tuner, WATCH_SECONDS))

    def _tuner(self) -> int | None:
        return self.fleet.pid(TUNER) if self.fleet.runs(TUNER) else None

    def submit(self, file: Path, seconds: float) -> str:
        """Upload a model, submit a job with a tuning budget of `seconds`, and return its id."""
        digest = self.client.upload(file).digest
        return self.client.submit(JobRequest(model=digest, seconds=seconds)).id

    def job(self, job_id: str) -> Job:
        return self.storage.jobs.get(job_id)

    def ended(self, job_id: str, seconds: float) -> bool:
        """Wait at most `seconds` for a job to end; false if it did not end."""
        return waited(lambda: self.job(job_id).state.final, seconds) is not None

    def tuner_bytes(self) -> int:
        """Resident memory of the tuner process in bytes, without its child processes."""
        return resident_bytes(self.fleet.pid(TUNER))

    def children(self) -> list[int]:
        """Process ids of the tuner's descendants that compute for jobs."""
        return children_of_jobs(self.fleet.pid(TUNER))

    def all_children(self) -> list[int]:
        """Process ids of all descendants of the tuner, including its builders."""
        root = self.fleet.pid(TUNER)
        return [each for each in tree(root) if each != root]

    def let_go(self, job_id: str) -> bool:
        """Whether the tuner has logged that it finished its work for a job, for whatever reason."""
        lines = self.fleet.log(TUNER).read_text().splitlines()
        said = [json.loads(line) for line in lines if job_id in line and line.startswith("{")]
        return any(each["event"] in LEFT for each in said)

    def broken_promises(self, job_id: str) -> list[str]:
        """One sentence for each broken guarantee of a job, such as a lost measurement."""
        (worker,) = self.storage.workers.list()
        mine = {status.request_id for status in self.storage.leases.of_job(job_id)}
        measured = self.fleet.measured(WORKER)
        finished = type(measured)({name: n for name, n in measured.items() if name in mine})
        return list(check(self.storage, [job_id], {worker.id: finished}, set()).wrong)


def children_of_jobs(root: int) -> list[int]:
    """Process ids of the descendants of process `root` that compute for jobs."""
    return [each for each in tree(root) if each != root and OF_A_JOB in _command_line(each)]


def _command_line(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""


def lives(process: int) -> bool:
    """Whether a process is running.

    A zombie (ended, but not waited for) does not count as running.
    """
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in ("Z", "X")


def waited(condition: Callable[[], bool], seconds: float) -> float | None:
    """Poll a condition for at most `seconds`; return the seconds until it became true, or None."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > seconds:
            return None
        time.sleep(LOOK_SECONDS)
    return time.monotonic() - began


@contextmanager
def observed_service(folder: Path) -> Iterator[ObservedService]:
    """Context with an `ObservedService`, whose processes are stopped at the end."""
    with ExitStack() as stack:
        yield ObservedService(folder, stack)
