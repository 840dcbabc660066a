"""Options of commands, generated from the fields of the classes in `service.options`.

The function of a command has one parameter per class. `cli.tree` registers `with_options(command)`,
which has one option per field instead.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from dataclasses import is_dataclass, replace
from functools import wraps
from inspect import Parameter
from math import inf
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import typer

from tilewright.compiler.runtime.json_form import Between
from tilewright.service.cli.common import UserError
from tilewright.service.options import (
    JobOptions,
    ModeOptions,
    OptionField,
    QueueOptions,
    checked,
    option_fields,
    option_words,
)


def with_options(command: Callable[..., None], **only: Collection[str]) -> Callable[..., None]:
    """Convert a command so that each field of its option classes is a command-line option.

    For example, the parameter `mode: ModeOptions` becomes the options `--threads` and `--numerics`.

    Args:
        command: a function with parameters of option classes, such as `ModeOptions`.
        only: the names of the fields that become options, by parameter; by default all that have a
            flag. All other fields keep their defaults.

    Returns:
        the converted command, which builds the option classes and calls `command`.
    """
    signature = inspect.signature(command, eval_str=True)
    stated: dict[str, tuple[type, tuple[OptionField, ...]]] = {}
    parameters: list[Parameter] = []
    for name, one in signature.parameters.items():
        if not (isinstance(one.annotation, type) and is_dataclass(one.annotation)):
            parameters.append(one)
            continue
        named = only.get(name)
        shown = tuple(
            each
            for each in option_fields(one.annotation)
            if each.option.flag and (named is None or each.name in named)
        )
        stated[name] = one.annotation, shown
        parameters += map(_parameter, shown)

    @wraps(command)
    def run(**given: Any) -> None:
        for place, (kind, shown) in stated.items():
            values = {each.name: _read(each, given.pop(each.name)) for each in shown}
            given[place] = checked(kind(**values))
        command(**given)

    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run


def option_annotation(each: OptionField) -> Any:
    """Return the `typer` annotation of a command's parameter for a field of an option class."""
    option, text = each.option, each.option.text
    kind, limits = _bare(each.annotation)
    facts: dict[str, Any] = {}
    if text is not None:
        kind = list[str] | None if text.repeatable else str
        facts["metavar"] = text.metavar
    elif limits is not None:
        facts["min"] = limits.least
        facts["max"] = None if limits.most == inf else limits.most
    help_text = f"{option.help}; repeatable" if text and text.repeatable else option.help
    return Annotated[kind, typer.Option(option.flag, help=help_text, **facts)]


def _parameter(each: OptionField) -> Parameter:
    default, text = each.default, each.option.text
    if text is not None:
        default = None if text.repeatable else text.write(default)
    kind = Parameter.POSITIONAL_OR_KEYWORD
    return Parameter(each.name, kind, default=default, annotation=option_annotation(each))


def _read(each: OptionField, given: Any) -> Any:
    text = each.option.text
    if text is None:
        return given
    return text.read(each.option.flag, given or () if text.repeatable else given)


def _bare(annotation: Any) -> tuple[Any, Between | None]:
    """Split an annotation into the type without metadata and the limits of its values.

    The limits are None if the metadata has no `Between`.
    """
    limits: Between | None = None
    while get_origin(annotation) is Annotated:
        annotation, *marks = get_args(annotation)
        limits = next((mark for mark in marks if isinstance(mark, Between)), limits)
    arguments = get_args(annotation)
    if type(None) in arguments:
        (one,) = (each for each in arguments if each is not type(None))
        kind, limits = _bare(one)
        return kind | None, limits
    return annotation, limits


def check_artifact(options: ModeOptions, folder: Path) -> None:
    """Check that code generation options suit an artifact (a compiled model in `folder`).

    The code of an artifact is fixed. Only its number of threads can be chosen.

    Raises:
        UserError: if an option other than the threads differs from its default.
    """
    if words := option_words(replace(options, threads=DEFAULTS.threads)):
        raise UserError(f"{' '.join(words[:2])}: the artifact '{folder}' keeps its own")


DEFAULTS, JOB_DEFAULTS, QUEUE_DEFAULTS = ModeOptions(), JobOptions(), QueueOptions()
"""Default values of the option groups of commands. Each option in a group has a default as well."""
