"""Request and response bodies for workers and their heartbeats."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from tilewright.compiler.errors import InvalidFactsError
from tilewright.compiler.memo import memo
from tilewright.compiler.targets.device import DeviceFacts
from tilewright.service.api.schemas.bodies import RequestBody, View, shown
from tilewright.service.api.schemas.fields import (
    SHOWN_ID,
    SHOWN_TARGET,
    SHOWN_TIME,
    Base64,
    DeviceJson,
    Id,
    Key,
    LeaseId,
    Name,
    Time,
)
from tilewright.tuner.protocol.version import PROTOCOL

MOST_FACTS_BYTES = 64 << 10
"""Limit of the JSON description of a worker's device, in bytes."""


def check_device_facts(value: Mapping[str, Any]) -> None:
    """Check a worker's description of its device. An empty description is allowed.

    Raises:
        ValueError: if the description is too long, or has invalid fields or values.
    """
    if not value:
        return
    try:
        text = json.dumps(value)
    except RecursionError as error:
        raise ValueError("device facts: they are nested too deeply") from error
    if len(text) > MOST_FACTS_BYTES:
        raise ValueError(f"device facts: they take more than {MOST_FACTS_BYTES} bytes")
    objection = _objection(text)
    if objection is not None:
        raise ValueError(objection)


@memo(64)
def _objection(text: str) -> str | None:
    """Return why a device's description, given as JSON text, is invalid; None if it is valid.

    The result is cached, because workers send the description with each measurement.
    """
    try:
        DeviceFacts.from_json(json.loads(text))
    except InvalidFactsError as error:
        return str(error)
    return None


def _device_facts(value: dict[str, Any]) -> dict[str, Any]:
    check_device_facts(value)
    return value


DeviceFactsJson = Annotated[dict[str, Any], AfterValidator(_device_facts)]


class WorkerRequest(RequestBody):
    """The registration of a worker.

    The worker chooses a random `worker_id`. After a restart, or if the response was lost, it sends
    the same id, so that no second worker is registered.
    """

    model_config = shown(name="rack-3", targets=[SHOWN_TARGET], protocol=PROTOCOL)

    name: Name
    device: DeviceFactsJson = Field(default_factory=dict)
    targets: list[Annotated[str, Field(min_length=1, max_length=200)]] = Field(
        default_factory=list,
        max_length=64,
        description="Names or keys of targets it runs; empty: found from the device facts",
    )
    protocol: int = Field(ge=1, lt=1 << 31)
    worker_id: str | None = Field(
        None,
        pattern="^[0-9a-f]{32}$",
        description="128 random bits; if absent, the service generates them",
    )


class WorkerSpeed(RequestBody):
    """The present speed of a worker's device.

    A worker regularly times a fixed reference kernel, which has an arithmetic part and a memory
    part. `arithmetic_seconds` and `memory_seconds` are the latest times of the two parts. The
    ratios are these times divided by the fastest times measured on the device.
    """

    arithmetic_seconds: float = Field(ge=0, allow_inf_nan=False)
    memory_seconds: float = Field(ge=0, allow_inf_nan=False)
    arithmetic_ratio: float = Field(ge=0, allow_inf_nan=False)
    memory_ratio: float = Field(ge=0, allow_inf_nan=False)
    disturbed: bool = Field(description="Currently slow: measurements are repeated")
    throttled: bool = Field(description="Disturbed for half a minute without interruption")


class WorkerCondition(RequestBody):
    """The present condition of a worker's device, from its operating system; null if unknown."""

    temperature_celsius: float | None = Field(
        None, ge=-300, le=300, allow_inf_nan=False, description="Temperature of the hottest sensor"
    )
    load: float | None = Field(
        None, ge=0, le=1e6, allow_inf_nan=False, description="Average load of the last minute"
    )
    clock_ratio: float | None = Field(
        None,
        ge=0,
        le=10,
        allow_inf_nan=False,
        description="Clock of the fastest core, as a share of its highest",
    )
    governor: str = Field("", max_length=100, examples=["performance"])


class QuarantineView(View):
    reason: str = Field(examples=["5 of its last 6 leases were lost"])
    since: Time
    canary_at: Time = Field(description="When it may try one request")


class WorkerView(View):
    id: Id
    name: str = Field(examples=["rack-3"])
    target_keys: list[Key]
    targets: list[str] = Field(
        default_factory=list,
        description="Their names, as far as they have one; the best first",
        examples=[[SHOWN_TARGET]],
    )
    device: DeviceJson
    protocol: int
    health: str = Field(examples=["healthy"])
    last_heartbeat: Time
    draining: bool = Field(description="It gets no new measurements, whatever its health")
    in_hand: int = Field(description="Measurement requests that it has leased")
    leases_lost: int
    trials: dict[str, int] = Field(
        default_factory=dict,
        description="Those that it measured, by how they ended",
        examples=[{"ok": 1024, "crash": 3}],
    )
    created_at: Time
    speed: WorkerSpeed | None = None
    condition: WorkerCondition | None = None
    quarantine: QuarantineView | None = Field(
        None, description="It failed too often: it gets nothing, then one request at a time"
    )


class RegistrationView(View):
    worker: WorkerView
    recognised: str = Field(
        "",
        description="Target chosen from the device facts, and why; empty if targets were named",
        examples=[""],
    )
    service_key: Base64 = Field(
        description="Public key that leases are signed with: Ed25519, base64"
    )
    lease_seconds: float
    heartbeat_seconds: float
    long_poll_seconds: float


class DrainRequest(RequestBody):
    """Drains a worker, or resumes it if `draining` is false."""

    model_config = shown(draining=True)

    draining: bool = True


class HeartbeatRequest(RequestBody):
    """A heartbeat of a worker. `leases` are the ids of the leases that it holds.

    `device`, `speed` and `condition` are null if they have not changed since the last heartbeat.
    """

    model_config = shown(leases=[SHOWN_ID], condition={"load": 0.4, "governor": "performance"})

    leases: list[LeaseId] = Field(default_factory=list, max_length=256)
    device: DeviceFactsJson | None = None
    speed: WorkerSpeed | None = None
    condition: WorkerCondition | None = None


class HeartbeatView(View):
    """The response to a heartbeat.

    `renewed` has the new deadlines by lease. A lease that is missing there is lost, and the worker
    must stop its work.
    """

    renewed: dict[str, float] = Field(
        description="Until when, by lease", examples=[{SHOWN_ID: SHOWN_TIME}]
    )
    health: str = Field(examples=["healthy"])
    heartbeat_seconds: float = Field(
        description="Seconds until the next heartbeat: longer if there are many workers",
        examples=[5.0],
    )
