"""Requests of either kind: batches of candidates to measure, and runs of whole programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewright.tuner.protocol.batches import MeasureRequest
from tilewright.tuner.protocol.runs import RunRequest

Request = MeasureRequest | RunRequest


def is_run(payload: Mapping[str, Any]) -> bool:
    """Whether a request in its JSON form is a run, of whatever protocol version."""
    return payload.get("kind") == "run"


def read_request(payload: Mapping[str, Any]) -> Request:
    """A request of either kind.

    Raises:
        ProtocolError: as `from_json` of its class does.
    """
    if isinstance(payload, Mapping) and is_run(payload):
        return RunRequest.from_json(payload)
    return MeasureRequest.from_json(payload)
