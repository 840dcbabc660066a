"""Tables of tuned sizes, cost models, and recordings of tuning runs."""

from __future__ import annotations

from typing import Any

from sqlalchemy.orm import Mapped, mapped_column

from tilewright.db.models.base import Base, Json


class TunedSizesRow(Base):
    """A combination of sizes of a model's dynamic dimensions, at which a job tuned the model."""

    __tablename__ = "tuned_sizes"

    model_digest: Mapped[str] = mapped_column(primary_key=True)
    target_key: Mapped[str] = mapped_column(primary_key=True)
    threads: Mapped[int] = mapped_column(primary_key=True)
    numerics: Mapped[str] = mapped_column(primary_key=True)
    precision: Mapped[str] = mapped_column(primary_key=True)
    sizes: Mapped[str] = mapped_column(primary_key=True)  # canonical JSON, by dimension


class CostModelRow(Base):
    """A version of the cost model of a target. Its file is stored as the blob `digest`.

    Attributes:
        rows, tasks: number of training examples, and of the tasks that they come from.
        trials: number of trials that the target had when the model was trained.
        scores, chance: the scores of the model and of a random ranking on held-out tasks, as JSON.
    """

    __tablename__ = "cost_models"

    target_key: Mapped[str] = mapped_column(primary_key=True)
    version: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    digest: Mapped[str]
    feature_version: Mapped[int]
    objective: Mapped[str]
    rows: Mapped[int]
    tasks: Mapped[int]
    trials: Mapped[int]  # of the target, at the time of the training
    scores: Mapped[Json]  # on held-out tasks
    chance: Mapped[Json]  # of a random ranking of the same candidates
    state: Mapped[str]
    created_at: Mapped[float]
    promoted_at: Mapped[float | None]


class TuningRunRow(Base):
    """The recording of a tuning run: options, inputs, order of its batches, result and forecast.

    With the stored trials, `tilewright job replay` repeats the run without a device.

    Attributes:
        starts: how often the run was started; more than 1 if it was killed and continued.
        adopted: measurement requests that an earlier process of the job sent and whose results this
            run used, as JSON.
        journal: the order in which batches of candidates were sent and their results taken.
        ended: why the run ended.
        model_seconds: time of one run of the model with the best schedules.
        forecast_gain: expected gain of another minute of tuning, as a fraction of `model_seconds`.
        forecast_error: the accuracy of earlier forecasts (`tuner.forecast.ForecastError`), as JSON.
    """

    __tablename__ = "tuning_runs"

    id: Mapped[str] = mapped_column(primary_key=True)
    starts: Mapped[int]
    options: Mapped[Json]
    inputs: Mapped[list[Any]]
    adopted: Mapped[list[Any]]
    journal: Mapped[list[Any] | None]
    ended: Mapped[str | None]
    trials: Mapped[int | None]
    seconds: Mapped[float | None]
    model_seconds: Mapped[float | None]
    forecast_gain: Mapped[float | None]
    forecast_error: Mapped[Json | None]
    started_at: Mapped[float]
    finished_at: Mapped[float | None]
