"""How a model's plan was chosen, for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from tilewright.service.cli.view import make_table
from tilewright.service.units import speedup
from tilewright.service.wording import decision_line

SHOWN = 10
"""Alternatives in the table; the others were slower."""


def decision_view(decision: Mapping[str, Any] | None) -> RenderableType:
    """The plan, the reason for it, and the best of what else was tried."""
    line = Text(decision_line(decision))
    tried = [each for each in (decision or {}).get("tried", ()) if each["new_seconds"] is not None]
    if decision is None or not tried:
        return line
    table = make_table("<alternative", "kernels", "instead of us", "us", "speed-up", "whole")
    for each in sorted(tried, key=lambda t: t["new_seconds"] - t["old_seconds"])[:SHOWN]:
        old, new = each["old_seconds"], each["new_seconds"]
        table.add_row(
            Text(each["name"]),
            str(each["kernels"]),
            f"{old * 1e6:,.0f}",
            f"{new * 1e6:,.0f}",
            speedup(new / old if old else None),
            f"{speedup(each['ratio'])} {each['outcome']}" if each["ratio"] else "-",
        )
    return Group(line, Text(), table)
