"""An application over a fresh database, tokens for it, and a builder for all tests."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fastapi.testclient import TestClient

from tests.databases import lay_database, share_compiled_statements
from tests.unit.service.tuners import LocalWorker, model_bytes, queue_job
from tests.unit.service.workers import FakeHarness, Running
from tests.unit.tuner.fakes import FakeBuilder
from tests.waiting import until
from tilewright.compiler.process.bounded import Limits
from tilewright.db.storage import Storage
from tilewright.db.stores import blame
from tilewright.db.stores.jobs import Job
from tilewright.db.stores.tokens import Scope
from tilewright.service.api.app import create_app
from tilewright.service.api.server import server_config
from tilewright.service.embedded import owner_token
from tilewright.service.jobs.evidence import bounded_verification
from tilewright.service.jobs.pipeline import job_run
from tilewright.service.jobs.process import builders, tuner_process
from tilewright.service.jobs.process.tuner_process import TunerProcess
from tilewright.service.settings import Settings
from tilewright.service.storage import open_storage
from tilewright.service.worker import process as worker_process
from tilewright.service.worker.options import WorkerOptions
from tilewright.tuner.measure import references
from tilewright.tuner.measure.builder import BuildFuture, CachingBuilder, ProcessBuilder
from tilewright.tuner.measure.harness.binary import build, host_compiler

share_compiled_statements()

BASE = Settings(lease_seconds=30.0, heartbeat_seconds=0.2, long_poll_seconds=0.3, token="")
"""The settings of all tests: reading the environment takes 3.5 ms each time."""


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that fails is tried again at once; how long it rests is tested with the store."""
    monkeypatch.setattr(blame, "FIRST_PAUSE_SECONDS", 0.02)


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Settings of a fresh data folder, independent of the environment."""
    monkeypatch.setenv("TILEWRIGHT_DATA_FOLDER", str(tmp_path / "data"))
    monkeypatch.delenv("TILEWRIGHT_TOKEN", raising=False)
    return BASE.model_copy(update={"data_folder": tmp_path / "data"})


@pytest.fixture
def storage(settings: Settings) -> Iterator[Storage]:
    lay_database(settings.data_folder)
    opened = open_storage(settings)
    yield opened
    opened.close()


@pytest.fixture
def owner(settings: Settings, storage: Storage) -> str:
    """The secret of a token that may do everything."""
    return owner_token(settings, storage)


@pytest.fixture
def anonymous(settings: Settings, storage: Storage) -> Iterator[TestClient]:
    """A client without a token."""
    app = create_app(settings, storage)
    app.openapi_schema = described()
    with TestClient(app, raise_server_exceptions=False) as client:
        client.event_hooks = {"request": [], "response": [check_described]}
        yield client


@pytest.fixture
def client(anonymous: TestClient, owner: str) -> TestClient:
    """A client with the owner's token."""
    anonymous.headers["Authorization"] = f"Bearer {owner}"
    return anonymous


@cache
def described() -> dict[str, Any]:
    """The description of any application: building it takes longer than most tests."""
    return create_app(Settings()).openapi()


def check_described(answer: Any) -> None:
    """Check that the description lists the status of this answer."""
    method, path = answer.request.method.lower(), answer.request.url.path
    for pattern, described, operations in paths():
        if method in operations and pattern.fullmatch(path):
            known = operations[method]["responses"]
            assert str(answer.status_code) in known, f"{method} {described}: {answer.status_code}"
            return


@cache
def paths() -> list[tuple[re.Pattern[str], str, dict[str, Any]]]:
    """The described paths, each with a pattern of the paths that it describes."""
    return [
        (re.compile(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(path))), path, operations)
        for path, operations in described()["paths"].items()
    ]


def with_scopes(storage: Storage, *scopes: Scope) -> dict[str, str]:
    """The header of a new token, which sees the jobs of all owners."""
    secret, _ = storage.tokens.create("test", scopes, all_owners=True)
    return {"Authorization": f"Bearer {secret}"}


