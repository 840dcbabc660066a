"""Options that take one value: a second one is refused, not taken in place of the first."""

from __future__ import annotations

from collections import Counter
from typing import Any

import typer
from typer.core import TyperCommand, TyperOption


class SingleValues(TyperCommand):
    """A command that refuses an option with one value if it is given twice."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments. Raises UsageError."""
        _, _, given = self.make_parser(ctx).parse_args(args=list(args))
        for option, count in Counter(given).items():
            if not isinstance(option, TyperOption) or option.multiple or option.is_flag:
                continue
            if count > 1 and not ctx.resilient_parsing:
                ctx.fail(f"{option.opts[0]} is given {count} times, and takes one value")
        return super().parse_args(ctx, args)


def refuse_repeats(app: typer.Typer) -> None:
    """Make each command of an application, and of its groups, one with `SingleValues`."""
    for command in app.registered_commands:
        command.cls = SingleValues
    for group in app.registered_groups:
        if group.typer_instance is not None:
            refuse_repeats(group.typer_instance)
