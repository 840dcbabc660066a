"""`tilewright show targets`: the compiler's targets, and which of them this machine runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.service.cli.common import JsonOption
from tilewright.service.cli.terminal import console, say_json

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from rich.table import Table


def show_targets(as_json: JsonOption = False) -> None:
    """List the targets for --target, and mark the target of this machine ('host').

    Example: tilewright show targets --json
    """
    from tilewright.compiler.errors import UnknownTargetError
    from tilewright.compiler.targets.detection import best_target, can_run, named_device
    from tilewright.compiler.targets.host import resolve_target
    from tilewright.compiler.targets.target import known_targets

    facts = named_device()
    listed = [
        {
            "name": target.name,
            "arch": target.arch,
            "cpu": target.cpu,
            "vector_bits": target.vector_bits,
            "vector_registers": target.vector_registers,
            "here": can_run(target, facts),
            "key": target.key,
        }
        for target in known_targets().values()
    ]
    try:
        host = resolve_target("host").name
        described, reason = best_target(facts)
        here = {"name": host, "described": described.name, "reason": reason}
    except UnknownTargetError as error:
        here = {"name": "", "described": "", "reason": str(error)}
    if as_json:
        say_json({"host": here, "targets": listed})
        return
    out = console()
    out.print(_table(listed, here["described"]))
    out.print()
    for line in (
        f"host: {here['name'] or 'no target'}; {here['reason']}",
        "NAME:BITS is a target with narrower vectors, such as host:128; for `job submit` and "
        "`record find`, the name of a worker is the best target that it runs",
    ):
        out.print(line, soft_wrap=True, markup=False)


def _table(listed: Sequence[dict[str, Any]], here: str) -> Table:
    """Return a table with a row per target. It marks the target of this machine."""
    from tilewright.service.show.console import rich_table
    from tilewright.service.show.table import CellKind, Column, table

    def runs(one: dict[str, Any]) -> str:
        return "this machine" if one["name"] == here else "runs" if one["here"] else ""

    described: tuple[Column[dict[str, Any]], ...] = (
        Column("target", lambda one: str(one["name"]), CellKind.NAME),
        Column("architecture", lambda one: str(one["arch"]), CellKind.TEXT),
        Column("CPU", lambda one: str(one["cpu"]), CellKind.TEXT),
        Column("vector bits", lambda one: str(one["vector_bits"])),
        Column("registers", lambda one: str(one["vector_registers"])),
        Column("here", runs, CellKind.TEXT),
    )
    return rich_table(table(described, listed))
