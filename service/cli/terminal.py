r"""The border of the command line: all that it prints goes through here, and nothing else prints.

Names of workers, models and tokens, errors and answers were written by others. What a terminal
would obey in them is shown, as `\x1b`, and done by no terminal.
"""

from __future__ import annotations

import sys
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from tilewright.service.console import console as made_console
from tilewright.service.console import visible

if TYPE_CHECKING:
    from rich.console import Console


def say(text: str, end: str = "\n") -> None:
    """Print to standard output."""
    print(visible(text), end=end)


def complain(text: str) -> None:
    """Print to standard error."""
    print(visible(text), file=sys.stderr)


def say_json(value: Any) -> None:
    """Print JSON to standard output; views of the REST interface are what it answers.

    JSON has neither NaN nor infinities: they are null. A character that no terminal may get is
    escaped as JSON does it.
    """
    import json

    plain = json.loads(json.dumps(value, default=_plain), parse_constant=lambda _: None)
    say(json.dumps(plain, indent=2, allow_nan=False).replace("\x7f", "\\u007f"))


def _plain(value: Any) -> Any:
    """A view or a dataclass as plain data. Raises TypeError, as `json` expects it, for others."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    raise TypeError(f"{type(value).__name__} is no JSON")


def console(as_json: bool = False) -> Console:
    """Standard output; tables are as wide as the terminal, or 160 columns into a pipe.

    Beside JSON it is standard error: what is piped on is JSON alone.
    """
    return made_console(stderr=as_json)
