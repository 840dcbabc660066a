"""The command that lists what compiles."""

from __future__ import annotations

import typer

from service.cli.terminal import say


def add_to(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(operators)


def operators() -> None:
    """Every ONNX operator that compiles: opsets, element types and limits, in Markdown."""
    from compiler.frontend.catalogue import page

    say(page(), end="")
