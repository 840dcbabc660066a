"""Every command teaches: it has an example that it takes, and JSON for programs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import click
import pytest
import typer.main

from tilewright.compiler.package import package_version
from tilewright.service.cli import app, run
from tilewright.service.settings import Settings

WITHOUT_JSON = {"serve", "tuner", "records export"}
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


@pytest.mark.parametrize("words", COMMANDS)
def test_its_example_has_the_port_that_a_service_has(words: str) -> None:
    default = Settings.model_fields["port"].default
    assert set(re.findall(r"https?://[^/ ]+:(\d+)", COMMANDS[words].help or "")) <= {f"{default}"}


@pytest.mark.parametrize("given", [["-v"], ["--version"], ["--version", "tune"]])
def test_the_program_tells_its_version(
    given: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(given) == 0
    assert capsys.readouterr().out == f"tilewright {package_version()}\n"


@pytest.mark.parametrize("given", [["-h"], ["tune", "-h"], ["workers", "-h"]])
def test_there_is_help_in_two_letters(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(given) == 0
    assert capsys.readouterr().out.startswith(f"Usage: tilewright {given[0].strip('-h')}")


@pytest.mark.parametrize(
    "given",
    [
        ["tune", "m", "--target", "host", "--target", "board"],
        ["workers", "drain", "w", "--token", "s", "--token=s"],
    ],
)
def test_an_option_with_one_value_is_not_given_twice(
    given: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(given) == 2
    assert capsys.readouterr().err.endswith(" is given 2 times, and takes one value\n")


def test_a_command_keeps_its_own_v() -> None:
    assert "-v" in {option for each in COMMANDS["tune"].params for option in each.opts}
