"""Events that a tuning run emits, for progress displays, and to record the run for a later replay.

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
    """The state of a task (a workload to tune for a target) at the time of an event.

    Attributes:
        name: the name of the task for users.
        key: workload, target, threads and numerics of the task.
        count: number of occurrences of the task in the model.
        trials: number of measured candidates; `failures` of them failed.
        default_seconds: time of the default schedule; None until measured.
        best_seconds: time of the fastest schedule so far; None until measured.
        from_store: whether the task's best schedule was stored by an earlier run, so that it needed
            no trial.
        origins: number of candidates from each origin, such as a search strategy. Candidates whose
            code had been measured before are included.
        best_origin: the origin of the fastest candidate.
        relative: workload key of a similar task, whose workload differs only in numbers such as
            scales; empty without one. This task is then not searched: it tries the schedule of the
            similar task. A time that was not yet measured for this task is then the time of
            the similar task, as far as known.
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

    A task is a workload to tune for a target. A replay repeats the run with its stored
    measurements.

    Attributes:
        key: workload, target, threads and numerics of the task.
        name: the name of the task for users.
        count: number of occurrences of the task in the model.
        known_trials: number of the task's trials in the store when the run started. A replay uses
            this many of the oldest trials.
        incumbent: the best stored trial at the start, which new candidates have to beat; None
            without one.
        bound_seconds: lower bound of the time on this machine; 0: unknown.
        points: the sizes at which candidates are measured.
        relative: the best stored trial of another task, whose workload differs only in numbers such
            as scales; None without one.
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
        tasks: the state of each task.
        trials_total: the planned number of trials of all tasks.
        options: the settings of the run.
        inputs: the stored data about each task.
        adopted: measurement requests that an earlier, interrupted process of the same job sent.
            This process awaits their results. The order is that of their batch numbers.
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
        seconds_left: estimated time until the end of the run, including the final comparison of
            each task's fastest candidates.
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
    """Event: the fastest candidates of a task were compared, and the result was stored.

    Attributes:
        task: the task.
        record: the best candidate and its measurement.
    """

    task: TaskSnapshot
    record: TuningRecord


@dataclass(frozen=True, slots=True)
class Screened:
    """The extent of a run's screening, which measures many candidates with few samples each.

    After screening, the fastest candidates of each task are compared more precisely.

    Attributes:
        candidates: number of candidates measured in this phase.
        seconds: duration of this phase.
    """

    candidates: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Finished:
    """Event: the run has ended. It is also the return value of `tune`.

    Attributes:
        tasks: the final state of each task.
        records: for each of `tasks`, the best stored trial; None without one.
        reason: why the run was cancelled, or the error of the lost device, as a message to the
            user; otherwise empty.
        ended: why the run made no further trials.
        forecast: the expected gain of more trials at the end of the screening, the phase before the
            fastest candidates are compared.
        forecast_error: the accuracy of the run's forecasts.
        journal: the order in which batches were sent and their results processed
            (`tuner.pipeline`), with which the run can be replayed.
        screened: the extent of the screening.
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
