"""The bodies of requests and answers over HTTP: all that the client knows of the service."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from compiler.device import DeviceFacts
from compiler.errors import InvalidFactsError

Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$", description="SHA-256 in hexadecimal")]
Numerics = Literal["fast", "strict", "loose"]
Size = Annotated[int, Field(ge=1, le=1 << 40)]


def _name(text: str) -> str:
    """A name that is what it looks like, on a terminal and in a page."""
    if not text.isprintable() or text != text.strip():
        raise ValueError("a name holds no control characters, and no space around it")
    return text


Name = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_name)]


def storable(value: Any) -> Any:
    """The value, if every database can hold the text in it, keys included.

    Raises:
        ValueError: for a null character, or half of a surrogate pair.
    """
    waiting = [value]
    while waiting:
        match waiting.pop():
            case str(text):
                if "\0" in text or (not text.isascii() and _is_torn(text)):
                    raise ValueError(
                        f"{text[:80]!r} holds a null character or half of a surrogate pair"
                    )
            case dict(entries):
                waiting.extend(entries.keys())
                waiting.extend(entries.values())
            case list(items):
                waiting.extend(items)
    return value


def _is_torn(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


class RequestBody(BaseModel):
    """A request body: unknown fields are refused, so that a typo is no silent default."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _is_storable(cls, data: Any) -> Any:
        return storable(data)


class View(BaseModel):
    """What the service answers; a newer service may send more."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class ProblemView(View):
    """application/problem+json"""

    type: str
    title: str
    status: int
    detail: str
    request_id: str = Field("", description="As in the header X-Request-Id, and in the log")


# models


class ModelView(View):
    digest: str
    name: str
    bytes: int
    created_at: float


# jobs


class JobRequest(RequestBody):
    """Tune a model. The job ends at the first limit that it meets."""

    model: Digest
    target: str = Field(
        "host",
        min_length=1,
        max_length=200,
        description="A target by name or key, `host` (the service's machine), or a worker by name "
        "or id, which alone measures then",
    )
    threads: int = Field(1, ge=1, le=256)
    numerics: Numerics = "fast"
    trials: int = Field(1000, ge=0, le=10_000_000, description="Most candidates to measure")
    seconds: float | None = Field(
        None, gt=0, le=30 * 86400, allow_inf_nan=False, description="Most time to tune"
    )
    dims: dict[str, Size | Annotated[list[Size], Field(min_length=1, max_length=64)]] = Field(
        default_factory=dict,
        max_length=64,
        description="Sizes of the model's named dimensions: one, or a list that the artifact holds",
    )
    pad: bool = Field(False, description="Pad inputs up to the artifact's next sizes")
    weight_limit: int | None = Field(
        None, ge=1, le=1 << 62, description="Most bytes of packed weights; expansions give way"
    )
    seed: int = Field(0, ge=0, le=(1 << 63) - 1)
    stop_gain: float = Field(
        0.005,
        ge=0,
        lt=1,
        allow_inf_nan=False,
        description="End when less than this share is expected of another minute; 0: never",
    )
    target_ms: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="End when the kernels add up to no more"
    )
    strategy: str | None = Field(None, max_length=100, description="Search strategy")
    unconstrained: bool = Field(
        False, description="Search all that lowers, whatever is known of the target"
    )
    priority: int = Field(
        0, ge=-100, le=100, description="Among jobs of owners who have as many running"
    )
    wait_seconds: float | None = Field(
        None,
        ge=0,
        le=365 * 86400,
        allow_inf_nan=False,
        description="Most time to wait for a worker; then the job ends with what is known",
    )

    def options(self) -> dict[str, Any]:
        """The options that have no place of their own in a job."""
        own = {"model", "target", "threads", "numerics", "priority", "wait_seconds"}
        return self.model_dump(exclude=own)


class ProgressView(View):
    phase: str = ""
    tasks_total: int = 0
    tasks_done: int = 0
    trials_budget: int = 0
    trials_done: int = 0
    trials_failed: int = 0
    default_seconds: float | None = None
    best_seconds: float | None = None
    seconds_left: float | None = None
    forecast_gain: float | None = Field(
        None, description="Share of best_seconds that another minute is expected to gain"
    )


class JobView(View):
    id: str
    state: str
    final: bool
    model: str
    target: str
    target_key: str | None
    worker_id: str | None = Field(None, description="The one worker that measures, if it is one")
    threads: int
    numerics: str
    options: dict[str, Any]
    priority: int = 0
    wait_seconds: float | None = None
    progress: ProgressView
    reason: str | None = Field(
        None, description="Why it waits and what would help, or why it is incomplete"
    )
    error: str | None
    result: dict[str, Any] | None
    failures: dict[str, int] = Field(
        default_factory=dict,
        description="Trials that failed, by kind; lists of jobs leave it out",
    )
    artifact: str | None = Field(description="Path to fetch the artifact from, once there is one")
    tuner: str | None
    created_at: float
    started_at: float | None
    finished_at: float | None


class TaskView(View):
    """One tuning task of a job."""

    job_id: str = Field("", description="Empty in a report of `tilewright tune`")
    workload_key: str
    name: str
    count: int
    weight: float
    status: str
    default_seconds: float | None
    best_seconds: float | None
    trials: int
    facts: dict[str, Any]


class JobEventView(View):
    """The data of a server-sent event; its id is the sequence number, its event the kind."""

    sequence: int
    kind: str
    created_at: float
    data: dict[str, Any]


# schedules


class IntervalView(View):
    """An interval for the undisturbed time of a run, in seconds; `high` is the fastest sample."""

    low: float
    high: float
    coverage: float


class RecordView(View):
    """The best schedule known, the measurement that says so, and how sure its time is."""

    workload_key: str
    target_key: str
    threads: int
    numerics: str
    schedule: dict[str, Any]
    run_seconds: float
    backing: str  # once, one-worker, one-owner, two-owners, imported, own: whose word that is
    interval: IntervalView | None = None
    measurement: dict[str, Any]
    codegen_version: str
    compiler_version: str


class LookupRequest(RequestBody):
    """Schedules in bulk: of the named workloads, or of all that a model is cut into."""

    workloads: list[Digest] | None = Field(None, max_length=10_000)
    model: Digest | None = None
    dims: dict[str, Annotated[int, Field(ge=1, le=1 << 40)]] = Field(
        default_factory=dict, max_length=64
    )
    target: str = Field("host", min_length=1, max_length=200, description="A name or a key")
    threads: int = Field(1, ge=1, le=256)
    numerics: Numerics = "fast"


class LookupEntry(View):
    workload_key: str
    name: str
    count: int
    record: RecordView | None


class LookupView(View):
    target_key: str
    threads: int
    numerics: str
    known: int
    schedules: list[LookupEntry]


class WorkloadView(View):
    key: str
    text: str


# cost models


class CostModelView(View):
    """A version; `scores` and `chance` are of the held-out tasks, its own and by chance."""

    target_key: str
    version: int
    state: str
    digest: str
    feature_version: int
    objective: str
    rows: int
    tasks: int
    trials: int
    scores: dict[str, Any]
    chance: dict[str, Any]
    created_at: float
    promoted_at: float | None


class PromotionRequest(RequestBody):
    """Let tuning runs of a target start from a version."""

    target: str = Field("host", min_length=1, max_length=200, description="A name or a key")
    version: int = Field(ge=1, le=(1 << 31) - 1)


class RollbackRequest(RequestBody):
    """Bring back the version that was promoted before the present one."""

    target: str = Field("host", min_length=1, max_length=200, description="A name or a key")


# workers and leases


MOST_FACTS_BYTES = 64 << 10
"""Of a device's facts as JSON."""


