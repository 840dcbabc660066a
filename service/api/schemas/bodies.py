"""Base classes of request and response bodies."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

plain_body: ContextVar[bool] = ContextVar("plain_body", default=False)
"""Whether the body of the current request has only ASCII characters and no escapes of others
(`is_plain`)."""


def is_plain(data: bytes) -> bool:
    """Whether JSON text has only ASCII characters, no null characters, and no `\\u` escapes.

    Then `storable` need not check the parsed strings, which would take longer than parsing. `data`
    may be a part of the text.
    """
    # with null characters it might be UTF-16, in which an escape looks otherwise
    return data.isascii() and b"\\u" not in data and b"\0" not in data


def storable(value: Any) -> Any:
    """Return a JSON value unchanged if every database can store its strings and keys.

    Raises:
        ValueError: if a string has a null character, or half of a surrogate pair.
    """
    if plain_body.get():
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


def _is_torn(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def shown(**fields: Any) -> ConfigDict:
    """Return the Pydantic configuration of a body with an example, for the OpenAPI document.

    `fields` are the values of the example.
    """
    return ConfigDict(json_schema_extra={"examples": [fields]})


class RequestBody(BaseModel):
    """Base class of request bodies.

    Unknown fields are rejected, so a typo in a name is an error.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _is_storable(cls, data: Any) -> Any:
        return storable(data)


class View(BaseModel):
    """Base class of response bodies.

    Clients ignore unknown fields, which a newer service may send.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)


class ProblemView(View):
    """A problem document, the body of every error: `application/problem+json` (RFC 9457)."""

    type: str = Field(description="`urn:tilewright:problem:` and its kind")
    title: str
    status: int
    detail: str = Field(description="One sentence that names the offender")
    request_id: str = Field("", description="As in the header X-Request-Id, and in the log")
