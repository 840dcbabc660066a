"""Blobs with their rows: the references to them, and their removal."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import sqlalchemy as sa

from tilewright.db.engine import open_engine, reading, writing
from tilewright.db.errors import NotFoundError, StorageError, StorageKind
from tilewright.db.job_states import JobState
from tilewright.db.models import BlobReferenceRow, BlobRow, CostModelRow
from tilewright.db.stores import blobs as blobs_module
from tilewright.db.stores.blob_bytes import QuarantinedBytes, TooManyBytesError
from tilewright.db.stores.blob_folder import BlobFolder
from tilewright.db.stores.blob_references import BlobKind, refer
from tilewright.db.stores.blobs import DOOMED_SECONDS, TOUCH_SECONDS, BlobStore
from tilewright.db.stores.cost_models import CostModelStore
from tilewright.db.stores.jobs import JobStore
from tilewright.db.stores.leases import LeaseStore, NewRequest
from tilewright.db.stores.models import ModelStore
from tilewright.db.stores.statements import table_of

KEEP = 900.0


def folder_of(blobs: BlobStore) -> BlobFolder:
    assert isinstance(blobs.place, BlobFolder)
    return blobs.place


def files(blobs: BlobStore) -> list[Path]:
    return [path for path in folder_of(blobs).folder.rglob("*") if path.is_file()]


def references(engine: sa.Engine) -> set[tuple[str, str, str]]:
    table = table_of(BlobReferenceRow)
    with reading(engine) as connection:
        return {(row.kind, row.holder, row.digest) for row in connection.execute(sa.select(table))}


def test_round_trip(blobs: BlobStore, engine: sa.Engine, clock: Any) -> None:
    digest = blobs.put(b"some bytes")
    assert digest == hashlib.sha256(b"some bytes").hexdigest()
    assert blobs.get(digest) == b"some bytes"
    assert b"".join(blobs.read(digest, 5)) == b"bytes"
    assert digest in blobs and blobs.size(digest) == 10
    with blobs.local(digest) as path:
        assert path.read_bytes() == b"some bytes"
    assert list(blobs.digests()) == [digest]
    with reading(engine) as connection:
        row = connection.execute(sa.select(table_of(BlobRow))).one()
    assert (row.digest, row.bytes, row.created_at) == (digest, 10, clock())


def test_the_same_bytes_are_one_file(blobs: BlobStore) -> None:
    assert blobs.put(b"a") == blobs.put(b"a")
    assert blobs.put_stream([b"a"]) == (blobs.put(b"a"), 1)
    assert len(files(blobs)) == 1


def test_stream_has_a_limit_and_leaves_nothing(blobs: BlobStore) -> None:
    with pytest.raises(TooManyBytesError, match="more than 5 bytes"):
        blobs.put_stream([b"abc", b"def"], max_bytes=5)
    assert files(blobs) == []


def test_a_stream_that_breaks_leaves_nothing(blobs: BlobStore) -> None:
    def broken() -> Iterator[bytes]:
        yield b"abc"
        raise ConnectionResetError("client left")

    with pytest.raises(ConnectionResetError, match="client left"):
        blobs.put_stream(broken())
    assert files(blobs) == []


def test_what_is_staged_and_not_kept_is_gone(blobs: BlobStore) -> None:
    with blobs.staged([b"bad", b" model"]) as staged:
        assert staged.path.read_bytes() == b"bad model"
        assert staged.digest not in blobs
    assert files(blobs) == []


def test_unknown_names(blobs: BlobStore) -> None:
    assert blobs.touch(["0" * 64, "../token"]) == set()
    assert blobs.touch([]) == set()
    for call in (blobs.get, blobs.size):
        with pytest.raises(NotFoundError):
            call("0" * 64)


def test_damage_is_noticed_on_reading(blobs: BlobStore) -> None:
    digest = blobs.put(b"some bytes")
    folder_of(blobs).path(digest).write_bytes(b"SOME bytes")
    with pytest.raises(StorageError) as caught:
        blobs.get(digest)
    assert caught.value.kind is StorageKind.CORRUPT
    assert digest in str(caught.value)


def test_a_truncated_blob_is_repaired_by_saving_it_again(blobs: BlobStore) -> None:
    digest = blobs.put(b"some bytes")
    folder_of(blobs).path(digest).write_bytes(b"some")
    assert blobs.put(b"some bytes") == digest
    assert blobs.get(digest) == b"some bytes"


# ---- the sweep


def test_the_sweep_takes_what_is_old_and_not_referred_to(
    blobs: BlobStore, models: ModelStore, clock: Any
) -> None:
    model = models.add(b"a model", "net.onnx")
    blobs.put(b"old")
    clock.advance(KEEP - 1)
    young = blobs.put(b"young")
    assert blobs.sweep(KEEP) == 0
    clock.advance(2)
    assert blobs.sweep(KEEP) == len(b"old")
    assert set(blobs.digests()) == {model.digest, young}
    assert blobs.sweep(KEEP) == 0


def test_more_than_one_batch_goes(blobs: BlobStore, engine: sa.Engine, clock: Any) -> None:
    for number in range(230):
        blobs.put(b"%d" % number)
    clock.advance(KEEP + 1)
    assert blobs.sweep(KEEP) == sum(len(str(number)) for number in range(230))
    assert list(blobs.digests()) == []
    with reading(engine) as connection:
        assert connection.execute(sa.select(table_of(BlobRow))).first() is None


@pytest.mark.parametrize("how", ["put", "touch", "stream"])
def test_saving_or_touching_protects_from_a_sweep(blobs: BlobStore, clock: Any, how: str) -> None:
    digest = blobs.put(b"old")
    clock.advance(KEEP + 1)
    match how:
        case "put":
            blobs.put(b"old")
        case "stream":
            blobs.put_stream([b"old"])
        case _:
            assert blobs.touch([digest, "0" * 64, digest]) == {digest}
    assert blobs.sweep(KEEP) == 0
    assert digest in blobs


def test_a_blob_is_touched_in_the_database_once_a_minute(
    blobs: BlobStore, engine: sa.Engine, clock: Any
) -> None:
    digest = blobs.put(b"weights")
    touched = sa.select(table_of(BlobRow).c.touched_at)
    start = clock()
    clock.advance(TOUCH_SECONDS - 1)
    assert blobs.touch([digest]) == {digest}
    with reading(engine) as connection:
        assert connection.execute(touched).scalar() == start
    clock.advance(2)
    assert blobs.touch([digest]) == {digest}
    with reading(engine) as connection:
        assert connection.execute(touched).scalar() == clock()


def test_bytes_without_a_row_are_found_and_go(blobs: BlobStore, clock: Any) -> None:
    """Those of a folder that was copied."""
    for number, modified in ((1, clock() - KEEP - 1), (2, clock())):
        data = b"%d" % number
        digest = hashlib.sha256(data).hexdigest()
        path = folder_of(blobs).path(digest)
        path.parent.mkdir()
        path.write_bytes(data)
        os.utime(path, (modified, modified))
    assert blobs.sweep(KEEP) == 1
    assert list(blobs.digests()) == [digest]


def test_what_a_request_names_goes_with_the_request(
    blobs: BlobStore, engine: sa.Engine, clock: Any
) -> None:
    leases = LeaseStore(engine, clock)
    shared, own = blobs.put(b"expected output"), blobs.put(b"candidates")
    leases.submit(
        [NewRequest("a", "t", {}, (shared, own)), NewRequest("b", "t", {}, (shared, shared))]
    )
    clock.advance(KEEP + 1)
    assert blobs.sweep(KEEP) == 0
    leases.cancel(request_ids=["a"])
    assert blobs.sweep(KEEP) == len(b"candidates")
    assert references(engine) == {("request", "b", shared)}


def test_an_artifact_is_kept_beside_a_model_of_the_same_bytes(
    blobs: BlobStore, jobs: JobStore, models: ModelStore, engine: sa.Engine, clock: Any
) -> None:
    model = models.add(b"the same bytes", "net.onnx")
    jobs.create(model.digest, "host", "host-key")
    claimed = jobs.claim("tuner", 1e6)
    assert claimed is not None
    claim, job = claimed
    jobs.transition(claim, JobState.VERIFYING)
    jobs.transition(claim, JobState.SUCCEEDED, artifact_digest=model.digest)
    assert references(engine) == {
        ("model", model.digest, model.digest),
        ("artifact", job.id, model.digest),
    }
    clock.advance(KEEP + 1)
    assert blobs.sweep(KEEP) == 0


def test_a_version_of_a_cost_model_holds_its_bytes(
    blobs: BlobStore, engine: sa.Engine, clock: Any
) -> None:
    store = CostModelStore(engine, blobs, clock)
    facts = {"feature_version": 1, "objective": "ndcg", "rows": 1, "tasks": 1, "trials": 1}
    first, second = (
        store.add("t", data, **facts, scores={}, chance={}) for data in (b"trees", b"more")
    )
    clock.advance(KEEP + 1)
    assert blobs.sweep(KEEP) == 0
    rows = table_of(CostModelRow)
    with writing(engine) as connection:
        connection.execute(sa.delete(rows).where(rows.c.version == 1))
    assert blobs.sweep(KEEP) == len(b"trees")
    assert store.data(second) == b"more" and first.digest not in blobs


class Between(BlobFolder):
    """A folder that is called back just before the sweep deletes a file."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.asked: list[Sequence[str]] = []
        self.refuse = False

    def quarantine(self, digests: Sequence[str]) -> Sequence[QuarantinedBytes]:
        self.asked.append(list(digests))
        if self.refuse:
            raise StorageError("the folder is read-only", StorageKind.DENIED)
        return super().quarantine(digests)