def _device_facts(value: dict[str, Any]) -> dict[str, Any]:
    """Facts that a device may have, or none at all. Raises ValueError."""
    if not value:
        return value
    try:
        DeviceFacts.from_json(value)
    except InvalidFactsError as error:
        raise ValueError(str(error)) from error
    if len(json.dumps(value)) > MOST_FACTS_BYTES:
        raise ValueError(f"device facts: they take more than {MOST_FACTS_BYTES} bytes")
    return value


DeviceFactsJson = Annotated[dict[str, Any], AfterValidator(_device_facts)]


class WorkerRequest(RequestBody):
    """A worker introduces itself. With the id it had, it is the same worker after a restart."""

    name: Name
    device: DeviceFactsJson = Field(default_factory=dict)
    targets: list[Annotated[str, Field(min_length=1, max_length=200)]] = Field(
        default_factory=list,
        max_length=64,
        description="Names or keys of targets it runs; empty: found from the device facts",
    )
    protocol: int = Field(ge=1, lt=1 << 31)
    worker_id: str | None = Field(None, max_length=64)


class WorkerSpeed(RequestBody):
    """The reference kernel as a worker last timed it, and its ratios to the best it did there."""

    arithmetic_seconds: float = Field(ge=0, allow_inf_nan=False)
    memory_seconds: float = Field(ge=0, allow_inf_nan=False)
    arithmetic_ratio: float = Field(ge=0, allow_inf_nan=False)
    memory_ratio: float = Field(ge=0, allow_inf_nan=False)
    disturbed: bool = Field(description="Slow just now: what is measured is measured again")
    throttled: bool = Field(description="Disturbed for half a minute without a break")


class WorkerCondition(RequestBody):
    """What the operating system of a worker's device says of it just now; null: nothing."""

    temperature_celsius: float | None = Field(
        None, ge=-300, le=300, allow_inf_nan=False, description="Of the hottest sensor"
    )
    load: float | None = Field(
        None, ge=0, le=1e6, allow_inf_nan=False, description="Average of the last minute"
    )
    clock_ratio: float | None = Field(
        None,
        ge=0,
        le=10,
        allow_inf_nan=False,
        description="Clock of the fastest core, as a share of its highest",
    )
    governor: str = Field("", max_length=100)


