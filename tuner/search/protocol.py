"""What the tune loop asks of a search strategy."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from compiler.schedule.schedule import Schedule
from compiler.schedule.space import ScheduleSpace
from tuner.cost_model.protocol import CostModel
from tuner.features import FeatureExtractor


@dataclass(frozen=True, slots=True)
class SearchContext:
    """One task as a strategy sees it. `rng` is the only source of chance."""

    space: ScheduleSpace
    features: FeatureExtractor
    model: CostModel
    rng: random.Random


class SearchStrategy(Protocol):
    """Chooses candidates of one task.

    A strategy proposes members of the space only, and none twice, nor one that it was shown.
    """

    def propose(self, count: int) -> list[Schedule]:
        """Up to `count` new candidates; fewer (down to none) when the space is used up."""

    def observe(self, results: Sequence[tuple[Schedule, float | None]]) -> None:
        """What was measured: seconds of a run, or None for a failure. Also proposals of others."""
