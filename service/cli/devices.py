"""`tilewright device`: commands on the devices for which models can be tuned."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlencode

import typer

from tilewright.service.cli.common import (
    JsonOption,
    ServerOption,
    TokenOption,
    UserError,
    connect,
    load_settings,
)
from tilewright.service.cli.serving import (
    CoresOption,
    SandboxMibOption,
    SandboxUsersOption,
    as_arguments,
)
from tilewright.service.cli.terminal import console, note, say, say_json

if TYPE_CHECKING:
    from rich.table import Table

    from tilewright.service.api.schemas.workers import WorkerCondition, WorkerView
    from tilewright.service.client import Client

SHOWN_TARGETS = 3
"""Limit of the targets shown per device, best first."""


MOST_LINK_MINUTES = 24 * 60.0
"""Longest lifetime in minutes of the token in a device link."""


def list_devices(
    server: ServerOption = None,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the devices to tune for, and the workers of a service.

    The command `tune` tunes for this machine, and `job submit` for the devices of a service's
    workers. The list of workers shows which are alive, and the current speed of their devices.

    Example: tilewright device list --server http://server:8080
    """
    from tilewright.compiler.errors import UnknownTargetError
    from tilewright.compiler.targets.detection import named_device
    from tilewright.compiler.targets.host import resolve_target
    from tilewright.service.cli.view import worker_table
    from tilewright.service.client import Client, ClientError
    from tilewright.service.embedded import client_token
    from tilewright.service.worker.condition import device_condition

    try:
        targets = [resolve_target("host").name]
    except UnknownTargetError:
        targets = []
    here = {
        "name": "this machine",
        "targets": targets,
        "device": named_device().to_json(),
        "health": "",
        "speed": None,
        "condition": device_condition(),
    }
    settings = load_settings(server=server, token=token)
    workers: Sequence[WorkerView] = ()
    unreachable = ""
    try:
        with Client(settings.server, client_token(settings)) as client:
            workers = client.workers()
    except ClientError as error:
        if server is not None:
            raise
        unreachable = str(error)
    known = [here, *(worker.model_dump(mode="json") for worker in workers)]
    if as_json:
        say_json(known)
        return
    out = console()
    out.print(device_table([one for one in known if one["health"] != "gone"]))
    if workers:
        out.print()
        out.print(worker_table(workers))
    if unreachable:
        out.print(f"workers are not listed: {unreachable}", soft_wrap=True, markup=False)


