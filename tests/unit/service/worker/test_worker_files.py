"""The files that a worker keeps on its disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.service.workers import REFERENCE, FakeHarness, Running, queue, state
from tests.waiting import until
from tilewright.db.storage import Storage
from tilewright.db.stores.leases import RequestState
from tilewright.service.worker.cache import BlobCache
from tilewright.service.worker.http import Api, Unreachable
from tilewright.service.worker.options import WorkerOptions, default_spool
from tilewright.service.worker.process import main
from tilewright.service.worker.state import Spooled, StateFolder
from tilewright.tuner.protocol.blobs import digest_bytes


def test_a_full_disk_does_not_lose_a_result(
    storage: Storage, start: Callable[[], Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: StateFolder, entry: Spooled) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(StateFolder, "spool", full)
    queue(storage, "a")
    running = start()
    until(lambda: state(storage, "a") is RequestState.DONE)
    assert any("No space left" in line for line in running.log)


def test_a_blob_that_was_damaged_on_the_disk_is_not_loaded(
    storage: Storage,
    start: Callable[[], Running],
    harness: type[FakeHarness],
    options: WorkerOptions,
) -> None:
    """The expected output is kept for the next batch; meanwhile it was overwritten."""
    queue(storage, "a")
    running = start()
    until(lambda: state(storage, "a") is RequestState.DONE)
    (kept,) = options.spool.rglob(f"blobs/{digest_bytes(REFERENCE)}")
    kept.write_bytes(b"X" * len(REFERENCE))
    queue(storage, "b")
    until(lambda: state(storage, "b") is RequestState.DONE)
    assert harness.measured == ["a", "b"]
    assert any("was damaged on the disk" in line for line in running.log)
    assert kept.read_bytes() == REFERENCE


def test_two_workers_never_share_a_folder(tmp_path: Path) -> None:
    first = StateFolder(tmp_path, "http://a")
    second = StateFolder(tmp_path, "http://a")
    assert first.path != second.path
    first.close()
    assert StateFolder(tmp_path, "http://a").path == first.path


def test_a_spooled_result_survives_and_is_forgotten(tmp_path: Path) -> None:
    files = StateFolder(tmp_path, "s")
    entry = Spooled("r", "3" * 32, "key", {"x": [1, 2]})
    files.spool(entry)
    files.close()
    again = StateFolder(tmp_path, "s")
    assert again.spooled() == [entry]
    assert again.find_spooled("r") == entry
    again.forget("r")
    assert again.spooled() == []


def test_the_cache_keeps_what_was_used_last_and_what_is_needed(tmp_path: Path) -> None:
    cache = BlobCache(tmp_path, 250)
    for number, name in enumerate(("needed", "old", "new")):
        cache.path(name).write_bytes(b"x" * 100)
        import os

        os.utime(cache.path(name), (number, number))
    cache.trim({"needed"})
    assert ("needed" in cache, "old" in cache, "new" in cache) == (True, False, True)


def test_a_file_may_go_while_the_cache_looks_at_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A download ends, and its part becomes the blob, or another thread makes room."""
    cache = BlobCache(tmp_path, 10)
    (tmp_path / ("a" * 64)).write_bytes(bytes(20))
    gone = [tmp_path / ("b" * 64), tmp_path / f".{'c' * 64}"]
    listed = [*tmp_path.iterdir(), *gone]
    monkeypatch.setattr(Path, "iterdir", lambda self: iter(listed))
    assert cache.refusal({"d" * 64: 1}) is None
    cache.trim(())
    assert not (tmp_path / ("a" * 64)).exists()


def test_a_damaged_download_does_not_appear(server: Any, owner: str, tmp_path: Path) -> None:
    digest = server.storage.blobs.put(b"right")
    server.storage.blobs.place.path(digest).write_bytes(b"wrong")
    with pytest.raises(Unreachable, match="damaged"):
        Api(server.url, owner).download(f"/v1/blobs/{digest}", digest, tmp_path / digest)
    assert list(tmp_path.iterdir()) == [tmp_path / "data"]


def test_a_spool_that_cannot_be_written_is_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    status = main(["--server", "http://x", "--token", "t", "--spool", str(tmp_path / "file")])
    assert status == 1
    assert "cannot be used" in capsys.readouterr().err


def test_the_spool_lies_where_the_owner_or_the_desktop_says() -> None:
    home = Path.home() / ".local" / "state" / "tilewright"
    assert default_spool({}) == default_spool({"XDG_STATE_HOME": ""}) == home
    assert default_spool({"XDG_STATE_HOME": "/state"}) == Path("/state/tilewright")
    assert default_spool({"XDG_STATE_HOME": "/state", "TILEWRIGHT_SPOOL": "/s"}) == Path("/s")
