"""Safe unpacking of an artifact's tar file from an untrusted source.

The filters of `tarfile` need Python 3.11.4, and the rest of the project runs on 3.11.
"""

from __future__ import annotations

import errno
import shutil
import tarfile
from pathlib import Path, PurePosixPath


class ArchiveError(Exception):
    """An archive contains an entry that no artifact contains; the message names it."""


def free(folder: Path) -> Path:
    """Return the path if it does not exist. Raises FileExistsError otherwise."""
    if folder.exists() or folder.is_symlink():
        raise FileExistsError(errno.EEXIST, "exists already", str(folder))
    return folder


def unpack(archive: Path, folder: Path) -> None:
    """Create `folder`, and unpack a tar file into it.

    Raises:
        ArchiveError: if an entry is neither file nor folder, or lies outside the folder.
        tarfile.TarError: if `archive` is not a tar file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as opened:
        for entry in opened:
            path = PurePosixPath(entry.name)
            if path.is_absolute() or ".." in path.parts:
                raise ArchiveError(f"the archive's entry '{entry.name}' is outside of its folder")
            if entry.isdir():
                (folder / path).mkdir(parents=True, exist_ok=True)
                continue
            source = opened.extractfile(entry) if entry.isreg() else None
            if source is None:
                raise ArchiveError(f"the archive's entry '{entry.name}' is not a regular file")
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            with source, (folder / path).open("wb") as file:
                shutil.copyfileobj(source, file)
