"""Requirements on every blob store: the same tests for a folder and for S3."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.buckets import serve_bucket, use_bucket
from tilewright import db
from tilewright.db.errors import NotFoundError, StorageError, StorageKind
from tilewright.db.stores.blob_bytes import CHUNK_BYTES, BlobBytes, stage
from tilewright.db.stores.blob_folder import BlobFolder
from tilewright.db.stores.blob_objects import BlobObjects
from tilewright.db.stores.blobs import BlobStore


@pytest.fixture
def folder(tmp_path: Path) -> BlobFolder:
    return BlobFolder(tmp_path / "blobs")


@pytest.fixture(scope="session")
def bucket_server() -> Iterator[str]:
    with serve_bucket() as url:
        yield url


@pytest.fixture
def s3(bucket_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    return use_bucket(bucket_server, monkeypatch)


@pytest.fixture
def objects(s3: str, tmp_path: Path) -> BlobObjects:
    return BlobObjects(s3, tmp_path / "staging")


@pytest.fixture(params=["folder", "objects"])
def place(request: pytest.FixtureRequest) -> BlobBytes:
    found: BlobBytes = request.getfixturevalue(request.param)
    return found


def keep(place: BlobBytes, *chunks: bytes) -> str:
    with stage(place.staging, chunks) as staged:
        place.keep(staged)
        return staged.digest


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


class TestPlace:
    def test_bytes_come_back_under_their_digest(self, place: BlobBytes) -> None:
        digest = keep(place, b"some ", b"bytes")
        assert digest == hashlib.sha256(b"some bytes").hexdigest()
        assert b"".join(place.read(digest)) == b"some bytes"
        assert place.size(digest) == 10
        with place.local(digest) as path:
            assert path.read_bytes() == b"some bytes"
        (stored,) = place.list()
        assert (stored.digest, stored.bytes) == (digest, 10)
        assert stored.modified_at > 1e9
        assert not files(place.staging)

    def test_no_bytes_at_all(self, place: BlobBytes) -> None:
        digest = keep(place)
        assert place.size(digest) == 0
        assert b"".join(place.read(digest)) == b""

    def test_keeping_twice_is_once(self, place: BlobBytes) -> None:
        assert keep(place, b"a") == keep(place, b"a")
        assert len(list(place.list())) == 1

    def test_a_range_of_many_chunks(self, place: BlobBytes) -> None:
        data = os.urandom(3 * CHUNK_BYTES + 17)
        digest = keep(place, data)
        for start, end in (
            (0, None),
            (5, None),
            (5, 6),
            (0, 0),
            (CHUNK_BYTES - 1, 2 * CHUNK_BYTES + 1),
            (len(data) - 1, len(data)),
            (len(data), None),
        ):
            assert b"".join(place.read(digest, start, end)) == data[start:end], (start, end)

    @pytest.mark.parametrize("name", ["", "0" * 64, "../../etc/passwd", "A" * 64, "é" * 64])
    def test_unknown_names(self, place: BlobBytes, name: str) -> None:
        assert place.size(name) is None
        with pytest.raises(NotFoundError):
            place.read(name)
        with pytest.raises(NotFoundError), place.local(name):
            pytest.fail("there is no such file")

    def test_setting_some_of_many_aside(self, place: BlobBytes) -> None:
        digests = [keep(place, b"%d" % number) for number in range(5)]
        aside = place.quarantine([*digests[:2], "0" * 64])
        assert [one.digest for one in aside] == digests[:2]
        assert [stored.digest for stored in place.list()] == sorted(digests[2:])
        assert {*place.all_quarantined()} == {*aside}
        place.restore_quarantined(aside[:1])
        assert b"".join(place.read(digests[0])) == b"0" and place.all_quarantined() == aside[1:]
        place.discard(aside)
        place.restore_quarantined(aside)
        assert place.size(digests[1]) is None and place.all_quarantined() == []
        assert place.quarantine([]) == [] and place.discard([]) is None

    def test_the_same_bytes_are_set_aside_twice_under_two_names(self, place: BlobBytes) -> None:
        """A slow deletion of the first deletes nothing of the second."""
        digest = keep(place, b"old")
        (first,) = place.quarantine([digest])
        keep(place, b"old")
        (second,) = place.quarantine([digest])
        place.discard([first])
        place.restore_quarantined([second])
        assert b"".join(place.read(digest)) == b"old"
        (third,) = place.quarantine([digest])
        keep(place, b"old")
        place.restore_quarantined([third])
        assert b"".join(place.read(digest)) == b"old" and place.all_quarantined() == []


def test_a_full_disk_is_a_typed_error(folder: BlobFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="full") as caught:
        keep(folder, b"some bytes")
    assert caught.value.kind is StorageKind.FULL
    monkeypatch.undo()
    assert files(folder.folder) == []
    assert folder.size(keep(folder, b"some bytes")) == 10


def test_a_disk_that_fills_up_on_the_way(tmp_path: Path) -> None:
    """With a real limit on the size of a file, in a process of its own."""
    script = (
        "import resource, signal, sys\n"
        "from pathlib import Path\n"
        "from tilewright.db.errors import StorageError\n"
        "from tilewright.db.stores.blob_bytes import stage\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try:\n"
        "    with stage(Path(sys.argv[1]), [b'x' * 600, b'x' * 600]):\n"
        "        pass\n"
        "except StorageError as error:\n"
        "    sys.stdout.write(error.kind)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(Path(db.__file__).parents[2])},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "full", done.stderr
    assert files(tmp_path) == []


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError) as caught:
        BlobFolder(tmp_path / "file" / "blobs")
    assert caught.value.kind is StorageKind.DENIED


def test_the_bytes_are_on_the_disk_before_the_name(
    folder: BlobFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (calls.append("fsync"), fsync(fd))[1])
    monkeypatch.setattr(os, "replace", lambda a, b: (calls.append("rename"), replace(a, b))[1])
    keep(folder, b"some bytes")
    assert calls[:3] == ["fsync", "rename", "fsync"]


def test_what_a_killed_process_left_goes_when_it_is_old(folder: BlobFolder) -> None:
    old, young = folder.staging / "old", folder.staging / "young"
    for path, modified in ((old, 1000), (young, 5000)):
        path.write_bytes(b"1234")
        os.utime(path, (modified, modified))
    assert folder.remove_left_overs(2000.0) == 4
    assert files(folder.folder) == [young]


# ---- object stores


def test_a_large_blob_goes_in_parts(objects: BlobObjects) -> None:
    data = os.urandom(11 << 20)
    digest = keep(
        objects, *(data[start : start + 999_999] for start in range(0, 11 << 20, 999_999))
    )
    assert objects.size(digest) == len(data)
    assert b"".join(objects.read(digest)) == data
    assert (
        b"".join(objects.read(digest, (5 << 20) - 3, (5 << 20) + 3))
        == data[(5 << 20) - 3 : (5 << 20) + 3]
    )


def test_parts_of_a_bucket_do_not_see_each_other(
    objects: BlobObjects, s3: str, tmp_path: Path
) -> None:
    other = BlobObjects(s3 + "/inside", tmp_path / "other")
    digest = keep(other, b"inside")
    assert objects.size(digest) is None
    assert list(objects.list()) == [], "what is no blob of its own"


@pytest.mark.parametrize("url", ["s3://", "s3:///", "gs://bucket", "/tmp/x", "s3:bucket"])
def test_what_names_no_bucket_is_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="names no bucket"):
        BlobObjects(url, tmp_path)


def test_an_object_store_that_does_not_answer_may_be_asked_again(
    s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("tilewright.db.stores.blob_objects.RETRIES", 0)
    away = BlobObjects(s3, tmp_path / "staging")
    for call in (
        lambda: away.size("0" * 64),
        lambda: keep(away, b"bytes"),
        lambda: away.quarantine(["0" * 64]),
        lambda: list(away.list()),
    ):
        with pytest.raises(StorageError, match="cannot be reached") as caught:
            call()
        assert caught.value.retryable and len(str(caught.value).splitlines()) == 1
    assert files(away.staging) == []


def test_a_bucket_that_is_not_there_is_said(s3: str, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="'s3://nowhere/x' does not exist"):
        keep(BlobObjects("s3://nowhere/x", tmp_path / "staging"), b"bytes")


def test_the_sweep_works_on_objects(objects: BlobObjects, engine: sa.Engine, clock: Any) -> None:
    blobs = BlobStore(engine, objects, clock)
    old = blobs.put(b"old")
    clock.advance(1000)
    young = blobs.put(b"young")
    assert blobs.get(old) == b"old"
    assert blobs.sweep(900) == 3
    assert list(blobs.digests()) == [young]
