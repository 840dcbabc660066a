"""Events that a tuning run reports while it goes on, and at its end.

The seconds of tasks and of the model are those of one inference.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from tilewright.tuner.forecast import Forecast, ForecastError
from tilewright.tuner.measure.points import ITSELF, SizePoint
from tilewright.tuner.options import TuneOptions
from tilewright.tuner.protocol.batches import MeasureRequest
from tilewright.tuner.protocol.measurement import RecordKey, TuningRecord


class Ended(StrEnum):
    """Why a run made no further trials."""

    KNOWN = "known"
    """Every task had a record already."""
    TRIALS = "trials"
    TIME = "time"
    GAIN = "gain"
    """Another minute was expected to gain less than `stop_gain`."""
    TARGET = "target"
    """The kernels together take at most `target_seconds`."""
    SPACES = "spaces"
    """Every task has no candidates left, is at the bound of the machine, or always fails."""
    DEVICE = "device"
    """The device was lost again and again."""
    ABSENT = "absent"
    """No device came that runs the target."""
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class TaskSnapshot:
    """The state of a task when an event was sent.

    Attributes:
        count: how often the model runs the task.
        from_store: whether the task had a record already, so that it needed no trial.
        origins: number of candidates by the strategy that suggested them, including candidates
            whose code had been measured before.
        best_origin: the strategy that suggested the fastest candidate.
        relative: workload key of the task that is searched in this one's place, or whose record it
            uses. Until the task's own finalists are compared, its seconds are the relative's.
    """

    name: str
    key: RecordKey
    count: int
    trials: int = 0
    failures: int = 0
    default_seconds: float | None = None
    best_seconds: float | None = None
    from_store: bool = False
    origins: tuple[tuple[str, int], ...] = ()
    best_origin: str = ""
    relative: str = ""


@dataclass(frozen=True, slots=True)
class TaskInputs:
    """The stored facts about a task with which a run starts.

    Attributes:
        known_trials: number of its trials in the store, counted from the oldest.
        incumbent: the record to beat.
        bound_seconds: the least time that the machine allows (0: unknown).
        points: the sizes at which candidates are measured.
        relative: a record of another task of its family.
        scale: factor of the task's seconds (`Task.scale`).
    """

    key: RecordKey
    name: str
    count: int
    known_trials: int
    incumbent: TuningRecord | None
    bound_seconds: float
    points: tuple[SizePoint, ...] = ITSELF
    relative: TuningRecord | None = None
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Started:
    """A run has started: its tasks are known. It has all that is needed to repeat the run.

    Attributes:
        adopted: requests that an earlier process of the job sent and whose results this process
            awaits, in the order of their numbers.
    """

    tasks: tuple[TaskSnapshot, ...]
    trials_total: int
    options: TuneOptions = field(default_factory=TuneOptions)
    inputs: tuple[TaskInputs, ...] = ()
    adopted: tuple[MeasureRequest, ...] = ()


@dataclass(frozen=True, slots=True)
class Progress:
    """A batch of candidates was measured.

    Attributes:
        model_seconds: the sum of the best known latency of each task times how often the model runs
            it; None until every task has a latency.
        seconds_left: estimated time until the end of the run, including the finals.
        forecast: the expected gain of more trials; None until every task has a latency.
        task_gain: expected gain of one more minute of trials of this task alone, as a share of the
            model's time; None if unknown.
    """

    task: TaskSnapshot
    trials_done: int
    trials_total: int
    model_seconds: float | None
    seconds_elapsed: float
    seconds_left: float
    candidates_per_second: float
    forecast: Forecast | None = None
    task_gain: float | None = None


@dataclass(frozen=True, slots=True)
class Recorded:
    """The finalists of a task were compared, and one of them became its record."""

    task: TaskSnapshot
    record: TuningRecord


@dataclass(frozen=True, slots=True)
class Screened:
    """Number of candidates that a run measured in the screening, and its duration in seconds."""

    candidates: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a run: an event, and the return value of `tune`.

    Attributes:
        forecast: the expected gain of more trials when the screening ended.
        forecast_error: the accuracy of the run's forecasts.
        journal: the order in which batches were sent and taken (see `tuner.pipeline`).
    """

    tasks: tuple[TaskSnapshot, ...]
    records: tuple[TuningRecord | None, ...]
    trials_done: int
    seconds_elapsed: float
    reason: str = ""
    ended: Ended = Ended.TRIALS
    forecast: Forecast | None = None
    forecast_error: ForecastError | None = None
    journal: tuple[int, ...] = ()
    screened: Screened = Screened(0, 0.0)

    @property
    def cancelled(self) -> bool:
        """Whether the run ended by a cancellation."""
        return self.ended is Ended.CANCELLED


Event = Started | Progress | Recorded | Finished
