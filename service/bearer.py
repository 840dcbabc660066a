"""Checks that a text can be sent as a bearer token."""

from __future__ import annotations

TOKEN_FORM = "one line of printable ASCII characters without spaces"
"""The form of a token, for error messages."""


def is_token(text: str) -> bool:
    """Whether a text can be sent as a bearer token in an HTTP header.

    It must consist of at least one printable ASCII character, without spaces.
    """
    return bool(text) and text.isascii() and text.isprintable() and " " not in text
