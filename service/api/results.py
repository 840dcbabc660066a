"""The door for results: what a worker reports is read strictly, judged, and only then stored.

A result has exactly these fields, of these types and within these sizes, and it can be that of the
request that the worker holds (`tuner.measure.plausible`). It is stored under the worker of the
lease, whatever the result says.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tilewright.compiler.runtime.json_form import MalformedError
from tilewright.db.storage import Storage
from tilewright.db.stores.requests import Held, JsonObject
from tilewright.service.api.schemas.workers import check_device_facts
from tilewright.service.sentences import one_sentence
from tilewright.tuner.measure.plausible import (
    ImplausibleError,
    check_result,
    most_result_bytes,
)
from tilewright.tuner.measure.run_result import RunResult
from tilewright.tuner.measure.run_wire import read_request
from tilewright.tuner.measure.wire import MeasureResult, ProtocolError


class ResultRefused(Exception):
    """A result that is not believed. `field` says which part of it."""

    def __init__(self, field: str, sentence: str) -> None:
        self.field = field
        super().__init__(one_sentence(sentence))


def most_bytes(storage: Storage, lease_id: str) -> int:
    """How large the body can be with which a worker reports on a lease.

    Raises NotFoundError.
    """
    try:
        request = read_request(storage.leases.asked(lease_id))
    except ProtocolError:  # of an older release: no result of it is believed, whatever it says
        return 0
    return most_result_bytes(request)


def admit(held: Held, worker_id: str, result: Mapping[str, Any]) -> JsonObject:
    """A result in the form that is stored. Raises ResultRefused."""
    try:
        request = read_request(held.payload)
        found: MeasureResult | RunResult = request.result_type.from_json(result)
        check_result(request, found)
    except ImplausibleError as error:
        raise ResultRefused(error.field, str(error)) from error
    except ProtocolError as error:
        raise _refusal(error) from error
    measured = found.measurements if isinstance(found, MeasureResult) else ()
    for number, (_, measurement) in enumerate(measured):
        try:
            check_device_facts(measurement.device)
        except ValueError as error:
            field = f"measurements.{number}.measurement.device"
            raise ResultRefused(field, f"{field}: {error}") from error
    return found.by(worker_id).to_json()


def _refusal(error: ProtocolError) -> ResultRefused:
    """The refusal of a message that the codec refuses, with the field that it names."""
    cause = error.__cause__
    if not isinstance(cause, MalformedError):  # of another version
        return ResultRefused("protocol", str(error))
    field = re.sub(r"\[(\d+)\]", r".\1", cause.path) or "result"
    return ResultRefused(field, f"{field}: {cause.problem}")
