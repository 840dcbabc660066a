"""`tilewright show operators`: the supported ONNX operators."""

from __future__ import annotations

from dataclasses import asdict

from tilewright.service.cli.common import JsonOption
from tilewright.service.cli.terminal import say, say_json


def show_operators(as_json: JsonOption = False) -> None:
    """List the supported ONNX operators: opsets, element types and limits, in Markdown.

    Example: tilewright show operators --json
    """
    from tilewright.compiler.frontend.catalogue import catalogue, page

    if as_json:
        say_json([{**asdict(entry), "types": sorted(entry.types)} for entry in catalogue()])
    else:
        say(page(), end="")