@dataclass
class LiveServer:
    """The application behind a real socket; it can stop and restart at the same port."""

    settings: Settings
    storage: Storage
    port: int
    _server: uvicorn.Server | None = None
    _thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        settings = self.settings.model_copy(update={"port": self.port})
        config = server_config(create_app(settings, self.storage), settings)
        config.timeout_graceful_shutdown = 1
        server = self._server = uvicorn.Server(config)
        thread = self._thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        until(lambda: server.started or not thread.is_alive())
        assert server.started

    def stop(self) -> None:
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            self._thread.join()
            self._server = self._thread = None


@pytest.fixture
def server(settings: Settings, storage: Storage, owner: str) -> Iterator[LiveServer]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    live = LiveServer(settings, storage, port)
    live.start()
    yield live
    live.stop()


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> type[FakeHarness]:
    FakeHarness.measured = []
    FakeHarness.closed = False
    FakeHarness.gate = threading.Event()
    FakeHarness.gate.set()
    FakeHarness.started = threading.Event()
    monkeypatch.setattr(worker_process, "Harness", FakeHarness)
    monkeypatch.setattr(worker_process, "local_harness", lambda folder: folder)
    return FakeHarness


@pytest.fixture
def options(server: LiveServer, owner: str, tmp_path: Path) -> WorkerOptions:
    return WorkerOptions(server.url, owner, "w", tmp_path / "state", ("x86-64-v3",))


@pytest.fixture
def start(options: WorkerOptions, harness: type[FakeHarness]) -> Iterator[Callable[[], Running]]:
    started: list[Running] = []

    def begin() -> Running:
        started.append(Running(options))
        return started[-1]

    yield begin
    for running in started:
        running.end()


@pytest.fixture
def job(storage: Storage) -> Job:
    """A job of the smallest model."""
    digest = storage.models.add(model_bytes(), "tiny").digest
    return queue_job(storage, digest, options={"trials": 4, "seconds": None})


@pytest.fixture
def tuner(settings: Settings, storage: Storage, monkeypatch: pytest.MonkeyPatch) -> TunerProcess:
    """A tuner that builds nothing, and has no children to start."""
    fast = settings.model_copy(update={"job_lease_seconds": 0.4})
    process = TunerProcess(fast, storage, "test")
    monkeypatch.setattr(TunerProcess, "builder", FakeBuilder())
    monkeypatch.setattr(job_run, "LeasedDevice", LocalWorker)
    for limits in ("planning_limits", "verification_limits"):
        monkeypatch.setattr(tuner_process, limits, lambda settings: None)
    return process


@pytest.fixture(scope="session")
def builder() -> Iterator[ProcessBuilder]:
    """A builder with one process, as a tuner keeps one between its jobs."""
    made = ProcessBuilder(1)
    yield made
    made.close()


class _NoChild:
    """Stands for a child of a `ReferenceCache`, and works in its thread."""

    def __init__(self, limits: Limits) -> None:
        """No limits apply."""

    def ask(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        return function(*arguments)

    def stop(self) -> None:
        """No process is to be stopped."""

    def close(self) -> None:
        """No process is to be closed."""


@pytest.fixture
def references_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """References are computed in this process: a child takes half a second to start. Their limits
    are tested with the cache, and with jobs in `test_job_references`."""
    monkeypatch.setattr(references, "BoundedChild", _NoChild)


@pytest.fixture
def few_children(
    builder: ProcessBuilder, references_here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commands build in the process of `builder`, verify in this one, and compute references in it:
    starting others takes seconds."""

    class Shared(CachingBuilder):
        def start(self) -> None:
            """Its process runs."""

        def begin(
            self, text: str, schedule: Mapping[str, Any], mode: Mapping[str, Any]
        ) -> BuildFuture:
            return builder.begin(text, schedule, mode)

        def close(self) -> None:
            """Its process is kept."""

    monkeypatch.setattr(builders, "open_builder", lambda settings, timings=None: Shared(timings))
    monkeypatch.setattr(bounded_verification, "verification_limits", lambda settings: None)


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The harness in C."""
    output = tmp_path_factory.mktemp("harness") / "harness"
    build([*host_compiler(), "-O0", "-Wall", "-Wextra", "-Werror"], output)
    return output
