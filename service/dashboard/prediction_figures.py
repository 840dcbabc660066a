"""Scatter plots of predicted against measured speed, one dot per trial."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.service.api.schemas.jobs import OrderView, PredictionsView
from tilewright.service.units import finite

WIDTH, HEIGHT = 320.0, 220.0


@dataclass(frozen=True, slots=True)
class PredictionPlot:
    """The plot of one predictor, with a dot per trial: prediction on x, measured speed on y.

    The measured axis ranges from 0 to the fastest trial. The predicted axis ranges from the lowest
    to the highest prediction.
    """

    name: str
    means: str
    order: OrderView | None
    dots: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class PredictionFigures:
    """The plots of the cost model, if one exists, and of the roofline estimate."""

    version: int | None
    refusal: str
    trials: int
    plots: tuple[PredictionPlot, ...]
    size: tuple[float, float] = (WIDTH, HEIGHT)

    @classmethod
    def of(cls, found: PredictionsView) -> PredictionFigures:
        times = [finite(one.measured_seconds) for one in found.trials]
        measured = [s if s is not None and s > 0.0 else math.inf for s in times]
        scores = [one.score for one in found.trials]
        estimates = [finite(one.estimated_seconds) for one in found.trials]
        plots = []
        if any(score is not None for score in scores):
            known = [finite(score) for score in scores]
            name = f"Cost model, version {found.version}"
            dots = _dots(known, measured)
            plots.append(PredictionPlot(name, "its score", found.by_score, dots))
        if found.trials:
            # on a logarithmic scale, a factor of two has the same length everywhere
            logs = [-math.log(s) if s is not None and s > 0.0 else None for s in estimates]
            dots = _dots(logs, measured)
            means = "speed, by the logarithm"
            plots.append(PredictionPlot("The machine's roofs", means, found.by_estimate, dots))
        return cls(found.version, found.refusal, len(found.trials), tuple(plots))


def _dots(
    said: Sequence[float | None], measured: Sequence[float]
) -> tuple[tuple[float, float], ...]:
    known = [value for value in said if value is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    span = high - low
    fastest = min(measured, default=math.inf)
    return tuple(
        (
            WIDTH * ((value - low) / span if span and math.isfinite(span) else 0.5),
            HEIGHT * (1.0 - fastest / seconds) if math.isfinite(seconds) else HEIGHT,
        )
        for value, seconds in zip(said, measured, strict=True)
        if value is not None
    )
