"""Rows are found by how their ids begin, in every store that has ids for people."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sqlalchemy as sa

from tilewright.db.engine import reading, writing
from tilewright.db.errors import AmbiguousIdError, NotFoundError
from tilewright.db.models import TokenRow
from tilewright.db.stores.ids import LEAST_GIVEN, WHOLE, id_of, row_of_id
from tilewright.db.stores.jobs import JobStore
from tilewright.db.stores.models import ModelStore
from tilewright.db.stores.statements import table_of
from tilewright.db.stores.tokens import Scope, TokenStore
from tilewright.db.stores.workers import WorkerStore

_tokens = table_of(TokenRow)


def test_an_id_is_found_by_how_it_begins(
    engine: sa.Engine,
    jobs: JobStore,
    models: ModelStore,
    tokens: TokenStore,
    workers: WorkerStore,
    model_digest: str,
) -> None:
    job = jobs.create(model_digest, "host", "host-key")
    _, token = tokens.create("ci", [Scope.READ])
    worker = workers.register("board", [], {})
    found: list[tuple[Callable[[str], object], str]] = [
        (jobs.get, job.id),
        (jobs.pause, job.id),
        (jobs.cancel, job.id),
        (models.get, model_digest),
        (workers.get, worker.id),
        (tokens.revoke, token.id),
    ]
    for find, whole in found:
        what = "model" if find == models.get else type(find(whole)).__name__.lower()
        assert len(whole) == WHOLE[what.removeprefix("registered")]
        for given in (whole, whole[:LEAST_GIVEN]):
            assert getattr(find(given), "digest" if find == models.get else "id") == whole
        for none in (
            "",
            "%",
            whole[: LEAST_GIVEN - 1],
            whole + "0",
            whole[:6].replace(whole[5], "_"),
        ):
            with pytest.raises(NotFoundError, match="does not exist"):
                find(none)


def test_an_ambiguous_beginning_names_what_it_may_be(engine: sa.Engine, tokens: TokenStore) -> None:
    ids = ["1f0e7", "1f0e77", "1F0E88", "1f0e1", *(f"2f0e{n}" for n in range(7))]
    with writing(engine) as connection:
        for each in ids:
            row = {"id": each, "digest": each, "name": "n", "scopes": [], "created_at": 0.0}
            row["all_owners"] = False
            connection.execute(sa.insert(_tokens).values(row))
    with reading(engine) as connection:
        assert id_of(connection, _tokens.c.id, "1f0e7", "token") == "1f0e7", "a whole id is one"
        assert id_of(connection, _tokens.c.id, "1F0E", "token") == "1F0E88"
        with pytest.raises(AmbiguousIdError, match=r"'1f0e' .* of a token: 1f0e1, 1f0e7, 1f0e77$"):
            id_of(connection, _tokens.c.id, "1f0e", "token")
        with pytest.raises(AmbiguousIdError, match=r", \.\.\.$"):
            id_of(connection, _tokens.c.id, "2f0e", "token")
        few = sa.select(_tokens).where(_tokens.c.id != "1f0e1")
        assert row_of_id(connection, few, _tokens.c.id, "1f0e77", "token").name == "n"
        with pytest.raises(NotFoundError):
            row_of_id(connection, few, _tokens.c.id, "1f0e1", "token")


def test_a_whole_id_that_is_unknown_is_looked_up_once(engine: sa.Engine) -> None:
    """By the index: no row is compared with it."""
    asked: list[str] = []

    def note(_c: object, _cu: object, statement: str, *_: object) -> None:
        asked.append(statement)

    sa.event.listen(engine, "before_cursor_execute", note)
    try:
        with reading(engine) as connection, pytest.raises(NotFoundError):
            id_of(connection, _tokens.c.id, "f" * WHOLE["token"], "token")
    finally:
        sa.event.remove(engine, "before_cursor_execute", note)
    assert sum("FROM tokens" in statement for statement in asked) == 1


def test_a_short_beginning_of_an_id_is_refused_with_the_least_length(jobs: JobStore) -> None:
    with pytest.raises(NotFoundError, match=r"job '0ba' does not exist: .* at least 4 characters"):
        jobs.get("0ba")
    with pytest.raises(NotFoundError, match=r"job '0bad' does not exist$"):
        jobs.get("0bad")
