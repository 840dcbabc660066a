"""Unpacking an artifact's tar file without trusting it.

`tarfile`'s own filters came with Python 3.11.4, and 3.11 is enough for everything else here.
"""

from __future__ import annotations

import errno
import shutil
import tarfile
from pathlib import Path, PurePosixPath


class ArchiveError(Exception):
    """An archive holds what no artifact holds; the message names it."""


def free(folder: Path) -> Path:
    """The folder, if nothing is there. Raises FileExistsError."""
    if folder.exists() or folder.is_symlink():
        raise FileExistsError(errno.EEXIST, "is there already", str(folder))
    return folder


def unpack(archive: Path, folder: Path) -> None:
    """Write the files of a tar file below `folder`, which is made.

    Raises:
        ArchiveError: if an entry is neither file nor folder, or would land elsewhere.
        tarfile.TarError: if it is no tar file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as opened:
        for entry in opened:
            path = PurePosixPath(entry.name)
            if path.is_absolute() or ".." in path.parts:
                raise ArchiveError(f"the archive's entry '{entry.name}' leaves its folder")
            if entry.isdir():
                (folder / path).mkdir(parents=True, exist_ok=True)
                continue
            source = opened.extractfile(entry) if entry.isreg() else None
            if source is None:
                raise ArchiveError(f"the archive's entry '{entry.name}' is no plain file")
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            with source, (folder / path).open("wb") as file:
                shutil.copyfileobj(source, file)
