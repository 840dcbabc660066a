"""Request bodies whose fields are generated from the option classes in `service.options`."""

from __future__ import annotations

import types
from collections.abc import Mapping
from inspect import get_annotations
from math import inf
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import Field

from tilewright.compiler.mode import Mode
from tilewright.compiler.runtime.json_form import Between, Length, Matching
from tilewright.compiler.targets.target import Target
from tilewright.service.api.schemas.bodies import RequestBody
from tilewright.service.api.schemas.fields import Digest, SizeRange
from tilewright.service.options import Digest as DigestText
from tilewright.service.options import ModeOptions, OptionField, SizeText, option_fields


def _field(each: OptionField) -> Any:
    default, option = each.default, each.option
    facts: dict[str, Any] = {"description": option.help}
    if option.example is not None:
        facts["examples"] = [option.example]
    if isinstance(default, Mapping | tuple):
        return Field(default_factory=dict if isinstance(default, Mapping) else list, **facts)
    return Field(default, **facts)


def body_type(annotation: Any) -> Any:
    """Convert the type annotation of an option to the type of a Pydantic field.

    Tuples become lists, and limits of the option become constraints of Pydantic.
    """
    if annotation in (DigestText, SizeText):
        return Digest if annotation == DigestText else SizeRange
    marks: tuple[Any, ...] = ()
    if get_origin(annotation) is Annotated:
        annotation, *found = get_args(annotation)
        marks = tuple(found)
    origin, arguments = get_origin(annotation), get_args(annotation)
    kind = annotation
    if origin in (Union, types.UnionType):
        kind = Union[tuple(map(body_type, arguments))]  # noqa: UP007
    elif origin is tuple:
        kind = list[body_type(arguments[0])]  # type: ignore[misc]
    elif isinstance(origin, type) and issubclass(origin, Mapping):
        kind = dict[arguments[0], body_type(arguments[1])]  # type: ignore[misc,valid-type]
    facts: dict[str, Any] = {"allow_inf_nan": False} if annotation is float else {}
    for mark in marks:
        match mark:
            case Between(least, most):
                facts |= {"ge": least} if most == inf else {"ge": least, "le": most}
            case Length(least, most):
                facts |= {"max_length": most, **({"min_length": least} if least else {})}
            case Matching(pattern):
                facts["pattern"] = f"^{pattern}$"
    return Annotated[kind, Field(**facts)] if facts else kind


class OptionsBody(RequestBody):
    """A request body with the fields of option classes after its own fields.

    A subclass names the option classes with the class argument `options`.
    """

    def __init_subclass__(cls, options: tuple[type, ...] = (), **more: Any) -> None:
        super().__init_subclass__(**more)
        described = [each for kind in options for each in option_fields(kind)]
        generated = {each.name: body_type(each.annotation) for each in described}
        cls.__annotations__ = {**get_annotations(cls), **generated}
        for each in described:
            setattr(cls, each.name, _field(each))

    def stated(self, kind: type) -> dict[str, Any]:
        """Return the values of the fields that come from option class `kind`, as JSON by name."""
        return self.model_dump(mode="json", include={each.name for each in option_fields(kind)})


class ModeRequest(OptionsBody, options=(ModeOptions,)):
    """A request body with options of code generation, such as threads, numerics and precision.

    The options are the fields of a `Mode` without its target. The service adds the target, which it
    finds by name.
    """

    @property
    def mode_options(self) -> ModeOptions:
        return ModeOptions(*(getattr(self, each.name) for each in option_fields(ModeOptions)))

    def mode(self, target: Target) -> Mode:
        """Return the code generation mode that has the given target and this request's options."""
        return self.mode_options.mode(target)
