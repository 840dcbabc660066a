"""The whole service in processes of its own, as its users start it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tilewright.service.client import Client, ClientError


def own_folders(folder: Path) -> Path:
    """A folder in which a user has packages named like the four folders of this repository."""
    for name in ("compiler", "tuner", "db", "service"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text("raise ImportError('a package of the user')")
    return folder


@contextmanager
def served(folder: Path, database_url: str = "") -> Iterator[Client]:
    """`tilewright server run` with its own tuner and worker; a client of the owner.

    It ends with 0, or the test fails with the log. It starts in a folder with packages of a user's
    own, and must import none of them.
    """
    here = own_folders(folder / "here")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url, data = f"http://127.0.0.1:{port}", folder / "data"
    environment = {
        **os.environ,
        "TILEWRIGHT_DATA_FOLDER": str(data),
        "TILEWRIGHT_DATABASE_URL": database_url,
        "TILEWRIGHT_BUILDERS": "1",
    }
    log = (folder / "log").open("wb")
    process = subprocess.Popen(
        [sys.executable, "-m", "tilewright.service.cli", "server", "run", "--port", str(port)],
        env=environment,
        cwd=here,
        stdout=log,
        stderr=log,
    )
    try:
        ends = time.monotonic() + 60
        while True:
            try:
                Client(url, "").health()
                break
            except ClientError:
                assert process.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < ends
                time.sleep(0.05)
        with Client(url, (data / "token").read_text().strip()) as client:
            yield client
    finally:
        process.terminate()
        status = process.wait(30)
        log.close()
    said = (folder / "log").read_text()
    assert status == 0 and "the worker ended" not in said and "the tuner ended" not in said, said
