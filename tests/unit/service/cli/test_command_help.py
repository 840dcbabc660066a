"""Every command's help has an example that the command accepts, and JSON for programs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
from pydantic import BaseModel, ValidationError, field_validator

from tests.command_tree import COMMANDS, option_names
from tilewright.compiler.package import package_version
from tilewright.service.cli import _known, run
from tilewright.service.cli.tree import TREE, paths
from tilewright.service.settings import Settings


@pytest.mark.parametrize("words", COMMANDS)
def test_it_has_an_example_that_it_takes(words: str) -> None:
    command = COMMANDS[words]
    lines = [line.strip() for line in (command.help or "").splitlines()]
    (example,) = [line for line in lines if line.startswith("Example: ")]
    assert len(example) < 80, "help would break it"
    first, *given = shlex.split(example.removeprefix("Example: "))
    assert [first, *given[: len(words.split())]] == ["tilewright", *words.split()]
    given = given[len(words.split()) :]
    assert {word for word in given if word.startswith("-")} <= option_names(command)
    with command.make_context(words, given, resilient_parsing=True) as context:
        named = {each.name for each in command.params if isinstance(each, click.Argument)}
        missing = [each.name for each in command.params if each.required]
        assert all(context.params.get(name) is not None for name in (*missing, *named - {None}))


@pytest.mark.parametrize("words", COMMANDS)
def test_it_has_the_options_about_output(words: str) -> None:
    assert {"--json", "--quiet", "-q", "--verbose", "-v"} <= option_names(COMMANDS[words])


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


@pytest.mark.parametrize("words", COMMANDS)
def test_every_command_has_help_in_two_letters(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*words.split(), "-h"]) == 0
    assert capsys.readouterr().out.startswith(f"Usage: tilewright {words} ")


@pytest.mark.parametrize("given", [["-h"], *([word, "-h"] for word in TREE)])
def test_there_is_help_in_two_letters(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(given) == 0
    assert capsys.readouterr().out.startswith(f"Usage: tilewright {given[0].strip('-h')}")


@pytest.mark.parametrize("word", [word for word in TREE if word not in COMMANDS])
def test_a_group_without_a_command_prints_its_help(
    word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([word]) == 2
    printed = capsys.readouterr()
    assert printed.out.startswith(f"Usage: tilewright {word} ") and "Commands:\n" in printed.out
    assert printed.err == ""


@pytest.mark.parametrize(
    "given",
    [
        ["tune", "m", "--target", "host", "--target", "board"],
        ["device", "drain", "w", "--token", "s", "--token=s"],
    ],
)
def test_an_option_with_one_value_is_not_given_twice(
    given: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(given) == 2
    assert capsys.readouterr().err.endswith(" is given 2 times, and takes one value\n")


def test_a_dozen_and_some_words_are_at_the_top() -> None:
    assert len(TREE) <= 16
    assert not [words for words in paths() if len(words.split()) > 2]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["submit", "m.onnx"], "'tilewright job submit'?"),
        (["resume"], "'tilewright job resume' or 'tilewright device resume'?"),
        (["jobs"], "'tilewright job'?"),
        (["compil"], "'tilewright compile'?"),
        (["job", "lst"], "'list'?"),
        (["nonsense"], "No such command 'nonsense'."),
    ],
)
def test_an_unknown_command_is_answered_with_similar_ones(
    given: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(given) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: No such command ") and error.endswith(f"{said}\n")


def test_a_value_of_another_type_is_quoted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "model.onnx"
    model.touch()
    assert run(["tune", str(model), "--seconds", "abc"]) == 2
    error = capsys.readouterr().err
    assert "'--seconds'" in error and error.endswith(", not 'abc'\n")


def test_the_message_of_a_validator_has_no_prefix() -> None:
    class Named(BaseModel):
        name: str

        @field_validator("name")
        @classmethod
        def _check(cls, name: str) -> str:
            raise ValueError("a name has letters")

    with pytest.raises(ValidationError) as caught:
        Named(name="7")
    assert _known(caught.value) == "name: a name has letters"
