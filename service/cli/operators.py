"""The command that lists what compiles."""

from __future__ import annotations

import typer


def add_to(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(operators)


def operators() -> None:
    """Every ONNX operator that compiles: opsets, element types and limits, in Markdown."""
    from compiler.frontend.catalogue import page

    print(page(), end="")
