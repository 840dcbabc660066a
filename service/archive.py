"""Safe unpacking of an artifact's tar file from an untrusted source.

This module checks the entries itself, because the extraction filters of `tarfile` appeared in
Python 3.11.4 and the project supports all versions of 3.11.
"""

from __future__ import annotations

import errno
import shutil
import tarfile
from pathlib import Path, PurePosixPath


class ArchiveError(Exception):
    """A tar file has an entry that artifacts never have, such as a link.

    The message names the entry.
    """


def free(folder: Path) -> Path:
    """Return the path `folder` if nothing exists there, not even a broken link.

    Raises:
        FileExistsError: if something exists there.
    """
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
