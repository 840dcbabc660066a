"""Copies of an empty database."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

from tilewright.db.engine import open_engine
from tilewright.db.migrate import upgrade


def lay_database(folder: Path) -> None:
    """Put an empty database into a data folder, where the settings expect it.

    Creating one takes ten times as long as copying it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tilewright.db").write_bytes(_empty())


@cache
def _empty() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "empty.db")
        engine = open_engine(f"sqlite:///{path}")
        upgrade(engine)
        engine.dispose()
        return path.read_bytes()
