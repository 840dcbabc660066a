"""The folder of kept things: complete entries, a bound, several processes, hostile folders."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import pytest

from tilewright.compiler.specialise import cache_folder as kept_folder
from tilewright.compiler.specialise.cache_folder import CacheFolder

DAY = 86_400.0


def key(name: str) -> str:
    return sha256(name.encode()).hexdigest()


def writes(text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / "file").write_text(text)


class Clock:
    def __init__(self) -> None:
        self.now = 1e9

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def kept(tmp_path: Path, clock: Clock) -> CacheFolder:
    return CacheFolder(tmp_path / "kept", 100, clock)


def names(kept: CacheFolder) -> set[str]:
    return {path.name for path in kept.path.iterdir()}


def test_what_is_kept_is_found(kept: CacheFolder) -> None:
    assert kept.find(key("a")) is None
    made = kept.keep(key("a"), writes("text"))
    assert made is not None and made == kept.find(key("a"))
    assert (made / "file").read_text() == "text"
    assert kept.path.stat().st_mode & 0o777 == 0o700
    kept.remove(key("a"))
    assert kept.find(key("a")) is None and not names(kept)
    kept.remove(key("a"))  # another process was first


def test_an_entry_that_is_there_stays(kept: CacheFolder) -> None:
    kept.keep(key("a"), writes("first"))
    again = kept.keep(key("a"), writes("second"))
    assert again is not None and (again / "file").read_text() == "first"
    assert names(kept) == {key("a")}


@pytest.mark.parametrize("exchanges", [True, False])
def test_an_entry_is_replaced_once_the_other_is_complete(
    kept: CacheFolder, exchanges: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not exchanges:
        monkeypatch.setattr(kept_folder, "_exchange", lambda *_: False)
    kept.keep(key("b"), writes("other"))
    kept.keep(key("a"), writes(60 * "1"))

    def second(folder: Path) -> None:
        entry = kept.find(key("a"))
        assert entry is not None and (entry / "file").read_text() == 60 * "1"
        (folder / "file").write_text(60 * "2")

    def fails(folder: Path) -> None:
        second(folder)
        raise OSError(28, "No space left on device")

    for make, expected in ((fails, "1"), (second, "2")):
        kept.keep(key("a"), make, replacing=True)
        entry = kept.find(key("a"))
        assert entry is not None and (entry / "file").read_text() == 60 * expected
        assert names(kept) == {key("a"), key("b")}, "what is replaced takes none of the limit"
    kept.remove(key("a"))
    (kept.path / key("a")).write_text("no folder")
    kept.keep(key("a"), writes("third"), replacing=True)
    assert kept.find(key("a")) is not None and names(kept) == {key("a"), key("b")}


def replace_often(path: Path, text: str) -> None:
    for _ in range(50):
        CacheFolder(path, 1 << 20).keep(key("a"), writes(text), replacing=True)


def test_readers_find_an_entry_that_processes_replace(kept: CacheFolder) -> None:
    kept.keep(key("a"), writes("0"))
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=replace_often, args=(kept.path, text)) for text in "12"]
    for each in writers:
        each.start()
    while any(each.is_alive() for each in writers):
        entry = kept.find(key("a"))
        assert entry is not None and (entry / "file").read_text() in ("0", "1", "2")
    for each in writers:
        each.join()
        assert each.exitcode == 0
    assert names(kept) == {key("a")}


def test_a_failure_leaves_nothing(kept: CacheFolder) -> None:
    def fails(folder: Path) -> None:
        (folder / "half").write_text("half")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        kept.keep(key("a"), fails)
    assert not names(kept)


def test_a_full_disk_is_no_failure(kept: CacheFolder) -> None:
    def full(folder: Path) -> None:
        raise OSError(28, "No space left on device")

    assert kept.keep(key("a"), full) is None
    assert not names(kept)


def test_the_entry_used_longest_ago_goes_first(kept: CacheFolder) -> None:
    for name in "abc":
        kept.keep(key(name), writes("x" * 30))
    assert kept.find(key("a")) is not None  # used now
    kept.keep(key("d"), writes("x" * 30))
    assert names(kept) == {key("a"), key("c"), key("d")}
    assert kept.keep(key("e"), writes("x" * 101)) is None
    assert names(kept) == {key("a"), key("c"), key("d")}


def test_what_a_dead_process_left_goes_after_a_day(kept: CacheFolder, clock: Clock) -> None:
    kept.keep(key("a"), writes("text"))
    for name in (".new." + "0" * 16, ".old." + "1" * 16, "somebody's"):
        (kept.path / name).mkdir()
        os.utime(kept.path / name, (clock.now, clock.now))
    kept.keep(key("b"), writes("text"))
    assert len(names(kept)) == 5
    clock.now += DAY
    kept.keep(key("c"), writes("text"))
    assert names(kept) == {key("a"), key("b"), key("c"), "somebody's"}


@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_a_folder_that_others_may_write_is_not_used(kept: CacheFolder, mode: int) -> None:
    kept.keep(key("a"), writes("text"))
    kept.path.chmod(mode)
    assert kept.find(key("a")) is None
    assert kept.keep(key("b"), writes("text")) is None
    assert names(kept) == {key("a")}


def test_a_folder_of_another_user_is_not_used(
    kept: CacheFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.keep(key("a"), writes("text"))
    other = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: other)
    assert kept.find(key("a")) is None
    assert kept.keep(key("b"), writes("text")) is None


def test_nothing_is_kept_where_no_folder_says_whose_it_is(
    kept: CacheFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.keep(key("a"), writes("text"))
    monkeypatch.delattr(os, "getuid")
    assert kept.find(key("a")) is None
    assert kept.keep(key("b"), writes("text")) is None


@pytest.mark.parametrize("planted", ["link", "writable", "file"])
def test_what_others_put_into_the_folder_is_not_used(
    kept: CacheFolder, tmp_path: Path, planted: str
) -> None:
    """While they could write into it, before its user shut them out."""
    kept.keep(key("a"), writes("text"))
    kept.remove(key("a"))
    entry = kept.path / key("a")
    if planted == "link":
        (tmp_path / "theirs").mkdir()
        entry.symlink_to(tmp_path / "theirs")
    elif planted == "file":
        entry.write_text("theirs")
    else:
        entry.mkdir()
        entry.chmod(0o777)
    assert kept.find(key("a")) is None
    made = kept.keep(key("a"), writes("text"))
    assert made is not None and (made / "file").read_text() == "text" and not made.is_symlink()
    assert names(kept) == {key("a")}
    assert planted != "link" or (tmp_path / "theirs").is_dir()


def test_a_file_in_the_way_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("a file")
    kept = CacheFolder(tmp_path / "kept", 100)
    assert kept.find(key("a")) is None
    assert kept.keep(key("a"), writes("text")) is None


@pytest.mark.parametrize("bad", ["", "..", "a/b", key("a").upper(), key("a") + "\n"])
def test_a_key_is_a_digest(kept: CacheFolder, bad: str) -> None:
    with pytest.raises(ValueError, match="SHA-256"):
        kept.find(bad)


def _many(path: Path, seed: int) -> None:
    kept = CacheFolder(path, 40)
    for step in range(60):
        name = str((step * 7 + seed) % 5)
        made = kept.find(key(name)) or kept.keep(key(name), writes(name * 10))
        if made is not None:
            with suppress(FileNotFoundError):  # another process removed it since
                assert (made / "file").read_text() == name * 10


def test_processes_share_it(tmp_path: Path) -> None:
    """Each finds whole entries or none, whichever process writes and removes them."""
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_many, args=(tmp_path / "kept", seed)) for seed in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    kept = CacheFolder(tmp_path / "kept", 40)
    assert all((path / "file").read_text() for _, _, path in kept.entries())
    assert not [name for name in names(kept) if name.startswith(".")]