def test_a_place_that_refuses_keeps_the_rows(engine: sa.Engine, tmp_path: Path, clock: Any) -> None:
    place = Between(tmp_path / "place")
    blobs = BlobStore(engine, place, clock)
    digest = blobs.put(b"old")
    clock.advance(KEEP + 1)
    place.refuse = True
    with pytest.raises(StorageError):
        blobs.sweep(KEEP)
    place.refuse = False
    assert blobs.sweep(KEEP) == 0, "the place may yet do what it was told"
    clock.advance(DOOMED_SECONDS + 1)
    assert blobs.sweep(KEEP) == 3
    assert place.asked == [[digest], [digest]]


class Slow(BlobFolder):
    """A folder that does something else before it deletes, and maybe fails in it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.meanwhile: Callable[[], object] = lambda: None
        self.afterwards: Callable[[], object] = lambda: None

    def quarantine(self, digests: Sequence[str]) -> Sequence[QuarantinedBytes]:
        self.meanwhile()
        aside = super().quarantine(digests)
        self.afterwards()
        return aside


class Killed(Exception):
    """Nothing more is done."""


@pytest.fixture
def slow(tmp_path: Path) -> Slow:
    return Slow(tmp_path / "slow")


def test_a_slow_place_holds_up_no_writer(
    engine: sa.Engine, slow: Slow, clock: Any, url: str
) -> None:
    """The bytes are deleted while no transaction is open: another process writes at once."""
    blobs = BlobStore(engine, slow, clock)
    blobs.put(b"old")
    clock.advance(KEEP + 1)
    other = open_engine(url, busy_seconds=0.5)
    slow.meanwhile = lambda: ModelStore(other, BlobStore(other, slow, clock), clock).add(b"m", "m")
    assert blobs.sweep(KEEP) == 3
    other.dispose()
    assert len(list(blobs.digests())) == 1


@pytest.mark.parametrize("deleted", [False, True])
def test_a_sweep_that_is_killed_loses_nothing_and_is_made_up_for(
    engine: sa.Engine, slow: Slow, clock: Any, monkeypatch: pytest.MonkeyPatch, deleted: bool
) -> None:
    """After the marks, or after the bytes: a process that saves them again waits until the marks
    expire."""
    blobs = BlobStore(engine, slow, clock)
    first, second = blobs.put(b"one"), blobs.put(b"two")
    clock.advance(KEEP + 1)

    def kill() -> None:
        if deleted:
            BlobFolder.quarantine(slow, [first, second])
        raise Killed

    slow.meanwhile = kill
    with pytest.raises(Killed):
        blobs.sweep(KEEP)
    slow.meanwhile = lambda: None
    monkeypatch.setattr(blobs_module, "WAIT_SECONDS", 0.0)
    with pytest.raises(StorageError, match="is being deleted") as caught:
        blobs.put(b"one")
    assert caught.value.retryable
    assert blobs.sweep(KEEP) == 0, "somebody may be at it"
    clock.advance(DOOMED_SECONDS + 1)
    assert blobs.put(b"one") == first and blobs.get(first) == b"one"
    assert blobs.sweep(KEEP) == 3
    assert list(blobs.digests()) == [first] and blobs.get(first) == b"one"
    with reading(engine) as connection:
        rows = connection.execute(sa.select(table_of(BlobRow))).all()
    assert [(row.digest, row.doomed_until) for row in rows] == [(first, None)]


def test_who_saves_what_is_being_deleted_waits_and_writes_it_anew(
    engine: sa.Engine, slow: Slow, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs = BlobStore(engine, slow, clock)
    digest = blobs.put(b"old")
    clock.advance(KEEP + 1)
    waits = threading.Event()
    watched = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: waits.set())
    monkeypatch.setattr(blobs_module, "time", watched)
    with ThreadPoolExecutor(1) as pool:
        saved: list[Future[str]] = []

        def meanwhile() -> None:
            saved.append(pool.submit(blobs.put, b"old"))
            assert waits.wait(60) and not saved[0].done()

        slow.meanwhile = meanwhile
        assert blobs.sweep(KEEP) == 3
        assert saved[0].result(60) == digest
    assert blobs.get(digest) == b"old"


def test_a_mark_that_ran_out_is_no_longer_ones_own(
    engine: sa.Engine, slow: Slow, clock: Any
) -> None:
    """A sweep that slept for so long removes no row that another process has written since."""
    blobs = BlobStore(engine, slow, clock)
    digest = blobs.put(b"old")
    clock.advance(KEEP + 1)

    def afterwards() -> None:
        slow.afterwards = lambda: None
        clock.advance(DOOMED_SECONDS + 1)
        blobs.put(b"old")

    slow.afterwards = afterwards
    blobs.sweep(KEEP)
    assert blobs.get(digest) == b"old" and slow.all_quarantined() == []
    with reading(engine) as connection:
        (row,) = connection.execute(sa.select(table_of(BlobRow))).all()
    assert (row.digest, row.doomed_until) == (digest, None)


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("again", [True, False])
def test_a_sweep_that_sleeps_beyond_its_marks_takes_nothing_that_is_needed_since(
    engine: sa.Engine, slow: Slow, clock: Any, dies: bool, again: bool
) -> None:
    """Between its marks and the bytes: they are a model by then, or were only touched."""
    blobs = BlobStore(engine, slow, clock)
    digest = blobs.put(b"old")
    clock.advance(KEEP + 1)

    def meanwhile() -> None:
        slow.meanwhile = lambda: None
        clock.advance(DOOMED_SECONDS + 1)
        if again:
            ModelStore(engine, blobs, clock).add(b"old", "m")
        else:
            assert blobs.touch([digest]) == {digest}

    def afterwards() -> None:
        slow.afterwards = lambda: None
        assert digest not in blobs, "it wakes, and goes on where it was"
        if dies:
            raise Killed

    slow.meanwhile, slow.afterwards = meanwhile, afterwards
    if dies:
        with pytest.raises(Killed):
            blobs.sweep(KEEP)
        assert blobs.sweep(KEEP) == 0, "the next one brings it back"
    else:
        assert blobs.sweep(KEEP) == 0, "it freed nothing"
    assert blobs.get(digest) == b"old" and slow.all_quarantined() == []


def test_what_a_killed_sweep_had_removed_the_rows_of_goes(
    engine: sa.Engine, slow: Slow, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs = BlobStore(engine, slow, clock)
    blobs.put(b"old")
    clock.advance(KEEP + 1)
    with monkeypatch.context() as patch:
        patch.setattr(slow, "discard", Mock(side_effect=Killed))
        with pytest.raises(Killed):
            blobs.sweep(KEEP)
    assert len(slow.all_quarantined()) == 1 and list(blobs.digests()) == []
    blobs.sweep(KEEP)
    assert slow.all_quarantined() == [] and list(blobs.digests()) == []


def test_a_reference_that_is_being_written_protects_from_a_sweep(
    url: str, engine: sa.Engine, blobs: BlobStore, clock: Any
) -> None:
    """On PostgreSQL the locked row is skipped; SQLite has one writer at a time."""
    if engine.dialect.name == "sqlite":
        pytest.skip("a sweep waits for the writer there")
    digest = blobs.put(b"old")
    clock.advance(KEEP + 1)
    other = open_engine(url)
    with writing(other) as connection:
        refer(connection, BlobKind.REQUEST, "r", [digest])
        assert blobs.sweep(KEEP) == 0
    other.dispose()
    assert digest in blobs
