"""The protocol of search strategies, as the tune loop uses it."""

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
    """One task as a strategy sees it. `rng` is the only source of randomness.

    Without `estimates`, all candidates are equal until the model is trained.
    """

    space: ScheduleSpace
    features: FeatureExtractor
    model: CostModel
    rng: random.Random
    estimates: bool = True


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A candidate to measure. `origin` names the way in which it was chosen: "random", "mutation",
    "model"..."""

    schedule: Schedule
    origin: str


@dataclass(frozen=True, slots=True)
class Observed:
    """The result of a candidate, whoever suggested it.

    `seconds` is the time of one run of the kernel; None for a failure, and for a candidate on its
    way. `object_digest` names the code that was measured, if any: equal digests mean equal code.
    """

    schedule: Schedule
    seconds: float | None
    object_digest: str = ""


class SearchStrategy(Protocol):
    """Chooses candidates of one task.

    A strategy suggests members of the space only. It suggests none twice, and none that `update`
    has shown it.
    """

    def suggest(self, count: int) -> list[Suggestion]:
        """Up to `count` new candidates; fewer, or none, if the space is used up."""

    def update(self, results: Sequence[Observed]) -> None:
        """Take results, and candidates about to be measured, including those others suggested."""
