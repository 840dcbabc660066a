"""Stamps: another one whenever anything was committed, by whomever."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from db.changes import Changes
from db.engine import writing
from db.errors import StorageError
from db.stores.tokens import Scope, TokenStore


def test_a_stamp_changes_with_every_commit_and_with_nothing_else(engine: sa.Engine) -> None:
    changes, tokens = Changes(engine), TokenStore(engine)
    first = changes.stamp()
    assert changes.stamp() == first
    tokens.list()
    assert changes.stamp() == first, "who reads changes nothing"
    seen = {first}
    for _ in range(3):
        tokens.create("ci", [Scope.READ])
        seen.add(changes.stamp())
    assert len(seen) == 4
    changes.close()


def test_what_is_written_and_not_committed_is_stamped_when_it_is_committed(
    engine: sa.Engine,
) -> None:
    changes = Changes(engine)
    with writing(engine) as connection:
        connection.exec_driver_sql("DELETE FROM notices")
        connection.exec_driver_sql("INSERT INTO notices (topic) VALUES ('x')")
        within = changes.stamp()
    assert changes.stamp() != within
    changes.close()


def test_a_stamp_of_a_new_connection_is_no_old_one(engine: sa.Engine) -> None:
    """A count of SQLite's begins anew with each connection."""
    changes = Changes(engine)
    first = changes.stamp()
    changes.close()
    assert changes.stamp() != first
    changes.close()


def test_a_connection_that_broke_is_an_error_once(engine: sa.Engine) -> None:
    changes = Changes(engine)
    first = changes.stamp()
    assert changes._own is not None
    changes._own.driver.close()
    if engine.dialect.name == "sqlite":
        changes.close()
    else:
        with pytest.raises(StorageError):
            changes.stamp()
    assert changes.stamp() != first
    changes.close()
