"""The options of commands that say how code is generated: a field for each of `compiler.mode.Mode`
that a command line states.

A command takes them as one parameter; `cli.tree` names it as `with_mode(command)`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import wraps
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from tilewright.service.cli.common import ThreadsOption, UserError

if TYPE_CHECKING:
    from tilewright.compiler.mode import Mode
    from tilewright.compiler.targets.target import Target


class Numerics(StrEnum):
    FAST = "fast"
    STRICT = "strict"
    LOOSE = "loose"


class Precision(StrEnum):
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


@dataclass(frozen=True, slots=True)
class ModeOptions:
    """Options by the names of the mode's fields; the option of `threads` is `--threads`."""

    threads: ThreadsOption = 1
    numerics: Annotated[
        Numerics,
        typer.Option("--numerics", help="strict: no Winograd, no Strassen; loose: F(6) too"),
    ] = Numerics.FAST
    precision: Annotated[
        Precision,
        typer.Option("--precision", help="16 bits for what a float32 model stores and multiplies"),
    ] = Precision.FLOAT32

    def values(self) -> dict[str, Any]:
        """The fields by name, as a mode and bodies of requests take them."""
        found = ((each.name, getattr(self, each.name)) for each in fields(self))
        return {name: v.value if isinstance(v, StrEnum) else v for name, v in found}

    def mode(self, target: Target, **more: Any) -> Mode:
        """The mode for a target, with `more` fields that no option states."""
        from tilewright.compiler.mode import Mode

        return Mode(target, **self.values(), **more)

    def check_artifact(self, folder: Path) -> None:
        """An artifact is run with any number of threads, and with nothing else of a mode.

        Raises:
            UserError: if another option is not its default.
        """
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name != "threads" and value != each.default:
                raise UserError(f"--{each.name} {value}: the artifact '{folder}' keeps its own")


DEFAULTS = ModeOptions()
"""Of the parameter of a command, whose options all have defaults of their own."""


def mode_words(mode: Mode) -> list[str]:
    """The words of a command line that state a mode, the target left out."""
    return [
        word
        for each in fields(ModeOptions)
        for word in (f"--{each.name}", str(getattr(mode, each.name)))
    ]


def with_mode(command: Callable[..., None], without: Collection[str] = ()) -> Callable[..., None]:
    """The command with an option for each field of its parameter of type `ModeOptions`, in the
    parameter's place, but for those `without` one, which have their defaults."""
    signature = inspect.signature(command, eval_str=True)
    (place, options), *_ = (
        (name, one.annotation)
        for name, one in signature.parameters.items()
        if isinstance(one.annotation, type) and issubclass(one.annotation, ModeOptions)
    )
    hints, kind = get_type_hints(options, include_extras=True), Parameter.POSITIONAL_OR_KEYWORD
    stated = [
        Parameter(each.name, kind, default=each.default, annotation=hints[each.name])
        for each in fields(options)
        if each.name not in without
    ]

    @wraps(command)
    def run(**given: Any) -> None:
        mode = options(**{one.name: given.pop(one.name) for one in stated})
        command(**{place: mode}, **given)

    parameters = [
        made
        for name, one in signature.parameters.items()
        for made in (stated if name == place else [one])
    ]
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run
