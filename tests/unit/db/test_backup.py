"""Archives that either database restores, and the findings of `check`."""

from __future__ import annotations

import json
import os
import shutil
import tarfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.unit.db.later import LATER, later_release
from tilewright.db.backup import BackupError, NotEmptyError, backup, restore
from tilewright.db.check import Finding, Severity, check
from tilewright.db.engine import open_engine, reading, writing
from tilewright.db.errors import SchemaVersionError, StorageError
from tilewright.db.job_states import JobState
from tilewright.db.migrate import current_revision, head_revision, upgrade
from tilewright.db.models import Base, BlobReferenceRow, BlobRow
from tilewright.db.stores.audit import Action, AuditStore
from tilewright.db.stores.blob_folder import BlobFolder
from tilewright.db.stores.blobs import BlobStore
from tilewright.db.stores.cost_models import CostModelStore
from tilewright.db.stores.idempotency import HeldKey, IdempotencyStore
from tilewright.db.stores.jobs import JobStore
from tilewright.db.stores.leases import LeaseStore, NewRequest
from tilewright.db.stores.models import ModelStore
from tilewright.db.stores.statements import table_of
from tilewright.db.stores.tokens import Scope, TokenStore


@pytest.fixture
def full(engine: sa.Engine, blobs: BlobStore, models: ModelStore, clock: Any) -> BlobStore:
    """Rows in most tables, with values that are hard to serialise."""
    model = models.add(b"an ONNX model", 'né"t\n.onnx').digest
    jobs, leases = JobStore(engine, clock), LeaseStore(engine, clock)
    done = jobs.create(
        model, "host", "host-key", options={"budget": {"trials": 3}, "nan": float("nan")}
    )
    claimed = jobs.claim("tuner", 1e6)
    assert claimed is not None and claimed[1].id == done.id
    jobs.transition(claimed[0], JobState.VERIFYING)
    artifact = blobs.put(os.urandom(300_000))
    jobs.transition(claimed[0], JobState.SUCCEEDED, result={"a": None}, artifact_digest=artifact)
    jobs.create(model, "host", "host-key", owner="x", idempotency_key="k")
    leases.submit([NewRequest("r", "t", {"deep": [[]]}, (blobs.put(b"candidates"),))])
    facts = {"feature_version": 1, "objective": "ndcg", "rows": 1, "tasks": 1, "trials": 1}
    CostModelStore(engine, blobs, clock).add("t", b"trees", **facts, scores={}, chance={})
    TokenStore(engine, clock).create("ci", [Scope.READ])
    keys = IdempotencyStore(engine, clock)
    held = keys.begin("ci", "answered", "digest")
    assert isinstance(held, HeldKey)
    keys.finish(held, 201, bytes(range(256)))
    keys.begin("ci", "in flight", "digest")
    audit = AuditStore(engine, clock)
    for number in range(3):
        who = {"actor": "", "actor_name": "test", "origin": ""}
        audit.add(Action.TOKEN_CREATED, str(number), **who)
    blobs.put(b"nothing names this")
    return blobs


