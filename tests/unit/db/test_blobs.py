from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import db
from db.errors import NotFoundError, StorageError, StorageKind
from db.stores.blobs import BlobStore


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_round_trip(blobs: BlobStore) -> None:
    digest = blobs.put(b"some bytes")
    assert digest == hashlib.sha256(b"some bytes").hexdigest()
    assert blobs.get(digest) == b"some bytes"
    assert digest in blobs
    assert blobs.path(digest).read_bytes() == b"some bytes"
    assert list(blobs.digests()) == [digest]


def test_the_same_bytes_are_one_file(blobs: BlobStore) -> None:
    assert blobs.put(b"a") == blobs.put(b"a")
    assert blobs.put_stream([b"a"]) == (blobs.put(b"a"), 1)
    assert len(files(blobs.folder)) == 1


def test_stream_has_a_limit_and_leaves_nothing(blobs: BlobStore) -> None:
    with pytest.raises(ValueError, match="more than 5 bytes"):
        blobs.put_stream([b"abc", b"def"], max_bytes=5)
    assert files(blobs.folder) == []


def test_a_stream_that_breaks_leaves_nothing(blobs: BlobStore) -> None:
    def broken() -> Iterator[bytes]:
        yield b"abc"
        raise ConnectionResetError("client left")

    with pytest.raises(ConnectionResetError, match="client left"):
        blobs.put_stream(broken())
    assert files(blobs.folder) == []


@pytest.mark.parametrize("name", ["", "0" * 64, "../../etc/passwd", "A" * 64, "é" * 64])
def test_unknown_names(blobs: BlobStore, name: str) -> None:
    assert name not in blobs
    for call in (blobs.get, blobs.path):
        with pytest.raises(NotFoundError):
            call(name)
    assert blobs.delete(name) is False


def test_damage_is_noticed_on_reading(blobs: BlobStore) -> None:
    digest = blobs.put(b"some bytes")
    blobs.path(digest).write_bytes(b"SOME bytes")
    with pytest.raises(StorageError) as caught:
        blobs.get(digest)
    assert caught.value.kind is StorageKind.CORRUPT
    assert digest in str(caught.value)


def test_a_truncated_blob_is_repaired_by_saving_it_again(blobs: BlobStore) -> None:
    digest = blobs.put(b"some bytes")
    blobs.path(digest).write_bytes(b"some")
    assert blobs.put(b"some bytes") == digest
    assert blobs.get(digest) == b"some bytes"


def test_a_full_disk_is_a_typed_error(blobs: BlobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="full") as caught:
        blobs.put(b"some bytes")
    assert caught.value.kind is StorageKind.FULL
    monkeypatch.undo()
    assert files(blobs.folder) == []
    assert blobs.get(blobs.put(b"some bytes")) == b"some bytes"


def test_a_disk_that_fills_up_on_the_way(blobs: BlobStore) -> None:
    """With a real limit on the size of a file, in a process of its own."""
    script = (
        "import resource, signal, sys\n"
        "from db.errors import StorageError\n"
        "from db.stores.blobs import BlobStore\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try:\n"
        "    BlobStore(sys.argv[1]).put_stream([b'x' * 600, b'x' * 600])\n"
        "except StorageError as error:\n"
        "    sys.stdout.write(error.kind)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(blobs.folder)],
        env={**os.environ, "PYTHONPATH": str(Path(db.__file__).parents[1])},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "full", done.stderr
    assert files(blobs.folder) == []


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError) as caught:
        BlobStore(tmp_path / "file" / "blobs")
    assert caught.value.kind is StorageKind.DENIED


def test_the_bytes_are_on_the_disk_before_the_name(
    blobs: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (calls.append("fsync"), fsync(fd))[1])
    monkeypatch.setattr(os, "replace", lambda a, b: (calls.append("rename"), replace(a, b))[1])
    blobs.put(b"some bytes")
    assert calls[:3] == ["fsync", "rename", "fsync"]


def test_sweep_keeps_what_is_named_or_young(blobs: BlobStore) -> None:
    named, old, young = (blobs.put(data) for data in (b"named", b"old", b"young"))
    left_over = blobs.folder / "incoming" / "tmpx"
    left_over.write_bytes(b"1234")
    for path in (blobs.path(named), blobs.path(old), left_over):
        os.utime(path, (1000, 1000))
    os.utime(blobs.path(young), (5000, 5000))
    assert blobs.sweep({named}, 100, clock=lambda: 5050.0) == len(b"old") + 4
    assert set(blobs.digests()) == {named, young}
    assert not left_over.exists()


@pytest.mark.parametrize("how", ["put", "touch"])
def test_saving_or_touching_protects_from_a_sweep(blobs: BlobStore, how: str) -> None:
    digest = blobs.put(b"old")
    os.utime(blobs.path(digest), (1000, 1000))
    assert blobs.put(b"old") == digest if how == "put" else blobs.touch(digest)
    blobs.sweep(set(), 3600)
    assert digest in blobs
    assert not blobs.touch("0" * 64) and not blobs.touch("../token")
