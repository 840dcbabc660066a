"""Types of fields that several bodies have."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$", description="SHA-256 in hexadecimal")]


Numerics = Literal["fast", "strict", "loose"]


Size = Annotated[int, Field(ge=1, le=1 << 40)]


def _name(text: str) -> str:
    """A name that is what it looks like, on a terminal and in a page."""
    if not text.isprintable() or text != text.strip():
        raise ValueError("a name holds no control characters, and no space around it")
    return text


Name = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_name)]


LeaseId = Annotated[str, Field(pattern="^[0-9a-f]{32}$", description="The name of a lease")]
