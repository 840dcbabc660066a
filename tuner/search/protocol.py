"""The interface between search strategies and the tuning loop."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.schedule.space import ScheduleSpace
from tilewright.tuner.analysis.features import FeatureExtractor
from tilewright.tuner.cost_model.protocol import CostModel


@dataclass(frozen=True, slots=True)
class SearchContext:
    """The inputs of a search strategy for one task.

    Attributes:
        space: the schedules to search.
        features: computes features and estimates of schedules.
        model: the cost model of the run.
        rng: the only source of randomness of the strategy.
        estimates: whether candidates are ranked by estimated times until the model is trained. If
            false, all candidates have the same score until then.
    """

    space: ScheduleSpace
    features: FeatureExtractor
    model: CostModel
    rng: random.Random
    estimates: bool = True


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A candidate that a search strategy suggests for measurement.

    Attributes:
        origin: the method that created or chose it, such as "random", "mutation" or "model".
    """

    schedule: Schedule
    origin: str


@dataclass(frozen=True, slots=True)
class Observed:
    """The result of a candidate, as reported to search strategies.

    Attributes:
        seconds: the time of one run of the kernel; None if the candidate failed or has no result
            yet.
        object_digest: digest of the measured code, by which equal code is recognised; empty if
            unknown.
    """

    schedule: Schedule
    seconds: float | None
    object_digest: str = ""


class SearchStrategy(Protocol):
    """A search strategy for one task, which suggests candidates to measure.

    It suggests only schedules of the task's space, each at most once. It suggests no schedule that
    was passed to `update` before.
    """

    def suggest(self, count: int) -> list[Suggestion]:
        """Suggest `count` new candidates; fewer or none if the space has no more."""

    def update(self, results: Sequence[Observed]) -> None:
        """Record the results of candidates, including those that other strategies suggested.

        Candidates that will be measured soon are also reported, without a time.
        """
