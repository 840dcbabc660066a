"""Column types that behave alike on SQLite and PostgreSQL, and the JSON encoding of columns.

A crashed kernel or an outside device may report arbitrary text. PostgreSQL rejects NUL characters
in text and NaN in JSON, and UTF-8 cannot encode lone surrogates. These are replaced, so that such a
measurement can be saved.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator

# SQLite numbers only INTEGER PRIMARY KEY columns automatically, and those hold 64 bits anyway.
SerialId = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def clean_text(text: str) -> str:
    """Replace characters that a database rejects: NUL by U+FFFD, lone surrogates by `?`."""
    return text.replace("\x00", "�").encode("utf-8", "replace").decode("utf-8")


class SafeText(TypeDecorator[str]):
    """A TEXT column whose values pass through `clean_text` before they are written."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else clean_text(value)


def dump_json(value: Any) -> str:
    """Encode a value as JSON that conforms to RFC 8259.

    NaN and infinities become the strings "NaN", "Infinity", "-Infinity", which `float()` can parse.
    """
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
    except ValueError:
        return json.dumps(_finite(value), allow_nan=False, separators=(",", ":"))


def canonical_json(value: Any) -> str:
    """Encode a value as JSON in canonical form: equal values give equal text.

    Keys are sorted, and there are no spaces.
    """
    return json.dumps(_finite(value), allow_nan=False, separators=(",", ":"), sort_keys=True)


def _finite(value: Any) -> Any:
    match value:
        case float() if math.isnan(value):
            return "NaN"
        case float() if math.isinf(value):
            return "Infinity" if value > 0 else "-Infinity"
        case Mapping():
            return {key: _finite(item) for key, item in value.items()}
        case list() | tuple():
            return [_finite(item) for item in value]
        case _:
            return value
