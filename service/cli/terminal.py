r"""Output of the command line. All commands print through this module.

Names of workers, models and tokens, errors and answers may contain control sequences of terminals.
The functions print these escaped, such as `\x1b`, so that no terminal executes them.
"""

from __future__ import annotations

import sys
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from tilewright.service.cli.verbosity import Verbosity, verbosity
from tilewright.service.show.console import console as made_console
from tilewright.service.show.text import visible

if TYPE_CHECKING:
    from rich.console import Console


def say(text: str, end: str = "\n") -> None:
    """Print a text to standard output, followed by `end`."""
    print(visible(text), end=end)


def complain(text: str) -> None:
    """Print a warning or an error to standard error."""
    print(visible(text), file=sys.stderr)


def note(text: str) -> None:
    """Print a note to standard error, unless `--quiet` is given."""
    if verbosity() is not Verbosity.QUIET:
        complain(text)


def say_json(value: Any) -> None:
    """Print a value as JSON to standard output.

    The value may contain pydantic models and dataclasses. NaN and infinities, which JSON lacks,
    become null.
    """
    import json

    plain = json.loads(json.dumps(value, default=_plain), parse_constant=lambda _: None)
    say(json.dumps(plain, indent=2, allow_nan=False).replace("\x7f", "\\u007f"))


def _plain(value: Any) -> Any:
    """Return a pydantic model or a dataclass as data that `json` can write.

    `json` calls it for values of unknown types. Raises TypeError for any other value.
    """
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    raise TypeError(f"{type(value).__name__} is not JSON")


def console(as_json: bool = False) -> Console:
    """Return a console on standard output, or on standard error if the command prints JSON.

    Standard output then contains only JSON, and with `--quiet` the console prints nothing. Tables
    are as wide as the terminal, or 160 columns in a pipe.
    """
    found = made_console(stderr=as_json)
    found.quiet = as_json and verbosity() is Verbosity.QUIET
    return found
