"""The two fields that all messages of the worker protocol have: protocol version and kind."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

PROTOCOL = 8
"""Version of the messages. A worker rejects requests of other versions."""


class RequestKind(StrEnum):
    """The kind of a request and of its result."""

    MEASURE = "measure"
    """Request to measure a batch of candidates of one workload (`batches`)."""
    RUN = "run"
    """Request to run whole programs (`runs`)."""


class ProtocolError(ValueError):
    """Raised if a message is malformed, or if its protocol version is not this release's."""


def check_protocol(data: object) -> None:
    """Check that a message in its JSON form has the protocol version of this release.

    Raises:
        ProtocolError: if the version is missing or differs.
    """
    version = data.get("protocol") if isinstance(data, Mapping) else None
    if version != PROTOCOL:
        raise ProtocolError(
            f"the message has protocol version {version!r}, expected {PROTOCOL}: update the older "
            "of service and worker"
        )
