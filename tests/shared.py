"""Data that the processes of one test run share: written by the first that needs it, read by the
others."""

from __future__ import annotations

import fcntl
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

T = TypeVar("T")


def run_folder(factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """A folder that all processes of this run share. pytest removes it with its temporary files.

    Args:
        worker_id: pytest-xdist's name of this process, "master" where it is the only one.
    """
    own = factory.getbasetemp()
    return own if worker_id == "master" else own.parent


def made_once(folder: Path, name: str, make: Callable[[], T]) -> T:
    """The return value of `make`, as the first process of the run has pickled it.

    The first process gets its own object, not a copy from the file.
    """
    path = folder / f"{name}.pickle"
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists():
            found: T = pickle.loads(path.read_bytes())
            return found
        made = make()
        path.write_bytes(pickle.dumps(made, pickle.HIGHEST_PROTOCOL))
        return made
