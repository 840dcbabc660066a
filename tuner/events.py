"""What a tuning run reports while it goes on, and what it ends with. Seconds are of one run."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.measure.measurement import RecordKey, TuningRecord


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """A task as it stands. `from_store` tasks had a record already and cost no trial."""

    name: str
    key: RecordKey
    count: int
    trials: int = 0
    failures: int = 0
    default_seconds: float | None = None
    best_seconds: float | None = None
    from_store: bool = False


@dataclass(frozen=True, slots=True)
class Started:
    """A run knows its tasks."""

    tasks: tuple[TaskStatus, ...]
    trials_total: int


@dataclass(frozen=True, slots=True)
class Progress:
    """A batch was measured.

    `model_seconds` sums the best known latency of all tasks, each as often as the model runs it;
    None until every task has one. `seconds_left` is an estimate, finals included.
    """

    task: TaskStatus
    trials_done: int
    trials_total: int
    model_seconds: float | None
    seconds_elapsed: float
    seconds_left: float
    candidates_per_second: float


@dataclass(frozen=True, slots=True)
class Recorded:
    """The finalists of a task were compared; `improved` says whether the record is a new one."""

    task: TaskStatus
    record: TuningRecord
    improved: bool


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a run: also what `tune` returns."""

    tasks: tuple[TaskStatus, ...]
    records: tuple[TuningRecord | None, ...]
    trials_done: int
    seconds_elapsed: float
    cancelled: bool = False
    reason: str = ""


Event = Started | Progress | Recorded | Finished
