"""The commands of `tilewright` as their parser has them, by their words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click
import typer.main

from tilewright.service.cli import app
from tilewright.service.cli.tree import paths


def _command(tree: click.Command, words: str) -> click.Command:
    found: Any = tree
    for word in words.split():
        found = found.commands[word]
    assert not hasattr(found, "commands"), f"'{words}' is a group"
    return found  # type: ignore[no-any-return]


def _of_tree(tree: click.Command) -> Mapping[str, click.Command]:
    return {words: _command(tree, words) for words in paths()}


COMMANDS: Mapping[str, click.Command] = _of_tree(typer.main.get_command(app))


def option_names(command: click.Command) -> set[str]:
    """The options of a command, such as --json and -q."""
    return {name for each in command.params for name in each.opts if name.startswith("-")}
