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
    """Current state of a task. `from_store` tasks had a record already and cost no trial.

    `origins` counts the candidates by the strategy that suggested them, including candidates whose
    code was measured before. `best_origin` suggested the fastest. `relative` is the workload key of
    the task that is searched in its place, or whose record it takes; its seconds are those of the
    relative until its own finalists were compared.
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
    """Knowledge about a task before its first trial in a run.

    `known_trials` is the number of its trials in the store, counted from the oldest. `incumbent` is
    the record to beat. `bound_seconds` is the least time that the machine allows (0: unknown).
    Candidates were measured at `points`; `scale` is the task's. `relative` is a record of its
    family.
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
    """The tasks of a run are known. The run can be repeated from its options, its inputs and the
    adopted requests.

    `adopted` are requests that an earlier process of the job sent and this one waits for, in the
    order of their numbers.
    """

    tasks: tuple[TaskSnapshot, ...]
    trials_total: int
    options: TuneOptions = field(default_factory=TuneOptions)
    inputs: tuple[TaskInputs, ...] = ()
    adopted: tuple[MeasureRequest, ...] = ()


@dataclass(frozen=True, slots=True)
class Progress:
    """A batch was measured.

    `model_seconds` sums the best known latency of all tasks, each as often as the model runs it.
    It and `forecast` are None until every task has a latency. `seconds_left` is an estimate, finals
    included. `task_gain` is the share of the model's time that a minute of trials of this task
    alone is expected to gain; None if it is not known.
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
    """The finalists of a task were compared, and one of them is its record."""

    task: TaskSnapshot
    record: TuningRecord


@dataclass(frozen=True, slots=True)
class Screened:
    """The candidates that a run measured before it compared finalists, and the seconds it took."""

    candidates: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a run. `tune` returns it, too.

    `forecast` says what further trials were expected to gain when the screening ended, and
    `forecast_error` how well the forecasts came true. `journal` is the order in which batches were
    sent and taken (see `tuner.pipeline`).
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
        """Whether the run was cancelled before its work was done."""
        return self.ended is Ended.CANCELLED


Event = Started | Progress | Recorded | Finished
