"""What a tuning run reports while it goes on, and what it ends with. Seconds are of one run."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from tuner.forecast import Forecast, ForecastError
from tuner.measure.measurement import RecordKey, TuningRecord
from tuner.measure.wire import MeasureRequest
from tuner.options import TuneOptions


class Ended(StrEnum):
    """Why a run made no further trials."""

    KNOWN = "known"
    """Every task had a record already."""
    TRIALS = "trials"
    TIME = "time"
    GAIN = "gain"
    """Less was expected of another minute than `stop_gain`."""
    TARGET = "target"
    """The kernels add up to no more than `target_seconds`."""
    SPACES = "spaces"
    """Every task is used up, at the bound of the machine, or fails whatever is tried."""
    DEVICE = "device"
    """The device was lost again and again."""
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class TaskSnapshot:
    """A task as it stands. `from_store` tasks had a record already and cost no trial.

    `origins` counts the trials by who suggested them (what was the code of an earlier one, too, and
    is no trial), `best_origin` is who suggested what is fastest.
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


@dataclass(frozen=True, slots=True)
class TaskInputs:
    """What a run knew of a task before its first trial: `known_trials` is how many the store had,
    the oldest first, `incumbent` the record to beat, `bound_seconds` the least time that the
    machine allows (0: unknown)."""

    key: RecordKey
    name: str
    count: int
    known_trials: int
    incumbent: TuningRecord | None
    bound_seconds: float


@dataclass(frozen=True, slots=True)
class Started:
    """A run knows its tasks. Options, inputs and what it adopted are what it can be repeated from.

    `adopted` are the requests that an earlier process of the job had sent, and that this one waits
    for, in the order of their numbers.
    """

    tasks: tuple[TaskSnapshot, ...]
    trials_total: int
    options: TuneOptions = field(default_factory=TuneOptions)
    inputs: tuple[TaskInputs, ...] = ()
    adopted: tuple[MeasureRequest, ...] = ()


@dataclass(frozen=True, slots=True)
class Progress:
    """A batch was measured.

    `model_seconds` sums the best known latency of all tasks, each as often as the model runs it;
    None until every task has one, and so is the forecast. `seconds_left` is an estimate, finals
    included.
    """

    task: TaskSnapshot
    trials_done: int
    trials_total: int
    model_seconds: float | None
    seconds_elapsed: float
    seconds_left: float
    candidates_per_second: float
    forecast: Forecast | None = None


@dataclass(frozen=True, slots=True)
class Recorded:
    """The finalists of a task were compared; `improved` says whether the record is a new one."""

    task: TaskSnapshot
    record: TuningRecord
    improved: bool


@dataclass(frozen=True, slots=True)
class Screened:
    """What a run did before it compared finalists: candidates that it measured, and its seconds."""

    candidates: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a run: also what `tune` returns.

    `forecast` is what going on was expected to gain at the end of the screening, `forecast_error`
    how well forecasts came true. `journal` says in which order batches were sent and taken (see
    `tuner.pipeline`).
    """

    tasks: tuple[TaskSnapshot, ...]
    records: tuple[TuningRecord | None, ...]
    trials_done: int
    seconds_elapsed: float
    cancelled: bool = False
    reason: str = ""
    ended: Ended = Ended.TRIALS
    forecast: Forecast | None = None
    forecast_error: ForecastError | None = None
    journal: tuple[int, ...] = ()
    screened: Screened = Screened(0, 0.0)


Event = Started | Progress | Recorded | Finished