def device_table(known: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table with a row per device: hardware, targets, state and current condition.

    `known` has the JSON form of workers, and of this machine. The facts about a device may be
    missing or have any type, because workers report them and the service does not check them.
    """
    from tilewright.service.show.console import rich_table
    from tilewright.service.show.table import CellKind, Column, table
    from tilewright.service.show.tables.workers import condition_text
    from tilewright.service.show.units import size, speedup

    def cpu(one: Mapping[str, Any]) -> str:
        facts = one["device"]
        return ", ".join(map(str, filter(None, (facts.get("model"), facts.get("core")))))

    def targets(one: Mapping[str, Any]) -> str:
        names = one["targets"]
        more = len(names) - SHOWN_TARGETS
        shown = ", ".join(names[:SHOWN_TARGETS]) + (f" and {more} more" if more > 0 else "")
        return shown or "none"

    def cores(one: Mapping[str, Any]) -> str:
        cores, logical = (one["device"].get(name, "?") for name in ("physical_cores", "cores"))
        return f"{logical} of {cores}" if cores != logical else f"{cores}"

    def memory(one: Mapping[str, Any]) -> str:
        known = one["device"].get("memory_bytes")
        return size(known) if isinstance(known, int) else "?"

    def arithmetic(one: Mapping[str, Any]) -> str:
        return speedup(one["speed"] and one["speed"]["arithmetic_ratio"])

    described: tuple[Column[Mapping[str, Any]], ...] = (
        Column("device", lambda one: str(one["name"]), CellKind.NAME),
        Column("CPU", cpu, CellKind.TEXT),
        Column("targets", targets, CellKind.TEXT),
        Column("caches", lambda one: _caches(one["device"].get("caches"))),
        Column("cores", cores),
        Column("memory", memory),
        Column("governor", lambda one: str(one["device"].get("governor") or "-"), CellKind.TEXT),
        Column("state", lambda one: one["health"] or "here", CellKind.TEXT),
        Column("speed", arithmetic),
        Column("just now", lambda one: condition_text(_condition(one))),
    )
    return rich_table(table(described, known))


def _condition(one: Mapping[str, Any]) -> WorkerCondition | None:
    """Return the current condition of a device, such as its temperature; None if unknown.

    Its field `governor` is empty, because the table has a separate column for the governor.
    """
    from tilewright.service.api.schemas.workers import WorkerCondition

    found = one.get("condition")
    return None if found is None else WorkerCondition.model_validate({**found, "governor": ""})


def _caches(caches: object) -> str:
    """Return the sizes of the data caches from the first level on: `32 KiB, 512 KiB, 16 MiB`."""
    from tilewright.service.show.units import size

    if not isinstance(caches, list):
        return "?"
    sizes = [c["bytes"] for c in caches if isinstance(c, dict) and c.get("kind") != "instruction"]
    return ", ".join(size(each) for each in sizes if isinstance(each, int))


WorkerName = Annotated[
    str, typer.Argument(metavar="WORKER", help="The worker's name, or the start of its id")
]


def of_worker(describe: Callable[[WorkerView], str], *, draining: bool) -> Callable[..., None]:
    """Return a command that drains a worker, or, if `draining` is false, resumes a drained worker.

    `describe` returns the line that the command prints about the worker. The docstring of
    `describe` is the command's help.
    """

    def command(
        worker: WorkerName,
        server: ServerOption = None,
        token: TokenOption = None,
        as_json: JsonOption = False,
    ) -> None:
        with connect(server, token) as client:
            found = client.drain(_worker_id(client, worker), draining=draining)
        if as_json:
            say_json(found)
        else:
            console().print(describe(found), soft_wrap=True, markup=False)

    command.__doc__ = describe.__doc__
    return command


def _drained(worker: WorkerView) -> str:
    """Give a worker no new measurements. It finishes its current ones.

    Example: tilewright device drain board
    """
    left = f"{worker.in_hand} requests in hand" if worker.in_hand else "it has nothing in hand"
    return f"worker {worker.name} is drained: {left}"


def _resumed(worker: WorkerView) -> str:
    """Give a drained worker new measurements again.

    Example: tilewright device resume board
    """
    return f"worker {worker.name} gets work again"


drain = of_worker(_drained, draining=True)
resume = of_worker(_resumed, draining=False)


def _worker_id(client: Client, wanted: str) -> str:
    """Return the id of the worker that has the name `wanted`, or whose id starts with it.

    Raises UserError unless exactly one worker matches.
    """
    from tilewright.compiler.errors import suggestion

    everybody = client.workers()
    known = [w for w in everybody if w.health != "gone"] or everybody
    found = [w for w in known if w.name == wanted] or [w for w in known if w.id.startswith(wanted)]
    if not found:
        raise UserError(
            f"there is no worker '{wanted}': `tilewright device list` lists the workers"
            f"{suggestion(wanted, [worker.name for worker in known])}"
        )
    if len(found) > 1:
        ids = ", ".join(worker.id[:12] for worker in found)
        raise UserError(f"'{wanted}' matches {len(found)} workers: give the id ({ids})")
    return found[0].id


def link(
    name: Annotated[str, typer.Option("--name", help="Name of the worker")] = "page",
    minutes: Annotated[
        float,
        typer.Option("--minutes", min=1.0, max=MOST_LINK_MINUTES, help="Lifetime of the token"),
    ] = 60.0,
    server: ServerOption = None,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print an address that makes a browser a measurement worker for a limited time.

    The token in it permits only measurements. It is in the fragment, which browsers do not send.

    Example: tilewright device link --name phone --minutes 30
    """
    with connect(server, token) as client:
        made = client.create_token(name, ["measure"], 60.0 * minutes)
        url = f"{client.server}/worker#{urlencode({'token': made.secret, 'name': name})}"
    if as_json:
        say_json({"url": url, "token": made})
    else:
        say(url)
    note(f"token {made.id}: it holds for {minutes:g} min, 'token revoke' ends it sooner")


def check(
    sandbox_users: SandboxUsersOption = None,
    sandbox_mib: SandboxMibOption = None,
    cores: CoresOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check this device, and print a remedy for each problem. Needs no service.

    Example: tilewright device check --json
    """
    from tilewright.service.worker.process import main

    arguments = as_arguments(sandbox_users=sandbox_users, sandbox_mib=sandbox_mib, cores=cores)
    if status := main(["--check", *["--json"] * as_json, *arguments]):
        raise typer.Exit(status)
