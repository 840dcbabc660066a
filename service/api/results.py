"""The door for results: what a worker reports is read strictly, judged, and only then stored.

A result has exactly these fields, of these types and within these sizes, and it can be that of the
request that the worker holds (`tuner.measure.plausible`). Who measured it is the worker of the
lease, whatever the result says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tilewright.db.storage import Storage
from tilewright.db.stores.requests import Held, JsonObject
from tilewright.service.api.schemas.workers import DeviceFactsJson
from tilewright.service.sentences import one_sentence
from tilewright.tuner.measure.measurement import MOST_ERROR, Status
from tilewright.tuner.measure.plausible import (
    ImplausibleError,
    check_measured,
    check_run,
    most_result_bytes,
)
from tilewright.tuner.measure.run_result import FETCH_BYTES, RunResult, RunStatus
from tilewright.tuner.measure.run_wire import RunRequest, read_request
from tilewright.tuner.measure.wire import MeasureResult, ProtocolError

MOST_SAMPLES = 10_000
MOST_POINTS = 64
MOST_INSTRUCTIONS = 1_000_000
LATEST = 1e11
"""Times since the epoch are before the year 5138: a board without a clock says 1970."""

Text = Annotated[str, Field(max_length=MOST_ERROR)]
Name = Annotated[str, Field(max_length=500)]
Seconds = Annotated[float, Field(ge=0, le=1e9)]
Integer = Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)]
Size = Annotated[int, Field(ge=0, lt=1 << 62)]
_Ratios = Annotated[list[Seconds], Field(min_length=1, max_length=MOST_SAMPLES)]


class ResultRefused(Exception):
    """A result that is not believed. `field` says which part of it."""

    def __init__(self, field: str, sentence: str) -> None:
        self.field = field
        super().__init__(one_sentence(sentence))


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class _Speed(_Body):
    arithmetic_seconds: Seconds
    memory_seconds: Seconds
    arithmetic_ratio: Seconds
    memory_ratio: Seconds
    disturbed: bool


class _Comparison(_Body):
    """What follows from the ratios is computed anew."""

    against: Name
    ratios: _Ratios
    ratio: float
    low: float
    high: float
    coverage: float
    outcome: Name


class _TimesAt(_Body):
    sizes: dict[Name, Size] = Field(max_length=MOST_POINTS)
    weight: Seconds
    samples_seconds: list[float] = Field(max_length=MOST_SAMPLES)


class _Measurement(_Body):
    status: Annotated[Status, Field(strict=False)]
    error: Text
    samples_seconds: list[float] = Field(max_length=MOST_SAMPLES)
    max_error: float | None
    tolerance: float
    seeds: list[Integer] = Field(max_length=MOST_SAMPLES)
    reference_digest: Name
    object_digest: Name
    build_seconds: Seconds
    measure_seconds: Seconds
    worker: Name
    device: DeviceFactsJson
    measured_at: Annotated[float, Field(ge=0, le=LATEST)]
    checks: Size
    comparison: _Comparison | None
    speed: _Speed | None
    at_sizes: list[_TimesAt] = Field(default=[], max_length=MOST_POINTS)


class _TrialMeasurement(_Body):
    trial_id: Name
    measurement: _Measurement


class _MeasureResult(_Body):
    protocol: Size
    request_id: Name
    worker: Name
    measurements: list[_TrialMeasurement] = Field(max_length=MOST_SAMPLES)


class _Race(_Body):
    incumbent_seconds: Seconds
    comparisons: list[Annotated[tuple[Name, _Ratios], Field(strict=False)]] = Field(
        max_length=MOST_SAMPLES
    )


class _Speeds(_Body):
    flops_per_second: float
    levels: list[Annotated[tuple[Name, Size, float], Field(strict=False)]] = Field(max_length=16)
    dots: dict[Name, float] = Field(default_factory=dict, max_length=16)


class _RunResult(_Body):
    kind: Name
    protocol: Size
    request_id: Name
    worker: Name
    status: Annotated[RunStatus, Field(strict=False)]
    error: Text
    errors: dict[Name, float | None] = Field(max_length=MOST_SAMPLES)
    fetched: dict[Name, Annotated[str, Field(max_length=2 * FETCH_BYTES)]] = Field(
        max_length=MOST_SAMPLES
    )
    race: _Race | None
    seconds: list[Seconds] = Field(max_length=MOST_INSTRUCTIONS)
    speeds: _Speeds | None


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
        if isinstance(request, RunRequest):
            _RunResult.model_validate(result)
            run = RunResult.from_json(result)
            check_run(request, run)
            return replace(run, worker=worker_id).to_json()
        _MeasureResult.model_validate(result)
        measured = MeasureResult.from_json(result)
        check_measured(request, measured)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        raise ResultRefused(field, f"{field}: {first['msg']}") from error
    except ImplausibleError as error:
        raise ResultRefused(error.field, str(error)) from error
    except ProtocolError as error:
        raise ResultRefused("result", str(error)) from error
    theirs = tuple((name, replace(m, worker=worker_id)) for name, m in measured.measurements)
    return replace(measured, worker=worker_id, measurements=theirs).to_json()
