"""Every command teaches: it has an example that it takes, and JSON for programs."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import click
import pytest
import typer.main

from tilewright.service.cli import app

WITHOUT_JSON = {"serve", "tuner", "worker", "records export"}
"""They stay, or write lines of JSON anyway."""


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every command by its words; of groups those that do something without a command, too."""

    def within(command: click.Command, words: str) -> Iterator[tuple[str, click.Command]]:
        inner = getattr(command, "commands", None)
        if inner is None or getattr(command, "invoke_without_command", False):
            yield words, command
        for name, each in (inner or {}).items():
            yield from within(each, f"{words} {name}".strip())

    yield from ((words, each) for words, each in within(typer.main.get_command(app), "") if words)


COMMANDS = dict(commands())


def options(command: click.Command) -> set[str]:
    return {option for each in command.params for option in each.opts if option.startswith("-")}


@pytest.mark.parametrize("words", COMMANDS)
def test_it_has_an_example_that_it_takes(words: str) -> None:
    command = COMMANDS[words]
    lines = [line.strip() for line in (command.help or "").splitlines()]
    (example,) = [line for line in lines if line.startswith("Example: ")]
    assert len(example) < 80, "help would break it"
    first, *given = shlex.split(example.removeprefix("Example: "))
    assert [first, *given[: len(words.split())]] == ["tilewright", *words.split()]
    given = given[len(words.split()) :]
    assert {word for word in given if word.startswith("-")} <= options(command)
    with command.make_context(words, given, resilient_parsing=True) as context:
        named = {each.name for each in command.params if isinstance(each, click.Argument)}
        missing = [each.name for each in command.params if each.required]
        assert all(context.params.get(name) is not None for name in (*missing, *named - {None}))


@pytest.mark.parametrize("words", COMMANDS)
def test_it_has_json(words: str) -> None:
    assert ("--json" in options(COMMANDS[words])) == (words not in WITHOUT_JSON)
