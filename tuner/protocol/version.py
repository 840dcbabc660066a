"""The version of the worker protocol, which every message carries."""

from __future__ import annotations

from collections.abc import Mapping

PROTOCOL = 7
"""Version of the messages. A worker refuses a request of another version."""


class ProtocolError(ValueError):
    """A message is malformed or of another protocol version."""


def check_protocol(data: object) -> None:
    """Raises ProtocolError for a message of another version than this side's."""
    version = data.get("protocol") if isinstance(data, Mapping) else None
    if version != PROTOCOL:
        raise ProtocolError(f"protocol version {version!r}; this side speaks {PROTOCOL}")
