"""Commands that manage access tokens (`tilewright token`), and the command `server audit`."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.service.cli.common import (
    JsonOption,
    ServerOption,
    TokenOption,
    UserError,
    connect,
    load_settings,
    write_down,
)
from tilewright.service.cli.terminal import console, note, say, say_json

if TYPE_CHECKING:
    from tilewright.service.api.schemas.tokens import AuditView


def create_token(
    name: Annotated[str, typer.Argument(help="Name of the token's owner")],
    scope: Annotated[
        list[str], typer.Option("--scope", help="submit, read, measure or admin; repeatable")
    ],
    days: Annotated[float | None, typer.Option("--days", min=0.01, help="Lifetime")] = None,
    max_open_jobs: Annotated[
        int | None, typer.Option("--max-open-jobs", min=0, help="Quota of open jobs")
    ] = None,
    max_running_jobs: Annotated[
        int | None, typer.Option("--max-running-jobs", min=0, help="Quota of running jobs")
    ] = None,
    all_owners: Annotated[
        bool, typer.Option("--all-owners", help="See the jobs and models of all owners")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Create a bearer token in the database, and print its secret.

    The token sees the jobs and models of tokens of the same name. With --all-owners or the scope
    admin, it sees all jobs and models. Every token sees all tuning records.

    Example: tilewright token create board --scope measure --days 90
    """
    from pydantic import TypeAdapter, ValidationError

    from tilewright.compiler.errors import unknown_choice
    from tilewright.db.stores.audit import Action
    from tilewright.db.stores.tokens import Scope
    from tilewright.service.api.schemas.fields import Name
    from tilewright.service.storage import open_storage

    try:
        TypeAdapter(Name).validate_python(name)
    except ValidationError as error:
        why = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise UserError(f"{name!r} cannot be the name of a token: {why}") from error
    for text in scope:
        if text not in list(Scope):
            raise UserError(unknown_choice("--scope", text, Scope))
    scopes = [Scope(text) for text in scope]
    storage = open_storage(load_settings())
    try:
        with storage.together():
            secret, made = storage.tokens.create(
                name,
                scopes,
                lifetime_seconds=None if days is None else days * 86400,
                max_open_jobs=max_open_jobs,
                max_running_jobs=max_running_jobs,
                all_owners=all_owners,
            )
            write_down(
                storage.audit,
                "token create",
                Action.TOKEN_CREATED,
                made.id,
                name=made.name,
                scopes=sorted(scopes),
                all_owners=all_owners,
                expires_at=made.expires_at,
            )
    finally:
        storage.close()
    if as_json:
        from tilewright.service.api.views import token_view

        say_json({**token_view(made).model_dump(mode="json"), "secret": secret})
    else:
        say(secret)


def list_tokens(
    server: ServerOption = None, token: TokenOption = None, as_json: JsonOption = False
) -> None:
    """List the tokens of a service, with the times of last use and of expiry.

    Example: tilewright token list --json
    """
    from tilewright.service.show.console import rich_table
    from tilewright.service.show.table import table
    from tilewright.service.show.tables.tokens import tokens

    with connect(server, token) as client:
        found = client.tokens()
    if as_json:
        say_json(list(found))
        return
    console().print(rich_table(table(tokens(time.time()), found)))


TokenName = Annotated[str, typer.Argument(metavar="ID", help="The token's id, or its start")]


def rotate(
    token_id: TokenName,
    grace: Annotated[
        float, typer.Option("--grace", min=0.0, help="Seconds that the old secret stays valid")
    ] = 3600.0,
    days: Annotated[
        float | None, typer.Option("--days", min=0.01, help="Lifetime from now on")
    ] = None,
    server: ServerOption = None,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give a token a new secret, and print it.

    Example: tilewright token rotate 5c2e --grace 600
    """
    with connect(server, token) as client:
        lifetime = None if days is None else days * 86400.0
        made = client.rotate_token(token_id, grace, lifetime)
    note(f"the old secret is valid for another {grace:g} s")
    if as_json:
        say_json(made)
    else:
        say(made.secret)


def revoke(
    token_id: TokenName,
    server: ServerOption = None,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """Revoke a token at once.

    Example: tilewright token revoke 5c2e
    """
    with connect(server, token) as client:
        ended = client.revoke_token(token_id)
    if as_json:
        say_json(ended)
        return
    console().print(f"token {ended.id} of {ended.name} is revoked", soft_wrap=True, markup=False)


def audit(
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=1000, help="Maximum number of entries")
    ] = 30,
    action: Annotated[
        str | None, typer.Option("--action", help="Only this action, such as token.revoked")
    ] = None,
    subject: Annotated[
        str | None, typer.Option("--subject", help="Only about this token, job, worker, ...")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line")] = False,
    server: ServerOption = None,
    token: TokenOption = None,
) -> None:
    """List the entries of the audit log: actor, action, time and address, the newest first.

    Example: tilewright server audit --action token.revoked --limit 100
    """
    from tilewright.service.show.console import rich_table
    from tilewright.service.show.table import CellKind, Column, table
    from tilewright.service.show.units import moment

    with connect(server, token) as client:
        entries = client.audit(limit, action, subject)
    if as_json:
        for entry in entries:
            say(entry.model_dump_json())
        return
    described: tuple[Column[AuditView], ...] = (
        Column("when", lambda entry: moment(entry.at), CellKind.MOMENT),
        Column("who", lambda entry: entry.actor_name, CellKind.NAME),
        Column("from", lambda entry: entry.origin, CellKind.TEXT),
        Column("action", lambda entry: entry.action, CellKind.TEXT),
        Column("subject", lambda entry: entry.subject, CellKind.TEXT),
        Column("detail", lambda entry: json.dumps(entry.detail), CellKind.TEXT),
    )
    console().print(rich_table(table(described, entries)))
