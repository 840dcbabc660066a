"""The Python that candidates run in: a command that the worker is told, and tries."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tilewright.tuner.measure.interpreter import (
    THIS_PYTHON,
    InterpreterError,
    check_python,
    parse_python,
)
from tilewright.tuner.measure.sandbox import Sandbox


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", THIS_PYTHON),
        ("  ", THIS_PYTHON),
        ("python3", ("python3",)),
        ("qemu-x -L /root '/a b/python3'", ("qemu-x", "-L", "/root", "/a b/python3")),
    ],
)
def test_a_command_is_read_as_a_shell_does(text: str, words: tuple[str, ...]) -> None:
    assert parse_python(text) == words


def test_a_quotation_must_be_closed() -> None:
    with pytest.raises(InterpreterError, match="'python \"3' cannot be read: no closing quotation"):
        parse_python('python "3')


def test_this_python_can_run_the_sandbox() -> None:
    check_python(THIS_PYTHON)


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (("no-such-python",), "'no-such-python' cannot be started: No such file"),
        (("/dev/null", "-x"), "'/dev/null -x' cannot be started: Permission denied"),
        (("false",), "'false' cannot run the sandbox: it ended with status 1"),
        (
            (sys.executable, "-S"),
            "-S' cannot run the sandbox: ModuleNotFoundError: No module named",
        ),
    ],
)
def test_what_cannot_run_it_is_named(command: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(InterpreterError) as refused:
        check_python(command)
    assert sentence in str(refused.value)


def test_the_child_is_run_by_the_command(tmp_path: Path) -> None:
    """A script in a folder with a space in its name stands for an emulator."""
    folder = tmp_path / "two words"
    folder.mkdir()
    script = folder / "emulator"
    script.write_text('#!/bin/sh\necho "$@" > "$1"\nshift\nexec "$@"\n')
    script.chmod(0o755)
    seen = folder / "seen"
    sandbox = Sandbox(python=(str(script), str(seen), sys.executable))
    try:
        sandbox.probe()
    finally:
        sandbox.close()
    assert seen.read_text().split()[-2:] == ["-m", "tilewright.tuner.measure.sandbox_main"]
    assert sandbox.speed.status() is not None


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (("no-such-python",), "'no-such-python' cannot run: No such file"),
        (("false",), "'false' did not get ready"),
    ],
)
def test_a_sandbox_without_a_child_says_why(command: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(RuntimeError) as refused:
        Sandbox(python=command).probe()
    assert sentence in str(refused.value)
