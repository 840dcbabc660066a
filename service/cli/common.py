"""Options and functions that several commands share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.service.cli.terminal import say
from tilewright.service.cli.verbosity import Verbosity, verbosity
from tilewright.service.options import HINTS

if TYPE_CHECKING:
    from tilewright.compiler.graph.ir import Graph
    from tilewright.compiler.passes.pipeline import Observer
    from tilewright.db.stores.audit import Action, AuditStore
    from tilewright.service.client import Client
    from tilewright.service.settings import Settings


UNAUTHORIZED = 401
"""HTTP status of the response to a request whose token is missing or not accepted."""


class UserError(Exception):
    """A mistake in the user's input; the message is one sentence."""


class InterruptedTuning(Exception):
    """Ctrl-C ended the tuning, but the artifact was still written; the message names its folder."""


def check_file(context: typer.Context, path: Path) -> Path:
    """Return the path of an argument if it is a file. Raises UserError otherwise.

    It is called when the argument is parsed, before the command imports anything.
    """
    return path if context.resilient_parsing else existing_file(path)


def check_path(context: typer.Context, path: Path) -> Path:
    """Return the path of an argument if it is a file or a folder. Raises UserError otherwise.

    It is called when the argument is parsed, before the command imports anything.
    """
    return path if context.resilient_parsing else existing_path(path)


ModelPath = Annotated[Path, typer.Argument(metavar="MODEL", help="ONNX file", callback=check_file)]
ModelOrArtifact = Annotated[
    Path, typer.Argument(metavar="MODEL|DIR", help="ONNX file or artifact", callback=check_path)
]
TargetOption = Annotated[
    str, typer.Option("--target", help="'host', a name of `show targets`, or NAME:BITS")
]
DimsOption = Annotated[
    list[str] | None,
    typer.Option("--dim", metavar="NAME=SIZE", help="Size of a named dimension; repeatable"),
]
RangesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--dim",
        metavar=f"NAME=SIZE|{HINTS}",
        help="Size of a named dimension; or a range such as 1..512 or 32..640:32, with size hints "
        "1..512@32:0.5,128:0.3; or hints alone, @128; repeatable",
    ),
]
ServerOption = Annotated[
    str | None, typer.Option("--server", help="URL of the service (or TILEWRIGHT_SERVER)")
]
TokenOption = Annotated[
    str | None, typer.Option("--token", help="Bearer token (or TILEWRIGHT_TOKEN)")
]


JsonOption = Annotated[
    bool, typer.Option("--json", help="Print JSON; all else goes to standard error")
]
DumpOption = Annotated[
    list[str] | None,
    typer.Option("--dump-after", metavar="PASS", help="Print the graph after a pass; repeatable"),
]


TimingsOption = Annotated[
    bool, typer.Option("--timings", help="Print the milliseconds that each stage took")
]


def check_printing(as_json: bool, dump_after: list[str] | None) -> None:
    """Check that a command does not have both `--json` and `--dump-after`.

    Raises UserError otherwise.
    """
    if as_json and dump_after:
        raise UserError("--dump-after prints text and --json prints JSON: give one of them")


def dump_observer(names: list[str] | None) -> Observer | None:
    """Return an observer that prints the graph each time after one of the named passes.

    A pass may run several times. Returns None without names.

    Raises:
        UserError: if a pass is unknown.
    """
    if not names:
        return None
    from tilewright.compiler.errors import suggestion
    from tilewright.compiler.graph.text import print_graph
    from tilewright.compiler.passes.pipeline import PASSES

    known = [step.__name__ for step in PASSES]
    for name in names:
        if name not in known:
            raise UserError(
                f"--dump-after '{name}': the passes are {', '.join(known)}{suggestion(name, known)}"
            )

    def observe(name: str, graph: Graph) -> None:
        if name in names:
            say(f"# after {name}\n{print_graph(graph)}")

    return observe


def existing_file(path: Path) -> Path:
    """Return the path if it is a file. Raises UserError otherwise."""
    if existing_path(path).is_file():
        return path
    raise UserError(
        f"'{path}' is {'a folder' if path.is_dir() else 'a device or a pipe'}, not a file"
    )


