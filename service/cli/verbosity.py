"""The options `--quiet` and `--verbose`, which every command has."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextvars import ContextVar
from enum import Enum
from functools import wraps
from inspect import Parameter
from typing import Annotated, Any

import typer


class Verbosity(Enum):
    """The amount of output besides results, warnings and errors; the values are option names."""

    QUIET = "--quiet"
    """Print nothing besides results, warnings and errors. Log from level warning."""
    NORMAL = ""
    """Also print progress and notes. Log from the level in the settings."""
    VERBOSE = "--verbose"
    """Also print details. Log from level debug."""


_chosen: ContextVar[Verbosity] = ContextVar("verbosity", default=Verbosity.NORMAL)

_QUIET = Annotated[
    bool, typer.Option("--quiet", "-q", help="No progress and no notes: results and errors only")
]
_VERBOSE = Annotated[
    bool, typer.Option("--verbose", "-v", help="More detail, and the log from level debug")
]


def verbosity() -> Verbosity:
    """Return the verbosity of the running command, from `--quiet` and `--verbose`."""
    return _chosen.get()


def with_verbosity(command: Callable[..., None]) -> Callable[..., None]:
    """Add `--quiet` and `--verbose` to a command, which set `verbosity()` while it runs."""
    signature = inspect.signature(command, eval_str=True)
    options = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=False, annotation=annotation)
        for name, annotation in (("quiet", _QUIET), ("verbose", _VERBOSE))
    ]
    parameters = [*signature.parameters.values(), *options]

    @wraps(command)
    def run(*, quiet: bool, verbose: bool, **given: Any) -> None:
        if quiet and verbose:
            raise typer.BadParameter("--quiet and --verbose exclude each other")
        chosen = Verbosity.QUIET if quiet else Verbosity.VERBOSE if verbose else Verbosity.NORMAL
        before = _chosen.set(chosen)
        try:
            command(**given)
        finally:
            _chosen.reset(before)

    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run
