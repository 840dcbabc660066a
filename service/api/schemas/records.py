"""Request and response bodies for tuning records and their review."""

from __future__ import annotations

from pydantic import Field

from tilewright.service.api.schemas.bodies import RequestBody, View, shown
from tilewright.service.api.schemas.fields import (
    SHOWN_ID,
    SHOWN_TARGET,
    Base64,
    Id,
    Key,
    MeasurementJson,
    NumericsName,
    ScheduleJson,
    Seconds,
    Time,
)
from tilewright.service.api.schemas.lookups import RecordView


class StoredRecordView(View):
    """A tuning record, its review state, and its second measurement if there was one."""

    id: Id
    name: str = Field("", description="Of its workload", examples=["conv 3x3 +relu 64x56x56"])
    state: str = Field(
        description="provisional, confirmed, superseded, disputed or withdrawn",
        examples=["confirmed"],
    )
    attestation: str = Field(
        description="Attestation: once, one-worker, one-owner, two-owners, imported or own",
        examples=["two-owners"],
    )
    reason: str = Field(description="Why it is disputed or withdrawn", examples=[""])
    job_id: Id
    worker: Id
    stored_at: Time
    confirmation: MeasurementJson | None
    record: RecordView


class CoverageView(View):
    """The number of workloads with a served record, for an operator, a target and a thread count.

    The served record of a workload is the one that lookups return.
    """

    operator: str = Field(description="Empty: of another release", examples=["conv"])
    target_key: Key
    target: str = Field(description="Its name, if it has one", examples=[SHOWN_TARGET])
    threads: int
    workloads: int


class WithdrawRequest(RequestBody):
    """The records to withdraw: by record id, or all records of workers, given by name or id."""

    model_config = shown(reason="its governor was powersave", records=[SHOWN_ID])

    reason: str = Field(min_length=1, max_length=500)
    records: list[str] = Field(default_factory=list, max_length=10_000)
    workers: list[str] = Field(default_factory=list, max_length=1000)


class WithdrawView(View):
    """The effects of a withdrawal.

    `records` are withdrawn. Lookups now return the earlier records `restored` instead. `jobs` were
    notified. `trials` is the number of withdrawn trials. `verdicts` is the number of withdrawn
    races, which compared whole programs by time.
    """

    records: list[Id]
    restored: list[Id]
    trials: int
    verdicts: int
    jobs: list[Id]


class RefusedLine(View):
    line: int
    reason: str = Field(examples=["the key is not trusted here"])


class ImportView(View):
    """The numbers of imported lines by outcome, and the rejected lines.

    Lookups now return the `served` records. `slower` records are stored, but lookups return faster
    ones. `known` records were already stored.
    """

    served: int
    slower: int
    known: int
    refused: list[RefusedLine]


class AnswerView(View):
    """The schedule to use for a workload, where it comes from, and how good it is expected to be.

    `expected_loss` is the expected slowdown relative to a tuned schedule, as a fraction; null if no
    measurements support an estimate. `pairs` is the number of pairs of measurements that the
    estimate is based on. `record` is the record that contains the schedule.
    """

    match: str = Field(
        description="exact, other-numbers, same-instructions, nearest-shape or default",
        examples=["exact"],
    )
    sentence: str = Field(examples=["tuned for this workload and this target"])
    workload_key: Key
    target_key: Key
    threads: int
    numerics: NumericsName
    schedule: ScheduleJson
    run_seconds: Seconds | None
    expected_loss: float | None
    pairs: int
    distance: float | None
    record: StoredRecordView | None


class SigningKeyView(View):
    """The public key of the key pair with which this service signs records: Ed25519, in base64."""

    public_key: Base64