@pytest.fixture(params=["sqlite", "postgresql"])
def other(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[sa.Engine]:
    """A database of each kind that was never migrated."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/other.db"
    else:
        known = request.getfixturevalue("postgres_engine").url
        admin = sa.create_engine(known, isolation_level="AUTOCOMMIT")
        with admin.connect() as connection:
            connection.exec_driver_sql("DROP DATABASE IF EXISTS other WITH (FORCE)")
            connection.exec_driver_sql("CREATE DATABASE other")
        admin.dispose()
        url = known.set(database="other").render_as_string(hide_password=False)
    engine = open_engine(url)
    yield engine
    engine.dispose()


def rows(engine: sa.Engine) -> dict[str, list[tuple[Any, ...]]]:
    with reading(engine) as connection:
        return {
            table.name: [
                tuple(row)
                for row in connection.execute(sa.select(table).order_by(*table.primary_key.columns))
            ]
            for table in Base.metadata.sorted_tables
        }


def say_revision(engine: sa.Engine, revision: str) -> None:
    """Let a database claim to be at another revision."""
    with writing(engine) as connection:
        connection.exec_driver_sql(f"UPDATE alembic_version SET version_num = '{revision}'")


def contents(place: BlobFolder) -> dict[str, bytes]:
    return {each.digest: b"".join(place.read(each.digest)) for each in place.list()}


def findings(engine: sa.Engine, blobs: BlobStore, *, deep: bool = False) -> list[Finding]:
    return list(check(engine, blobs.place, deep=deep))


def errors(found: list[Finding]) -> list[str]:
    return [each.what for each in found if each.severity is Severity.ERROR]


# ---- archives


def test_an_archive_of_either_database_fills_either(
    engine: sa.Engine, full: BlobStore, other: sa.Engine, tmp_path: Path, clock: Any
) -> None:
    file = tmp_path / "all.tar"
    made = backup(engine, full.place, file, clock)
    assert file.stat().st_mode & 0o777 == 0o600
    assert made.format == 1, "whatever this release writes, later ones read"
    assert made.created_at == clock() and made.missing == ()
    assert made.tables["audit"] == 3 and made.blobs == 5
    place = BlobFolder(tmp_path / "restored")
    assert restore(other, place, file) == made
    assert rows(other) == rows(engine)
    assert contents(place) == contents(full.place)  # type: ignore[arg-type]
    assert current_revision(other) == head_revision()
    # new rows are numbered after the restored ones
    audit = AuditStore(other, clock)
    audit.add(Action.TOKEN_CREATED, "new", actor="", actor_name="test", origin="")
    new, *others = (entry.serial for entry in audit.list())
    assert others == [row[0] for row in reversed(rows(engine)["audit"])]
    assert new == others[0] + 1
    assert errors(list(check(other, place, deep=True))) == []


def test_nothing_is_restored_over_rows(
    engine: sa.Engine, full: BlobStore, other: sa.Engine, tmp_path: Path
) -> None:
    file = tmp_path / "all.tar"
    backup(engine, full.place, file)
    upgrade(other)
    TokenStore(other).create("here before", [Scope.READ])
    before = rows(other)
    place = BlobFolder(tmp_path / "restored")
    with pytest.raises(NotEmptyError, match="has rows in"):
        restore(other, place, file)
    assert rows(other) == before and contents(place) == {}


def test_an_empty_database_that_was_migrated_is_filled(
    engine: sa.Engine, full: BlobStore, other: sa.Engine, tmp_path: Path
) -> None:
    file = tmp_path / "all.tar"
    backup(engine, full.place, file)
    upgrade(other)
    restore(other, BlobFolder(tmp_path / "restored"), file)
    assert rows(other) == rows(engine)


def rewritten(file: Path, changes: dict[str, bytes | None]) -> Path:
    """A copy of an archive with other contents of some files, or without them."""
    target = file.with_name("rewritten.tar")
    with tarfile.open(file) as source, tarfile.open(target, "w") as made:
        for entry in source:
            data = source.extractfile(entry).read()  # type: ignore[union-attr]
            data = changes.get(entry.name, data)  # type: ignore[assignment]
            if data is not None:
                entry.size = len(data)
                made.addfile(entry, BytesIO(data))
    return target


@pytest.mark.parametrize("made", [False, True], ids=["no tables", "tables of the later release"])
def test_an_archive_of_an_earlier_revision_is_migrated(
    engine: sa.Engine, full: BlobStore, other: sa.Engine, tmp_path: Path, made: bool
) -> None:
    file = tmp_path / "all.tar"
    backup(engine, full.place, file)
    with later_release(tmp_path / "later"):
        if made:
            upgrade(other)
        restore(other, BlobFolder(tmp_path / "restored"), file)
        assert current_revision(other) == head_revision() == LATER
    assert rows(other) == rows(engine)
    with reading(other) as connection:
        assert sa.inspect(connection).has_table("later")


@pytest.mark.parametrize("what", ["blob", "row", "count", "table", "manifest", "cut", "text"])
def test_a_damaged_archive_leaves_no_rows(
    engine: sa.Engine, full: BlobStore, tmp_path: Path, what: str
) -> None:
    file = tmp_path / "all.tar"
    backup(engine, full.place, file)
    with tarfile.open(file) as archive:
        blob = next(name for name in archive.getnames() if name.startswith("blobs/"))
        lines = archive.extractfile("tables/audit.jsonl").read()  # type: ignore[union-attr]
    damaged = tmp_path / "damaged.tar"
    match what:
        case "cut":
            damaged.write_bytes(file.read_bytes()[:200_000])
        case "text":
            damaged.write_text("no archive at all")
        case _:
            changes: dict[str, dict[str, bytes | None]] = {
                "blob": {blob: b"other bytes"},
                "row": {"tables/audit.jsonl": lines[:-20]},
                "count": {"tables/audit.jsonl": lines[: lines.rindex(b"[")]},
                "table": {"tables/audit.jsonl": None},
                "manifest": {"manifest.json": None},
            }
            damaged = rewritten(file, changes[what])
    target = open_engine(f"sqlite:///{tmp_path}/target.db")
    with pytest.raises(BackupError):
        restore(target, BlobFolder(tmp_path / "restored"), damaged)
    if current_revision(target) is not None:
        assert not any(rows(target).values())
    target.dispose()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"revision": "9"}, "revision '9'.*by a newer one"),
        ({"format": 2}, "format 2.*by a newer one"),
        ({"revision": "0007"}, "revision '0007'.*migrates from '0038' on"),
    ],
)
def test_an_archive_of_an_unknown_revision_is_refused(
    engine: sa.Engine, full: BlobStore, tmp_path: Path, changes: dict[str, object], said: str
) -> None:
    file = tmp_path / "all.tar"
    backup(engine, full.place, file)
    with tarfile.open(file) as archive:
        manifest = json.loads(archive.extractfile("manifest.json").read())  # type: ignore[union-attr]
    other = rewritten(file, {"manifest.json": json.dumps(manifest | changes).encode()})
    target = open_engine(f"sqlite:///{tmp_path}/target.db")
    with pytest.raises(SchemaVersionError, match=said):
        restore(target, BlobFolder(tmp_path / "restored"), other)
    assert current_revision(target) is None
    target.dispose()


@pytest.mark.parametrize("revision", ["0007", "9999"])
def test_nothing_is_restored_into_a_database_of_an_unknown_revision(
    engine: sa.Engine, full: BlobStore, tmp_path: Path, revision: str
) -> None:
    file = tmp_path / "all.tar"
    backup(engine, full.place, file)
    target = open_engine(f"sqlite:///{tmp_path}/target.db")
    upgrade(target)
    say_revision(target, revision)
    with pytest.raises(SchemaVersionError, match=revision):
        restore(target, BlobFolder(tmp_path / "restored"), file)
    assert current_revision(target) == revision
    target.dispose()


def test_a_backup_that_cannot_be_made_leaves_nothing(
    engine: sa.Engine, full: BlobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StorageError):
        backup(engine, full.place, tmp_path / "nowhere" / "all.tar")
    old = open_engine(f"sqlite:///{tmp_path}/old.db")
    upgrade(old)
    say_revision(old, "0008")
    with pytest.raises(SchemaVersionError, match="tilewright db migrate"):
        backup(old, full.place, tmp_path / "all.tar")
    old.dispose()

    def full_disk(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(StorageError, match="full"):
        backup(engine, full.place, tmp_path / "all.tar")
    assert list(tmp_path.glob("*.tar*")) == list(tmp_path.glob(".*.tar*")) == []


def test_a_blob_that_is_gone_is_listed(
    engine: sa.Engine, full: BlobStore, other: sa.Engine, tmp_path: Path
) -> None:
    lost = next(iter(full.digests()))
    full.place.quarantine([lost])
    file = tmp_path / "all.tar"
    assert backup(engine, full.place, file).missing == (lost,)
    place = BlobFolder(tmp_path / "restored")
    assert restore(other, place, file).missing == (lost,)
    assert set(contents(place)) == set(full.digests())


# ---- check


def test_a_sound_database_has_notes_alone(engine: sa.Engine, full: BlobStore) -> None:
    assert [str(each.severity) for each in findings(engine, full, deep=True)] == ["note"]


def test_what_is_missing_or_damaged_is_named(
    engine: sa.Engine, full: BlobStore, model_digest: str
) -> None:
    place = full.place
    assert isinstance(place, BlobFolder)
    shorter, other = full.put(b"trees"), full.put(b"candidates")
    place.path(shorter).write_bytes(b"tree")
    place.path(other).write_bytes(b"CANDIDATES")
    place.quarantine([model_digest])
    said = errors(findings(engine, full))
    assert len(said) == 2
    assert f"{model_digest} are missing" in said[0]
    assert f"{shorter} has 4 bytes, it should have 5" in said[1]
    said = errors(findings(engine, full, deep=True))
    assert len(said) == 4, "two with other bytes than their name says"
    assert any(other in each for each in said)


def test_what_nothing_holds_is_told(engine: sa.Engine, full: BlobStore) -> None:
    references = table_of(BlobReferenceRow)
    with writing(engine) as connection:
        connection.execute(sa.delete(references).where(references.c.kind == "artifact"))
    (said,) = errors(findings(engine, full))
    assert "is not held by its artifact" in said
    LeaseStore(engine).cancel(request_ids=["r"])
    notes = [each.what for each in findings(engine, full) if each.severity is Severity.NOTE]
    # "nothing names this", what the request read, and the artifact that the job no longer holds
    assert notes == [
        f"3 blobs of {18 + 10 + 300_000} bytes that nothing refers to",
        "1 references whose holder is gone",
    ]
    with reading(engine) as connection:
        assert connection.execute(sa.select(table_of(BlobRow))).first() is not None


def test_another_revision_is_an_error(tmp_path: Path, blobs: BlobStore) -> None:
    engine = open_engine(f"sqlite:///{tmp_path}/fresh.db")
    (said,) = errors(findings(engine, blobs))
    assert "was never migrated" in said
    upgrade(engine)
    say_revision(engine, "0003")
    (said,) = errors(findings(engine, blobs))
    assert "at revision 0003" in said
    engine.dispose()


def test_a_damaged_file_is_noticed(tmp_path: Path, empty_sqlite: Path, blobs: BlobStore) -> None:
    path = tmp_path / "damaged.db"
    shutil.copy(empty_sqlite, path)
    data = bytearray(path.read_bytes())
    middle = len(data) // 2 // 4096 * 4096
    data[middle : middle + 4096] = os.urandom(4096)
    path.write_bytes(data)
    engine = open_engine(f"sqlite:///{path}")
    try:
        found = errors(findings(engine, blobs, deep=True))
    except StorageError as error:
        found = [str(error)]
    assert found
    engine.dispose()
