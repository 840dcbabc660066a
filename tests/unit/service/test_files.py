"""Files are replaced whole or not at all, through links, and not if they are not regular files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tilewright.service.files import replacing


def test_what_was_there_stays_until_the_new_one_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with replacing(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new" and list(tmp_path.iterdir()) == [path]
    with pytest.raises(ZeroDivisionError), replacing(path) as file:
        file.write(b"half")
        file.write(bytes(1 // 0))
    assert path.read_bytes() == b"new" and list(tmp_path.iterdir()) == [path]


def test_it_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, synced = tmp_path / "a", []

    def fsync(number: int) -> None:
        synced.append((os.fstat(number).st_size, path.exists()))

    monkeypatch.setattr("tilewright.service.files.os.fsync", fsync)
    with replacing(path) as file:
        file.write(b"new")
    assert synced == [(3, False)] and path.read_bytes() == b"new"


@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_and_leads_to_the_new_file(tmp_path: Path, there: bool) -> None:
    (tmp_path / "away").mkdir()
    target, link = tmp_path / "away" / "a", tmp_path / "link"
    if there:
        target.write_bytes(b"old")
    link.symlink_to(Path("away") / "a")
    with replacing(link) as file:
        file.write(b"new")
    assert link.is_symlink() and target.read_bytes() == b"new"
    assert list((tmp_path / "away").iterdir()) == [target]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes in folders on this system")
def test_a_pipe_is_written_into(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with replacing(pipe) as file:
            file.write(b"new")
        assert os.read(reader, 100) == b"new"
    finally:
        os.close(reader)
    assert pipe.is_fifo() and list(tmp_path.iterdir()) == [pipe]


def test_errors_name_the_file(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "away" / "a"):
        with pytest.raises(OSError, match="directory") as caught, replacing(path) as file:
            file.write(b"new")
        assert caught.value.filename == str(path)