def existing_path(path: Path) -> Path:
    """Return the path if a file or a folder exists there. Raises UserError otherwise."""
    if not path.exists():
        raise UserError(f"no such file: '{path}'")
    return path


def may_be_id(text: str) -> bool:
    """Whether a text can be the id or key of a stored object, or a prefix: hexadecimal digits."""
    return set(text) <= set("0123456789abcdef")


@contextmanager
def connect(server: str | None, token: str | None) -> Iterator[Client]:
    """Yield a client of the service at the URL `server`.

    None selects the URL or token of the settings.

    Raises:
        UserError: if the URL is empty or invalid, or the token cannot be sent.
        RefusedError: if the service refuses a request. If it does not accept the token, the message
            names the source of the token.
    """
    from tilewright.service.bearer import TOKEN_FORM, is_token
    from tilewright.service.client import Client
    from tilewright.service.client.errors import RefusedError
    from tilewright.service.embedded import client_token

    settings = load_settings(server=server, token=token)
    if not settings.server:
        raise UserError(
            "the service's address is empty: give --server URL, or set TILEWRIGHT_SERVER to it"
        )
    if not settings.server.startswith(("http://", "https://")):
        raise UserError(f"--server '{settings.server}' is not an http or https URL")
    source = "TILEWRIGHT_TOKEN" if token is None else "--token"
    creation = "`tilewright token create NAME --scope SCOPE` on the service makes one"
    if settings.token and not is_token(settings.token):
        # the value, which may be a secret, is not printed
        raise UserError(f"{source} is not a token, which is {TOKEN_FORM}; {creation}")
    try:
        with Client(settings.server, client_token(settings)) as client:
            yield client
    except RefusedError as error:
        if error.status != UNAUTHORIZED:
            raise
        if settings.token:
            remedy = f"{source} gave it"
        elif settings.token_file.exists():
            remedy = f"'{settings.token_file}' is the token file"
        else:
            remedy = f"neither a token nor the token file '{settings.token_file}' exists"
        detail = f"{error.problem.detail}: {remedy}; {creation}"
        problem = error.problem.model_copy(update={"detail": detail})
        raise RefusedError(problem, error.retry_seconds) from error


def load_settings(**options: object) -> Settings:
    """Return the settings with changes from the command line, and set up the log.

    `options` are new values by setting; None keeps a setting. The log level is `warning` unless the
    settings state one, and `--quiet` and `--verbose` override it.
    """
    from tilewright.service import logs
    from tilewright.service.settings import Settings

    settings = Settings()
    changes: dict[str, object] = {}
    if "log_level" not in settings.model_fields_set:
        changes["log_level"] = "warning"
    changes |= {name: value for name, value in options.items() if value is not None}
    match verbosity():
        case Verbosity.QUIET if settings.log_level != "error":
            changes["log_level"] = "warning"
        case Verbosity.VERBOSE:
            changes["log_level"] = "debug"
    settings = settings.model_copy(update=changes)
    logs.set_up(settings.log_level, settings.log_format)
    return settings


def write_down(
    audit: AuditStore, command: str, action: Action, subject: str, **detail: object
) -> None:
    """Add an entry to the audit log about an action of this command.

    Args:
        audit: the audit log.
        command: the words of the command, such as "token create".
        action: the action.
        subject: the id of the object that the action changed.
        detail: further facts, stored as JSON.

    Raises:
        StorageError: if the database fails.
    """
    audit.add(
        action,
        subject,
        actor="",
        actor_name=f"tilewright {command}",
        origin=_who_runs_this(),
        detail=detail,
    )


def _who_runs_this() -> str:
    """Return the names of the current user and of this machine, for the audit log."""
    import getpass
    import socket

    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):  # a user without a name; Windows has no module `pwd`
        user = str(os.getuid()) if hasattr(os, "getuid") else "unknown"
    return f"{user}@{socket.gethostname()}"
