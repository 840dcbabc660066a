"""Events that a tuning run emits, for progress displays and for recordings.

A task's time is the time of one run of its kernel. The model's time is the time of one inference.
Both are in seconds.
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
    """Why a tuning run stopped making trials."""

    KNOWN = "known"
    """Every task already had a record, so nothing was tuned."""
    TRIALS = "trials"
    TIME = "time"
    GAIN = "gain"
    """Tuning for another minute was expected to gain less than `stop_gain`."""
    TARGET = "target"
    """The kernels of one inference together take at most `target_seconds`."""
    SPACES = "spaces"
    """No task can improve: each one has no candidates left, has reached the machine's bound, or
    always fails."""
    DEVICE = "device"
    """The device was lost in several consecutive batches."""
    ABSENT = "absent"
    """A device that can run the target's code did not become available."""
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class TaskSnapshot:
    """The state of a task at the time of an event.

    Attributes:
        count: number of occurrences of the task in the model.
        trials: number of measured candidates; `failures` of them failed.
        default_seconds, best_seconds: time of the default schedule and of the fastest schedule so
            far; None until measured.
        from_store: whether the task had a record when the run started, so that it needed no trial.
        origins: number of candidates from each origin, such as a search strategy. Candidates whose
            code had been measured before are included.
        best_origin: the origin of the fastest candidate.
        relative: workload key of a task of the same family that is searched instead of this one, or
            whose record this task uses. Until the task's own finalists are compared, its seconds
            are those of the relative. Empty if the task itself is searched.
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
    """The data about a task with which a run starts, recorded so that the run can be replayed.

    Attributes:
        count: number of occurrences of the task in the model.
        known_trials: number of the task's trials in the store when the run started. A replay uses
            this many of the oldest trials.
        incumbent: the task's record at the start, which new candidates have to beat; None without
            one.
        bound_seconds: lower bound of the time on this machine; 0: unknown.
        points: the sizes at which candidates are measured.
        relative: a record of another task of its family; None without one.
        scale: factor by which the task's time is multiplied in the model's time. It differs from 1
            if the task covers only a part of a dimension's range (`Task.scale`).
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
    """Event: a run has started. It contains all inputs that a replay of the run needs.

    Attributes:
        trials_total: the planned number of trials of all tasks.
        inputs: the stored data about each task.
        adopted: requests that an earlier process of the same job sent and whose results this
            process awaits, in the order of their batch numbers.
    """

    tasks: tuple[TaskSnapshot, ...]
    trials_total: int
    options: TuneOptions = field(default_factory=TuneOptions)
    inputs: tuple[TaskInputs, ...] = ()
    adopted: tuple[MeasureRequest, ...] = ()


@dataclass(frozen=True, slots=True)
class Progress:
    """Event: a batch of candidates was measured.

    Attributes:
        task: the task of the batch.
        model_seconds: the sum over all tasks of the best time times the task's occurrences in the
            model; None until every task has a time.
        seconds_left: estimated time until the end of the run, including the comparison of the
            finalists.
        forecast: the expected gain of more trials; None until every task has a time.
        task_gain: expected gain if all trials of the next minute go to this task, as a fraction of
            the model's time; None if unknown.
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
    """Event: the finalists of a task were compared, and one of them became the task's record."""

    task: TaskSnapshot
    record: TuningRecord


@dataclass(frozen=True, slots=True)
class Screened:
    """The extent of a run's screening, the phase before finalists are compared.

    `candidates` is the number of candidates measured in this phase, and `seconds` its duration.
    """

    candidates: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Finished:
    """Event: the run has ended. It is also the return value of `tune`.

    Attributes:
        records: the record of each of `tasks`; None for a task without one.
        reason: why the run was cancelled, or the error of the lost device, as a message to the
            user; otherwise empty.
        ended: why the run made no further trials.
        forecast: the expected gain of more trials when the screening ended.
        forecast_error: the accuracy of the run's forecasts.
        journal: the order in which batches were sent and their results processed
            (`tuner.pipeline`), for a replay.
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
        """Whether a cancellation ended the run."""
        return self.ended is Ended.CANCELLED


Event = Started | Progress | Recorded | Finished
