"""Request and response bodies for lookups of schedules."""

from __future__ import annotations

from pydantic import Field, field_validator

from tilewright.compiler.sizes.hinted_ranges import size_choices
from tilewright.service.api.schemas.bodies import View, shown
from tilewright.service.api.schemas.fields import (
    SHOWN_KEY,
    SHOWN_TARGET,
    Digest,
    Key,
    MeasurementJson,
    NumericsName,
    ScheduleJson,
    Seconds,
    Size,
    SizeRange,
    Version,
)
from tilewright.service.api.schemas.options import ModeRequest


class IntervalView(View):
    """A confidence interval for the time of an undisturbed run, in seconds.

    `coverage` is the confidence level. `high` is the fastest measured run, because disturbances
    only lengthen a run.
    """

    low: Seconds
    high: Seconds
    coverage: float = Field(examples=[0.95])


class RecordView(View):
    """A tuning record: the best known schedule of a workload, and its measurement."""

    workload_key: Key
    target_key: Key
    threads: int
    numerics: NumericsName
    schedule: ScheduleJson
    run_seconds: Seconds
    attestation: str = Field(
        description="Whose word it is: once, one-worker, one-owner, two-owners, imported or own",
        examples=["two-owners"],
    )
    interval: IntervalView | None = None
    measurement: MeasurementJson
    codegen_version: Version
    compiler_version: Version


class LookupRequest(ModeRequest):
    """Asks for the best schedules of the given workloads, or of all workloads of a model."""

    model_config = shown(workloads=[SHOWN_KEY], target=SHOWN_TARGET, threads=1)

    workloads: list[Digest] | None = Field(None, max_length=10_000)
    model: Digest | None = None
    dims: dict[str, Size | SizeRange] = Field(
        default_factory=dict,
        max_length=64,
        description="Sizes or ranges of the model's named dimensions, as of a job",
    )
    target: str = Field("host", min_length=1, max_length=200, description="A name or a key")

    @field_validator("dims")
    @classmethod
    def _read(cls, dims: dict[str, int | str]) -> dict[str, int | str]:
        """Convert the sizes and ranges of all dimensions to a unique form, such as "16..16" to 16.

        Raises:
            ValueError: if a size or range is invalid.
        """
        return {name: size_choices(name, [size])[0] for name, size in dims.items()}


class LookupEntry(View):
    workload_key: Key
    name: str = Field(examples=["conv2d 64x56x56 -> 64x56x56, relu"])
    count: int
    record: RecordView | None


class LookupView(View):
    target_key: Key
    threads: int
    numerics: NumericsName
    known: int
    schedules: list[LookupEntry]
