"""Replaces files atomically."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Yield a temporary file that replaces `path` if the body of the with statement succeeds.

    If `path` is a symbolic link, the link's target is replaced. A device or a pipe is opened and
    written directly.

    Raises:
        OSError: if the file cannot be written; the error's attribute `filename` is `path`.
    """
    try:
        if path.exists() and not path.is_file():
            with path.open("wb") as file:  # a device or a pipe; fails for a folder
                yield file
            return
        place = Path(os.path.realpath(path))
        temporary = place.with_name(f".{place.name}.{secrets.token_hex(4)}")
        try:
            with temporary.open("xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(place)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error
