"""A release with one more migration than this one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tilewright.db import migrate
from tilewright.db.migrate import head_revision

LATER = "9998"

_MIGRATION = f'''
import sqlalchemy as sa
from alembic import op

revision = "{LATER}"
down_revision = "{head_revision()}"


def upgrade() -> None:
    op.create_table("later", sa.Column("name", sa.Text(), primary_key=True))
    op.create_index("ix_later", "later", ["name"])
'''


@contextmanager
def later_release(folder: Path) -> Iterator[None]:
    """Migrations of a later release, in a new folder: they add a table "later" and its index."""
    shutil.copytree(migrate._MIGRATIONS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "versions" / f"v{LATER}_later.py").write_text(_MIGRATION)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(migrate, "_MIGRATIONS", folder)
        yield
