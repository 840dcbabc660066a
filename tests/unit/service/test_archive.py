"""Unpacking writes plain files below its folder, and nothing else."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from tilewright.service.archive import ArchiveError, unpack


def packed(path: Path, *entries: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w") as archive:
        for entry in entries:
            entry.size = 3 if entry.isreg() else 0
            archive.addfile(entry, io.BytesIO(b"abc"))
    return path


def test_files_and_folders(tmp_path: Path) -> None:
    folder = tarfile.TarInfo("sub")
    folder.type = tarfile.DIRTYPE
    archive = packed(tmp_path / "a.tar", folder, tarfile.TarInfo("sub/x"), tarfile.TarInfo("y/z"))
    unpack(archive, tmp_path / "out")
    assert (tmp_path / "out" / "sub" / "x").read_bytes() == b"abc"
    assert (tmp_path / "out" / "y" / "z").read_bytes() == b"abc"


@pytest.mark.parametrize("name", ["../x", "/tmp/x", "a/../../x"])
def test_a_path_out_of_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    archive = packed(tmp_path / "a.tar", tarfile.TarInfo(name))
    with pytest.raises(ArchiveError, match="is outside of its folder"):
        unpack(archive, tmp_path / "out")
    assert list((tmp_path / "out").rglob("*")) == []


def test_a_link_is_refused(tmp_path: Path) -> None:
    link = tarfile.TarInfo("link")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    with pytest.raises(ArchiveError, match="'link' is not a regular file"):
        unpack(packed(tmp_path / "a.tar", link), tmp_path / "out")