class QuarantineView(View):
    reason: str
    since: float
    canary_at: float = Field(description="When it may try one request")


class WorkerView(View):
    id: str
    name: str
    target_keys: list[str]
    targets: list[str] = Field(
        default_factory=list, description="Their names, as far as they have one; the best first"
    )
    device: dict[str, Any]
    protocol: int
    health: str
    last_heartbeat: float
    draining: bool = Field(description="It gets no new measurements, whatever its health")
    in_hand: int = Field(description="Measurement requests that it has leased")
    leases_lost: int
    created_at: float
    speed: WorkerSpeed | None = None
    condition: WorkerCondition | None = None
    quarantine: QuarantineView | None = Field(
        None, description="It failed too often: it gets nothing, then one request at a time"
    )


class RegistrationView(View):
    worker: WorkerView
    recognised: str = Field(
        "",
        description="What the device was taken for, and why; empty if it named targets",
    )
    lease_seconds: float
    heartbeat_seconds: float
    long_poll_seconds: float


class DrainRequest(RequestBody):
    """Whether a worker is to be drained, or used again."""

    draining: bool = True


LeaseId = Annotated[str, Field(pattern="^[0-9a-f]{32}$", description="The name of a lease")]


class HeartbeatRequest(RequestBody):
    """`leases`: what the worker holds."""

    leases: list[LeaseId] = Field(default_factory=list, max_length=256)
    device: DeviceFactsJson | None = None
    speed: WorkerSpeed | None = None
    condition: WorkerCondition | None = None


class HeartbeatView(View):
    """Leases that are missing from `renewed` are lost: the worker drops them."""

    renewed: dict[str, float]
    health: str


class ClaimRequest(RequestBody):
    """`claim_id` is the worker's name for this claim, never used before. Sent again because the
    answer was lost, the claim brings the same leases."""

    worker_id: str = Field(max_length=64)
    claim_id: str | None = Field(None, pattern="^[0-9a-f]{32}$")
    limit: int = Field(1, ge=1, le=64)
    wait_seconds: float = Field(0.0, ge=0, le=120, allow_inf_nan=False)


class LeaseView(View):
    lease_id: str
    request_id: str
    job_id: str | None
    target_key: str
    payload: dict[str, Any]
    blob_digests: list[str]
    attempt: int
    deadline: float


class ClaimView(View):
    leases: list[LeaseView]


class ResultRequest(RequestBody):
    """The outcome of a lease. Sending the same `result_key` again changes nothing."""

    worker_id: str = Field(max_length=64)
    result_key: str = Field(min_length=1, max_length=200)
    result: dict[str, Any]


class ResultView(View):
    completion: str


class FailureRequest(RequestBody):
    """The worker does not work on the request: it was `killed` with it in its hand, this device
    cannot (`worker`), or what the service sent cannot be worked on (`service`)."""

    worker_id: str = Field(max_length=64)
    cause: Literal["killed", "worker", "service"]
    error: str = Field(max_length=10_000)


class FailureView(View):
    state: str


class ReleaseRequest(RequestBody):
    worker_id: str = Field(max_length=64)
    leases: list[LeaseId] = Field(max_length=256)


class ReleaseView(View):
    released: int


# tokens, health

ScopeName = Literal["submit", "read", "measure", "admin"]


class TokenRequest(RequestBody):
    name: Name
    scopes: list[ScopeName] = Field(min_length=1, max_length=4)
    lifetime_seconds: float | None = Field(None, gt=0, allow_inf_nan=False)
    max_open_jobs: int | None = Field(
        None, ge=0, le=1_000_000, description="Quota; without, the service's setting"
    )
    max_running_jobs: int | None = Field(
        None, ge=0, le=1_000_000, description="Quota; without, the service's setting"
    )


class TokenView(View):
    id: str
    name: str
    scopes: list[str]
    created_at: float
    expires_at: float | None
    revoked_at: float | None
    max_open_jobs: int | None = None
    max_running_jobs: int | None = None
    last_used_at: float | None = Field(description="To within a minute or so")
    previous_until: float | None = Field(
        description="Until when the secret before the last rotation is taken"
    )


class RotationRequest(RequestBody):
    grace_seconds: float = Field(3600.0, ge=0, le=30 * 86400.0, allow_inf_nan=False)
    lifetime_seconds: float | None = Field(None, gt=0, allow_inf_nan=False)


class AuditView(View):
    """One act; `actor` is a token's id, or "" for a command on the service's own machine."""

    serial: int
    at: float
    actor: str
    actor_name: str
    origin: str
    action: str
    subject: str
    detail: dict[str, Any]


class NewTokenView(TokenView):
    """The only time that the secret is shown."""

    secret: str


class HealthView(View):
    status: Literal["ok"]
    version: str
