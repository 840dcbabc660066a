"""Commands about who may do what, and who did: tokens and the audit log."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlencode

import typer

from tilewright.service.cli.common import (
    JsonOption,
    ServerOption,
    TokenOption,
    connect,
    no_options_before,
)
from tilewright.service.cli.terminal import complain, console, say, say_json

if TYPE_CHECKING:
    from tilewright.service.api.schemas.tokens import TokenView


MOST_LINK_MINUTES = 24 * 60.0
"""A link is for a while: who wants more makes another one."""


def add_to(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = typer.Typer()
    group.callback(invoke_without_command=True)(tokens)
    group.command()(rotate)
    group.command()(revoke)
    group.command()(link)
    app.add_typer(group, name="tokens")
    app.command()(audit)


def tokens(
    context: typer.Context,
    server: ServerOption = None,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """The tokens of a service, when each was used last, and until when it holds.

    Example: tilewright tokens --json
    """
    if context.invoked_subcommand is not None:
        no_options_before(context, server, token, as_json)
        return
    from rich.text import Text

    from tilewright.service.cli.view import make_table

    table = make_table("<token", "<name", "<scopes", "<sees", "<made", "<last used", "<state")
    with connect(server, token) as client:
        found = client.tokens()
    if as_json:
        say_json(list(found))
        return
    for each in found:
        table.add_row(
            each.id,
            Text(each.name),
            ", ".join(each.scopes),
            "all owners" if each.all_owners else "its own",
            _moment(each.created_at),
            _moment(each.last_used_at),
            _state(each),
        )
    console().print(table)


TokenName = Annotated[str, typer.Argument(metavar="ID", help="Its id, or how that starts")]


def rotate(
    token_id: TokenName,
    grace: Annotated[
        float, typer.Option("--grace", min=0.0, help="Seconds that the old secret is taken yet")
    ] = 3600.0,
    days: Annotated[
        float | None, typer.Option("--days", min=0.01, help="Lifetime from now on")
    ] = None,
    server: ServerOption = None,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give a token a new secret, and print it.

    Example: tilewright tokens rotate 5c2e --grace 600
    """
    with connect(server, token) as client:
        lifetime = None if days is None else days * 86400.0
        made = client.rotate_token(token_id, grace, lifetime)
    complain(f"the secret before is taken for {grace:g} s yet")
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
    """End a token at once.

    Example: tilewright tokens revoke 5c2e
    """
    with connect(server, token) as client:
        ended = client.revoke_token(token_id)
    if as_json:
        say_json(ended)
        return
    console().print(f"token {ended.id} of {ended.name} is revoked", soft_wrap=True, markup=False)


def link(
    name: Annotated[str, typer.Option("--name", help="What the worker is called")] = "page",
    minutes: Annotated[
        float, typer.Option("--minutes", min=1.0, max=MOST_LINK_MINUTES, help="How long it holds")
    ] = 60.0,
    server: ServerOption = None,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """An address that makes the browser that opens it a measurement worker, for a while.

    Its token measures and does nothing else. It is in the fragment, which browsers send to nobody.

    Example: tilewright tokens link --name phone --minutes 30
    """
    with connect(server, token) as client:
        made = client.create_token(name, ["measure"], 60.0 * minutes)
        url = f"{client.server}/worker#{urlencode({'token': made.secret, 'name': name})}"
    if as_json:
        say_json({"url": url, "token": made})
    else:
        say(url)
    complain(f"token {made.id}: it holds for {minutes:g} min, 'tokens revoke' ends it sooner")


def audit(
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="So many")] = 30,
    action: Annotated[
        str | None, typer.Option("--action", help="Only these, such as token.revoked")
    ] = None,
    subject: Annotated[
        str | None, typer.Option("--subject", help="Only about this token, job, worker, ...")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line")] = False,
    server: ServerOption = None,
    token: TokenOption = None,
) -> None:
    """Who did what, when, and from where; the newest first.

    Example: tilewright audit --action token.revoked --limit 100
    """
    from rich.text import Text

    from tilewright.service.cli.view import make_table

    with connect(server, token) as client:
        entries = client.audit(limit, action, subject)
    if as_json:
        for entry in entries:
            say(entry.model_dump_json())
        return
    table = make_table("<when", "<who", "<from", "<action", "<subject", "<detail")
    for entry in entries:
        table.add_row(
            _moment(entry.at),
            Text(entry.actor_name),
            Text(entry.origin),
            Text(entry.action),
            Text(entry.subject),
            Text(json.dumps(entry.detail)),
        )
    console().print(table)


def _state(token: TokenView) -> str:
    if token.revoked_at is not None:
        return f"revoked {_moment(token.revoked_at)}"
    if token.expires_at is None:
        return "holds"
    over = token.expires_at <= time.time()
    return f"{'over since' if over else 'holds until'} {_moment(token.expires_at)}"


def _moment(seconds: float | None) -> str:
    return "-" if seconds is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
