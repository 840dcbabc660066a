"""The command line: `tilewright COMMAND`. Each command imports its dependencies when it runs.

A usage error ends with status 2, and a mistake in the input with status 1. Both print one sentence
to standard error, without a traceback.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from functools import cache
from typing import Annotated, TextIO

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException
from typer.main import get_command

from tilewright.service.cli.common import InterruptedTuning
from tilewright.service.cli.terminal import complain, say
from tilewright.service.cli.tree import Root, add_commands

INTERRUPTED = 130
"""Exit status after Ctrl-C: 128 plus the number of the signal."""

VALUE_ERROR = "Value error, "
"""Prefix that pydantic adds to the message of a validator."""

app = typer.Typer(
    name="tilewright",
    cls=Root,
    help="A search-based auto-tuning compiler service for ONNX models.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
add_commands(app)


def _tell_version(wanted: bool) -> None:
    if wanted:
        from tilewright.compiler.package import package_version

        say(f"tilewright {package_version()}")
        raise typer.Exit


@app.callback()
def _before_each_command(
    version: Annotated[
        bool,
        typer.Option(
            "--version", "-v", callback=_tell_version, is_eager=True, help="Print the version"
        ),
    ] = False,
) -> None:
    """Define the options of `tilewright` itself, which precede the command, such as `--version`."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit with its status."""
    from tilewright.compiler.process import configure_process, skip_final_collection

    configure_process()
    status = run(sys.argv[1:] if arguments is None else arguments)
    skip_final_collection()
    sys.exit(status)


def run(arguments: Sequence[str]) -> int:
    """Run a command, and return its exit status. Python warnings are printed to standard error."""
    with warnings.catch_warnings():
        warnings.showwarning = _warn
        return _run(arguments)


@cache
def _command() -> TyperGroup:
    """Return the tree of all commands. It is cached, because building it takes 40 ms."""
    found = get_command(app)
    assert isinstance(found, TyperGroup)
    return found


def _run(arguments: Sequence[str]) -> int:
    try:
        words = list(arguments) or ["--help"]
        status = _command()(words, standalone_mode=False, prog_name="tilewright")
        if status == INTERRUPTED:
            _complain("interrupted")
        return status if isinstance(status, int) else 0
    except TyperException as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # of a private module
            say(error.format_message())
        elif sentence := error.format_message():
            _complain(sentence.replace(VALUE_ERROR, "") + _given(error, sentence))
        return int(error.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        _complain("interrupted")
        return INTERRUPTED
    except InterruptedTuning as error:
        complain(str(error))
        return INTERRUPTED
    except BrokenPipeError:
        # the reader has closed the pipe: discard the buffered output
        sys.stdout = None
        return 0
    except Exception as error:
        known = _known(error)
        if known is None:
            raise
        _complain(known)
        return 1


def _known(error: Exception) -> str | None:
    """Return the message to print for an expected error, such as a user's mistake.

    Return None for an unexpected error. It is a bug, and the caller lets its traceback appear.
    """
    names = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__}
    # compared by name, so that commands without database or client do not import these
    if names & {
        "tilewright.compiler.errors.CompilerError",
        "tilewright.db.errors.DatabaseError",
        "tilewright.service.client.errors.ClientError",
        "tilewright.service.cli.common.UserError",
        "tilewright.service.option_texts.OptionError",
    }:
        return str(error)
    if isinstance(error, FileNotFoundError) and error.filename:
        return f"no such file: '{error.filename}'"
    if isinstance(error, OSError):
        where = f" '{error.filename}'" if error.filename else ""
        return f"{error.strerror or error}{where}"
    if isinstance(error, MemoryError):
        from tilewright.compiler.errors import memory_text

        return memory_text(error)
    if isinstance(error, ModuleNotFoundError) and error.name:
        return (
            f"this command needs the package '{error.name}': pip install 'tilewright[all]' has it"
        )
    if "pydantic_settings.exceptions.SettingsError" in names:
        return str(error)
    if "pydantic_core._pydantic_core.ValidationError" in names:
        return _validation(error)
    return None


def _validation(error: Exception) -> str:
    first = error.errors()[0]  # type: ignore[attr-defined]
    field = ".".join(str(part) for part in first["loc"])
    return f"{field}: {first['msg'].removeprefix(VALUE_ERROR)}"


def _given(error: TyperException, sentence: str) -> str:
    """Return ", not 'VALUE'", the end of a usage error's message. VALUE is what the user typed.

    Return "" if the message `sentence` names the value, or if the error is not about the type or
    the limits of a value.
    """
    cause = error.__cause__
    if cause is None or "errors" not in dir(cause):  # pydantic's error, without its import
        return ""
    value = cause.errors()[0]["input"]  # type: ignore[attr-defined]
    return f", not '{value}'" if isinstance(value, str) and f"'{value}'" not in sentence else ""


def _warn(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    complain(f"warning: {message}")


def _complain(sentence: str) -> None:
    from tilewright.service.show.text import one_sentence

    complain(f"error: {one_sentence(sentence)}")
