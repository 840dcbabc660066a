"""Validation of workers' results before they are stored.

A result must have exactly the fields, types and sizes of the protocol. It must also be plausible
for the leased request (`tuner.protocol.judge`). It is stored under the worker that holds the lease,
even if the result names another worker.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tilewright.compiler.runtime.json_form import MalformedError
from tilewright.db.storage import Storage
from tilewright.db.stores.requests import Held, JsonObject
from tilewright.service.api.schemas.workers import check_device_facts
from tilewright.service.show.text import one_sentence
from tilewright.tuner.protocol.batches import MeasureResult
from tilewright.tuner.protocol.judge import ImplausibleError, check_result, most_result_bytes
from tilewright.tuner.protocol.messages import read_request, read_result
from tilewright.tuner.protocol.version import ProtocolError


class ResultRefused(Exception):
    """A worker's result is invalid.

    Attributes:
        field: the path of the invalid field, such as "measurements.0.measurement.device".
    """

    def __init__(self, field: str, sentence: str) -> None:
        self.field = field
        super().__init__(one_sentence(sentence))


def most_bytes(storage: Storage, lease_id: str) -> int:
    """Return the size in bytes of the largest result that a worker may report for a lease.

    The size is 0 if the request has another protocol version, because its results are rejected.

    Raises:
        NotFoundError: if no lease has this id.
    """
    try:
        request = read_request(storage.leases.asked(lease_id))
    except ProtocolError:  # the request has an older protocol version: its results are rejected
        return 0
    return most_result_bytes(request)


def admit(held: Held, worker_id: str, result: Mapping[str, Any]) -> JsonObject:
    """Validate the result that a worker reports. Return it as JSON for the database.

    Args:
        held: the lease and its request.
        worker_id: the worker that holds the lease. It replaces the worker that the result names.
        result: the reported result.

    Raises:
        ResultRefused: if the result is malformed, or not plausible for the request.
    """
    try:
        request = read_request(held.payload)
        found = read_result(result)
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
    """Convert the error of decoding a result to a ResultRefused that names the invalid field."""
    cause = error.__cause__
    if not isinstance(cause, MalformedError):  # another protocol version
        return ResultRefused("protocol", str(error))
    field = re.sub(r"\[(\d+)\]", r".\1", cause.path) or "result"
    return ResultRefused(field, f"{field}: {cause.problem}")
