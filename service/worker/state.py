"""Stores the state of a worker on disk: its id, its leases, finished results, and blobs.

    STATE/SERVER-DIGEST/service-key   the public key of the service, from the first contact
                        0/lock        locked by the worker process that uses the folder `0`
                          id          the id that the worker generated at its first start
                          leases/     leases that are not measured yet
                          spool/      results that the service has not acknowledged
                          aside/      the last results that the service rejected, for inspection
                          blobs/      shared objects and expected outputs by digest

A request is finished when its result is in the spool. If the worker is killed afterwards, the next
process reports the result, and the request is not measured again.
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
"""Limit of the worker processes of one user for one service on one machine."""


ASIDE_RESULTS = 64
"""Limit of the stored results that the service rejected. The oldest are deleted beyond this
limit."""


@dataclass(frozen=True, slots=True)
class Spooled:
    """A finished result in the spool.

    Attributes:
        request_id: the id of the request.
        lease_id: the id of the lease under which the result is reported.
        result_key: a random id of the result.
        result: the result as JSON.
    """

    request_id: str
    lease_id: str
    result_key: str
    result: dict[str, Any]


class StateFolder:
    """The folder with the state of one worker process, locked until the process ends or crashes.

    Attributes:
        path: the folder.
        number: the number of the folder, which no other worker process on this machine uses.
    """

    def __init__(self, base: Path, server: str) -> None:
        """Lock a state folder for a server: the first that no other live worker process uses.

        The folder is created if it does not exist.

        Args:
            base: the folder that contains the state of all workers.
            server: the URL of the service.

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
        """The worker's id, stored by this or an earlier process; None if no valid id is stored."""
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
        """The public key of the service, stored at the first contact; None if none is stored.

        All workers of this user for the service share the key.
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
        """Store a lease on disk, so that the next process reports it as failed after a crash."""
        (self.path / "leases" / request_id).write_text(lease_id)

    def drop(self, request_id: str) -> None:
        (self.path / "leases" / request_id).unlink(missing_ok=True)

    def held(self) -> dict[str, str]:
        """Return the stored leases: the id of each lease by request id.

        A crash may truncate a file, which then contains an invalid lease id. The service rejects
        this id, and the real lease expires.
        """
        return {path.name: path.read_text() for path in (self.path / "leases").iterdir()}

    # the spool

    def spool(self, entry: Spooled) -> None:
        """Write a result to the spool. Raises OSError if the disk is full."""
        data = json.dumps(asdict(entry)).encode()
        write_atomically(self.path / "spool" / f"{entry.request_id}.json", data)

    def spooled(self) -> list[Spooled]:
        """Return the results in the spool, oldest first.

        Unreadable results, from another release or damaged on disk, are moved to the folder
        `aside`.
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
        """Move a result that the service rejected, or that is unreadable, from the spool to
        `aside`.

        If `aside` then has more than ASIDE_RESULTS files, the oldest are deleted.
        """
        name = f"{request_id}.json"
        (self.path / "spool" / name).replace(self.path / "aside" / name)
        kept = sorted((self.path / "aside").iterdir(), key=lambda path: path.stat().st_mtime)
        for path in kept[:-ASIDE_RESULTS]:
            path.unlink(missing_ok=True)

    def forget(self, request_id: str) -> None:
        """Delete from the spool a result that the service has acknowledged."""
        (self.path / "spool" / f"{request_id}.json").unlink(missing_ok=True)


def write_atomically(path: Path, data: bytes) -> None:
    """Replace the content of a file so that a crash cannot leave a partial file.

    After a crash or a power failure, the file has either the complete old content or `data`.
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
