"""What the tune loop asks of a search strategy."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from compiler.schedule.schedule import Schedule
from compiler.schedule.space import ScheduleSpace
from tuner.analysis.features import FeatureExtractor
from tuner.cost_model.protocol import CostModel


@dataclass(frozen=True, slots=True)
class SearchContext:
    """One task as a strategy sees it. `rng` is the only source of chance.

    Without `estimates` nothing is thought of a candidate before the model is trained.
    """

    space: ScheduleSpace
    features: FeatureExtractor
    model: CostModel
    rng: random.Random
    estimates: bool = True


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A candidate to measure. `origin` says how it was chosen: "random", "mutation", "model"..."""

    schedule: Schedule
    origin: str


@dataclass(frozen=True, slots=True)
class Observed:
    """What came of a candidate, whoever suggested it.

    `seconds` is one run of the kernel; None for a failure, and for a candidate that is on its way.
    `object_digest` names the code that was measured, if any: equal digests are equal code.
    """

    schedule: Schedule
    seconds: float | None
    object_digest: str = ""


class SearchStrategy(Protocol):
    """Chooses candidates of one task.

    A strategy suggests members of the space only, and none twice, nor one that it was shown.
    """

    def suggest(self, count: int) -> list[Suggestion]:
        """Up to `count` new candidates; fewer (down to none) when the space is used up."""

    def update(self, results: Sequence[Observed]) -> None:
        """What was measured, or is about to be: also candidates that others suggested."""
