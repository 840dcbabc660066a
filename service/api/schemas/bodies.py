"""What all bodies of requests and answers over HTTP have in common."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator


def storable(value: Any) -> Any:
    """The value, if every database can hold the text in it, keys included.

    Raises:
        ValueError: for a null character, or half of a surrogate pair.
    """
    if _is_plain(value):
        return value
    waiting = [value]
    while waiting:
        match waiting.pop():
            case str(text):
                if "\0" in text or (not text.isascii() and _is_torn(text)):
                    raise ValueError(
                        f"{text[:80]!r} holds a null character or half of a surrogate pair"
                    )
            case dict(entries):
                waiting.extend(entries.keys())
                waiting.extend(entries.values())
            case list(items):
                waiting.extend(items)
    return value


def _is_plain(value: Any) -> bool:
    """Whether JSON needs no escaped character for it: then all text in it can be stored.

    Nearly every body is so, and this takes an eighth of the time of looking at each text.
    """
    try:
        return "\\u" not in json.dumps(value)
    except (TypeError, ValueError, RecursionError):  # it is no JSON, or nested too deeply
        return False


def _is_torn(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def shown(**fields: Any) -> ConfigDict:
    """The configuration of a body with an example for the description of the interface."""
    return ConfigDict(json_schema_extra={"examples": [fields]})


class RequestBody(BaseModel):
    """A request body: unknown fields are refused, so that a typo is no silent default."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _is_storable(cls, data: Any) -> Any:
        return storable(data)


class View(BaseModel):
    """What the service answers; a newer service may send more."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class ProblemView(View):
    """application/problem+json"""

    type: str = Field(description="`urn:tilewright:problem:` and its kind")
    title: str
    status: int
    detail: str = Field(description="One sentence that names the offender")
    request_id: str = Field("", description="As in the header X-Request-Id, and in the log")
