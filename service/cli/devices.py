"""`tilewright devices`: the devices that can be tuned for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from tilewright.service.cli.common import JsonOption, ServerOption, TokenOption, load_settings
from tilewright.service.cli.terminal import console, say_json

if TYPE_CHECKING:
    from rich.table import Table

    from tilewright.service.api.schemas.resources import DeviceView
    from tilewright.service.api.schemas.workers import WorkerCondition

SHOWN_TARGETS = 3
"""Names of targets in a row; the best one comes first."""


def add_to(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(devices)


def devices(
    server: ServerOption = None,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """The devices to tune for: this machine (`tune`), and the workers of the service (`submit`).

    Example: tilewright devices --server http://server:8080
    """
    from tilewright.compiler.errors import UnknownTargetError
    from tilewright.compiler.targets.detection import named_device
    from tilewright.compiler.targets.host import resolve_target
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
    settings = load_settings(server, token)
    devices: Sequence[DeviceView] = ()
    unreachable = ""
    try:
        with Client(settings.server, client_token(settings)) as client:
            devices = client.devices()
    except ClientError as error:
        if server is not None:
            raise
        unreachable = str(error)
    known = [here, *(device.model_dump(mode="json") for device in devices)]
    if as_json:
        say_json(known)
        return
    out = console()
    out.print(device_table(known))
    if unreachable:
        out.print(f"workers are not listed: {unreachable}", soft_wrap=True, markup=False)


def device_table(known: Sequence[Mapping[str, Any]]) -> Table:
    """One row for each device. What a worker says of itself is shown as plain text."""
    from rich.text import Text

    from tilewright.service.cli.inspect_view import size
    from tilewright.service.cli.view import make_table
    from tilewright.service.sentences import one_sentence
    from tilewright.service.units import speedup
    from tilewright.service.wording import condition_text

    def text(said: object) -> Text:
        return Text(one_sentence(str(said)))

    table = make_table(
        "<device",
        "<CPU",
        "<targets",
        "caches",
        "cores",
        "memory",
        "<governor",
        "<state",
        "speed",
        "just now",
    )
    for one in known:
        facts, speed = one["device"], one["speed"]
        targets = one["targets"]
        more = len(targets) - SHOWN_TARGETS
        names = ", ".join(targets[:SHOWN_TARGETS]) + (f" and {more} more" if more > 0 else "")
        cores, logical = facts.get("physical_cores", "?"), facts.get("cores", "?")
        memory = facts.get("memory_bytes")
        table.add_row(
            text(one["name"]),
            text(", ".join(filter(None, (facts.get("model"), facts.get("core"))))),
            Text(names or "none"),
            Text(_caches(facts.get("caches"))),
            text(f"{logical} of {cores}" if cores != logical else f"{cores}"),
            size(memory) if isinstance(memory, int) else "?",
            text(facts.get("governor") or "-"),
            Text(one["health"] or "here"),
            speedup(None if speed is None else speed["arithmetic_ratio"]),
            text(condition_text(_condition(one))),
        )
    return table


def _condition(one: Mapping[str, Any]) -> WorkerCondition | None:
    """The condition without its governor, which has a column of its own."""
    from tilewright.service.api.schemas.workers import WorkerCondition

    found = one.get("condition")
    return None if found is None else WorkerCondition.model_validate({**found, "governor": ""})


def _caches(caches: object) -> str:
    """`32 KiB, 512 KiB, 16 MiB`: the data caches by level."""
    from tilewright.service.cli.inspect_view import size

    if not isinstance(caches, list):
        return "?"
    sizes = [c["bytes"] for c in caches if isinstance(c, dict) and c.get("kind") != "instruction"]
    return ", ".join(size(each) for each in sizes if isinstance(each, int))
