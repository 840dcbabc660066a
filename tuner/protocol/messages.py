"""Decoding of requests and results whose kind (batch of candidates or run) is not known."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.compiler.errors import unknown_choice
from tilewright.tuner.protocol.batches import MeasureRequest, MeasureResult
from tilewright.tuner.protocol.run_results import RunResult
from tilewright.tuner.protocol.runs import RunRequest
from tilewright.tuner.protocol.version import ProtocolError, RequestKind, check_protocol

Request = MeasureRequest | RunRequest
WorkResult = MeasureResult | RunResult


def read_request(data: object) -> Request:
    """Decode a MeasureRequest or a RunRequest from its JSON form.

    Raises:
        ProtocolError: if its protocol version is not this release's, or if a field is missing or
            invalid.
    """
    match kind_of(data):
        case RequestKind.MEASURE:
            return MeasureRequest.from_json(data)
        case RequestKind.RUN:
            return RunRequest.from_json(data)


def read_result(data: object) -> WorkResult:
    """Decode a MeasureResult or a RunResult from its JSON form.

    Raises:
        ProtocolError: if its protocol version is not this release's, or if a field is missing or
            invalid.
    """
    match kind_of(data):
        case RequestKind.MEASURE:
            return MeasureResult.from_json(data)
        case RequestKind.RUN:
            return RunResult.from_json(data)


def kind_of(data: object) -> RequestKind:
    """Return the kind of a request or result, given its JSON form.

    Raises:
        ProtocolError: if its protocol version is not this release's, or if its kind is unknown.
    """
    check_protocol(data)
    kind = data.get("kind") if isinstance(data, Mapping) else None
    found = next((known for known in RequestKind if known.value == kind), None)
    if found is None:
        raise ProtocolError(unknown_choice("the kind of the message", str(kind)[:80], RequestKind))
    return found
