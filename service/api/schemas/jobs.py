"""Request and response bodies for jobs, their tasks and their events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field, field_validator

from tilewright.compiler.sizes.hinted_ranges import size_choices
from tilewright.service.api.schemas.bodies import View, shown
from tilewright.service.api.schemas.fields import (
    SHOWN_KEY,
    SHOWN_TARGET,
    Digest,
    Id,
    Key,
    NumericsName,
    ScheduleJson,
    Seconds,
    Time,
)
from tilewright.service.api.schemas.options import ModeRequest
from tilewright.service.options import JobOptions, ModeOptions, QueueOptions


class JobRequest(ModeRequest, options=(JobOptions, QueueOptions)):
    """A request to tune a model. The job ends at one of its limits, such as `trials`."""

    model_config = shown(model=SHOWN_KEY, target=SHOWN_TARGET, trials=500, dims={"batch": 1})

    model: Digest
    target: str = Field(
        "host",
        min_length=1,
        max_length=200,
        description="A target by name or key, `host` (the service's machine), or a worker by name "
        "or id, which alone measures then",
    )

    if TYPE_CHECKING:

        def __init__(self, **fields: Any) -> None:
            """For type checkers only: accept the fields that are generated from options."""

    @field_validator("dims")
    @classmethod
    def _choices(
        cls, dims: dict[str, int | str | list[int | str]]
    ) -> dict[str, int | str | list[int | str]]:
        """Remove duplicate sizes of each dimension.

        Raises:
            ValueError: if a size is invalid, or a dimension has more than one range.
        """
        return {
            name: list(size_choices(name, sizes))
            if isinstance(sizes, list)
            else size_choices(name, [sizes])[0]
            for name, sizes in dims.items()
        }

    @property
    def job_options(self) -> JobOptions:
        return JobOptions.from_json(self.stated(JobOptions))

    @property
    def queue_options(self) -> QueueOptions:
        return QueueOptions.from_json(self.stated(QueueOptions))

    def stored(self) -> dict[str, Any]:
        """Return the options as JSON for the table of jobs.

        Threads and numerics are left out, because they are columns of that table.
        """
        options = {**self.stated(ModeOptions), **self.stated(JobOptions)}
        left_out = {name for name in ("samples", "values") if not options[name]}
        return {n: v for n, v in options.items() if n not in left_out | {"threads", "numerics"}}


class ProgressView(View):
    phase: str = Field("", examples=["tuning"])
    tasks_total: int = 0
    tasks_done: int = 0
    trials_budget: int = 0
    trials_done: int = 0
    trials_failed: int = 0
    default_seconds: Seconds | None = None
    best_seconds: Seconds | None = None
    seconds_left: float | None = None
    forecast_gain: float | None = Field(
        None, description="Share of best_seconds that another minute is expected to gain"
    )


class JobView(View):
    id: Id
    state: str = Field(examples=["running"])
    final: bool
    model: Key
    model_name: str = Field("", description="As it was uploaded", examples=["resnet50.onnx"])
    owner: str = Field("", description="Name of the token that made it", examples=["ci"])
    target: str = Field(examples=[SHOWN_TARGET])
    target_key: Key
    worker_id: Id | None = Field(
        None, description="The job's worker, if only one measures", examples=[None]
    )
    threads: int
    numerics: NumericsName
    options: dict[str, Any] = Field(examples=[{"trials": 500, "seconds": 600.0, "dims": {}}])
    priority: int = 0
    wait_seconds: float | None = None
    progress: ProgressView
    reason: str | None = Field(
        None,
        description="Why the job waits and a remedy, or why it is incomplete",
        examples=[None],
    )
    error: str | None = Field(examples=[None])
    result: dict[str, Any] | None = Field(examples=[None])
    failures: dict[str, int] = Field(
        default_factory=dict,
        description="Trials that failed, by kind; lists of jobs leave it out",
        examples=[{"build_error": 0, "crash": 1}],
    )
    artifact: str | None = Field(
        description="Path of the artifact's download, once it exists", examples=[None]
    )
    tuner: str | None = Field(examples=["tuner-1"])
    created_at: Time
    started_at: Time | None
    finished_at: Time | None = Field(examples=[None])


class CurvePoint(View):
    """The progress of a job at the time `at`.

    `default_seconds` is the model's latency with untuned schedules; `best_seconds` is the latency
    with the best schedules so far.
    """

    at: Time
    trials: int
    default_seconds: Seconds | None
    best_seconds: Seconds | None


class CurveView(View):
    """The progress of a job since its first trial.

    A long curve is reduced to an evenly spaced selection of its points.
    """

    sequence: int = Field(
        description="Sequence number of the last event in the curve; stream on from it"
    )
    points: list[CurvePoint]


class TaskView(View):
    """A tuning task of a job: a workload, its count in the model, its times and its trials."""

    job_id: Id = Field("", description="Empty in a report of `tilewright tune`")
    workload_key: Key
    name: str = Field(examples=["conv2d 64x56x56 -> 64x56x56, relu"])
    count: int
    weight: float
    status: str = Field(examples=["tuning"])
    default_seconds: Seconds | None
    best_seconds: Seconds | None
    trials: int
    facts: dict[str, Any] = Field(examples=[{"operations": 231_211_008, "schedule": "direct"}])


class NestView(View):
    """A schedule of a task, and the loop nest that it generates, as text."""

    schedule: ScheduleJson
    text: str = Field(examples=["nest conv2d ..."])


class CodeLoopView(View):
    """An innermost loop of a kernel's assembly.

    `registers` is the number of vector registers in it.
    """

    label: str = Field(examples=["0_4"])
    instructions: int
    fmas: int
    spills: int
    registers: int


class CodeView(View):
    """The loop nest and the assembly of a task's schedule.

    LLVM generates the assembly for the target without running it.
    """

    schedule: ScheduleJson
    nest: str = Field(examples=["nest conv2d ..."])
    assembly: str = Field(
        description="Without directives; innermost loops and spills are marked",
        examples=["tw_9f86_s0:\n    vxorps ..."],
    )
    nest_lines_left_out: int = Field(description="Of a text that is too long")
    assembly_lines_left_out: int
    instructions: int = Field(description="In the text of the code, each counted once")
    fmas: int
    spills: int = Field(description="Stores and reloads of vector registers on the stack")
    registers: int = Field(description="Vector registers that the code names")
    all_registers: int = Field(description="Vector registers of the target")
    loops: list[CodeLoopView] = Field(description="Innermost loops, most multiply-adds first")
    more_loops: int = Field(description="Innermost loops that are not listed")


class PredictionView(View):
    """The predicted and the measured time of a trial."""

    trial_id: Id
    measured_seconds: Seconds
    estimated_seconds: Seconds = Field(description="By the roofline model")
    score: float | None = Field(
        description="Score of the cost model, without a unit: higher is faster"
    )


class OrderView(View):
    """How well a prediction ranks trials: the agreement with their measured times.

    `pairwise` is the fraction of pairs of trials that the prediction ranks correctly. `top1` is the
    time of the fastest trial divided by the time of the trial predicted as fastest. `top5` is the
    same for the fastest of the five trials predicted as fastest.
    """

    pairwise: float = Field(description="Share of the pairs in order; 0.5 by chance")
    top1: float = Field(description="Fastest time divided by the time of the first pick")
    top5: float


class PredictionsView(View):
    """The predicted and the measured times of a task's newest successful trials.

    `by_score` states how well the cost model ranks them, and `by_estimate` how well the roofline
    model does. Both are null with too few trials, and `by_score` also without a cost model.
    """

    version: int | None = Field(
        description="Version of the cost model; null: only the roofline model predicts"
    )
    refusal: str = Field(description="Why the cost model made no prediction", examples=[""])
    by_score: OrderView | None
    by_estimate: OrderView | None
    trials: list[PredictionView]


class JobEventView(View):
    """An event of a job. A stream sends it as the data of a server-sent event.

    In the stream, the event's `id` is the sequence number, and its `event` is the kind.
    """

    sequence: int
    kind: str = Field(examples=["state"])
    created_at: Time
    data: dict[str, Any] = Field(examples=[{"state": "running"}])
