"""Stores a worker's state on disk: its id, its leases, finished results, and blobs.

    STATE/SERVER-DIGEST/service-key   the public key of the service, from the first contact
                        0/lock        one worker process per folder
                          id          the id that the worker generated at its first start
                          leases/     leases that are not measured yet
                          spool/      results that the service has not acknowledged
                          aside/      the last results that the service rejected, for inspection
                          blobs/      shared objects and expected outputs by digest

A result is finished once it lies in the spool: a worker that is killed afterwards reports it when
it starts again, and never measures it twice.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

MAX_WORKERS = 256
"""Worker processes of one user for one service on one machine."""


ASIDE_RESULTS = 64
"""Largest number of kept results that the service rejected."""


@dataclass(frozen=True, slots=True)
class Spooled:
    """A finished result in the spool.

    Attributes:
        request_id: the request.
        lease_id: the lease under which it is reported.
        result_key: a random id of the result.
        result: the result as JSON.
    """

    request_id: str
    lease_id: str
    result_key: str
    result: dict[str, Any]


class StateFolder:
    """A worker's folder on disk. It is locked until this process ends, by any cause.

    Attributes:
        path: the folder.
        number: distinguishes it from the folders of other workers on this machine.
    """

    def __init__(self, base: Path, server: str) -> None:
        """Lock the first folder that no live worker uses.

        Raises:
            OSError: if the folder cannot be written.
        """
        base = base.absolute()
        name = hashlib.sha256(server.encode()).hexdigest()[:16]
        for number in range(MAX_WORKERS):
            self.path = base / name / str(number)
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = (self.path / "lock").open("w")
            try:
                # the kernel drops the lock with the process, also after a kill -9
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._lock.close()
                continue
            break
        else:
            raise OSError(f"{MAX_WORKERS} workers use '{base}' already")
        self.number = number
        for part in ("leases", "spool", "aside", "blobs"):
            (self.path / part).mkdir(exist_ok=True)

    def close(self) -> None:
        self._lock.close()

    @property
    def worker_id(self) -> str | None:
        """The id that was stored by this or an earlier process; None if the file has no valid
        id."""
        try:
            text = (self.path / "id").read_text(errors="replace").strip()
        except OSError:
            return None
        return text if re.fullmatch("[0-9a-f]{32}", text) else None

    @worker_id.setter
    def worker_id(self, value: str) -> None:
        write_atomically(self.path / "id", value.encode())

    @property
    def service_key(self) -> str | None:
        """The public key of the service from the first contact; None before it.

        All workers of this machine share it.
        """
        try:
            return (self.path.parent / "service-key").read_text().strip() or None
        except OSError:
            return None

    @service_key.setter
    def service_key(self, value: str) -> None:
        write_atomically(self.path.parent / "service-key", value.encode())

    @property
    def blobs(self) -> Path:
        return self.path / "blobs"

    # leases: request id -> lease id, of the requests that are not measured yet

    def hold(self, request_id: str, lease_id: str) -> None:
        """Store a lease on disk. After a crash, the next process returns it before it expires."""
        (self.path / "leases" / request_id).write_text(lease_id)

    def drop(self, request_id: str) -> None:
        (self.path / "leases" / request_id).unlink(missing_ok=True)

    def held(self) -> dict[str, str]:
        """Return the stored leases: lease ids by request id.

        A file truncated by a crash contains a lease id that the service does not know; the real
        lease then expires.
        """
        return {path.name: path.read_text() for path in (self.path / "leases").iterdir()}

    # the spool

    def spool(self, entry: Spooled) -> None:
        """Store a result in the spool, which finishes it. Raises OSError if the disk is full."""
        data = json.dumps(asdict(entry)).encode()
        write_atomically(self.path / "spool" / f"{entry.request_id}.json", data)

    def spooled(self) -> list[Spooled]:
        """Return the results in the spool, the oldest first.

        Unreadable results, written by another release or damaged on the disk, are moved to the
        folder `aside`.
        """
        paths = [p for p in (self.path / "spool").iterdir() if p.suffix == ".json"]
        paths.sort(key=lambda path: path.stat().st_mtime)
        return [entry for path in paths if (entry := self.find_spooled(path.stem)) is not None]

    def find_spooled(self, request_id: str) -> Spooled | None:
        path = self.path / "spool" / f"{request_id}.json"
        try:
            return Spooled(**json.loads(path.read_text()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError):
            self.set_aside(request_id)
            return None

    def set_aside(self, request_id: str) -> None:
        """Move a result from the spool to the folder `aside`.

        The service rejected it, or it is unreadable. If there are too many, the oldest ones are
        deleted.
        """
        name = f"{request_id}.json"
        (self.path / "spool" / name).replace(self.path / "aside" / name)
        kept = sorted((self.path / "aside").iterdir(), key=lambda path: path.stat().st_mtime)
        for path in kept[:-ASIDE_RESULTS]:
            path.unlink(missing_ok=True)

    def forget(self, request_id: str) -> None:
        """Delete a result that the service has acknowledged."""
        (self.path / "spool" / f"{request_id}.json").unlink(missing_ok=True)


def write_atomically(path: Path, data: bytes) -> None:
    """Replace the content of a file with `data`.

    After a crash or a power failure, the file has either the complete old or the complete new
    content.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
