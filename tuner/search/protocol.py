"""The interface between search strategies and the tune loop."""

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
    """The inputs of a strategy for one task: its space, features, cost model and random generator.

    Attributes:
        rng: the only source of randomness.
        estimates: whether to rank candidates by estimated times until the model is trained; if not,
            all candidates rank equally until then.
    """

    space: ScheduleSpace
    features: FeatureExtractor
    model: CostModel
    rng: random.Random
    estimates: bool = True


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A candidate to measure.

    Attributes:
        origin: the method that chose it, such as "random", "mutation" or "model".
    """

    schedule: Schedule
    origin: str


@dataclass(frozen=True, slots=True)
class Observed:
    """The result of a candidate, whichever strategy suggested it.

    Attributes:
        seconds: the time of one run of the kernel; None for a failure, or without a result so far.
        object_digest: digest of the measured code, if any: equal digests mean equal code.
    """

    schedule: Schedule
    seconds: float | None
    object_digest: str = ""


class SearchStrategy(Protocol):
    """Chooses candidates for one task.

    A strategy suggests only members of the task's space. It suggests each candidate at most once,
    and none that `update` has reported.
    """

    def suggest(self, count: int) -> list[Suggestion]:
        """Return up to `count` new candidates; fewer or none if the space is used up."""

    def update(self, results: Sequence[Observed]) -> None:
        """Record results, and candidates about to be measured.

        They include candidates that other strategies suggested.
        """
