"""The fields common to all messages of the worker protocol: its version and the request's kind."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

PROTOCOL = 8
"""Version of the messages. A worker rejects requests of other versions."""


class RequestKind(StrEnum):
    """The kind of a request and of its result."""

    MEASURE = "measure"
    """A batch of candidates of one workload (`batches`)."""
    RUN = "run"
    """Whole programs (`runs`)."""


class ProtocolError(ValueError):
    """A message is malformed or of another protocol version."""


def check_protocol(data: object) -> None:
    """Raise ProtocolError if a message has another protocol version than this release."""
    version = data.get("protocol") if isinstance(data, Mapping) else None
    if version != PROTOCOL:
        raise ProtocolError(
            f"the message has protocol version {version!r}, expected {PROTOCOL}: update the older "
            "of service and worker"
        )
