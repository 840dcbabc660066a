"""Selects the parts of a model that stay in float32, so that its loss does not exceed a limit.

A part consists of the layers that share kernels. First, each part alone is quantised, to measure
the noise that it adds to the outputs. The parts are sorted by noise per second saved, highest
first. The search keeps the first n parts of this order in float32, with the smallest possible n.

A binary search estimates n. It uses a special model that computes every part in both ways, so that
inputs select the quantised parts (`switched.py`). Then the real model is quantised with the first n
parts in float32. If its loss exceeds the limit, n grows in steps that double. Once a model meets
the limit, smaller n are tried, down to the largest n that failed. At most `ROUNDS` models are
quantised in all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from tilewright.service.show.units import finite

ROUNDS = 10
"""Limit of the models that are quantised while the parts to keep in float32 are selected."""


@dataclass(frozen=True, slots=True)
class PartNoise:
    """The effect of quantising only one part of a model (layers that share kernels).

    Attributes:
        part: the position of the part in the list of parts.
        noise: the noise-to-signal ratio of the output with the most noise.
        saved_seconds: the time that quantising the part saves in one run; None if unknown.
    """

    part: int
    noise: float
    saved_seconds: float | None


@dataclass(frozen=True, slots=True)
class Selection:
    """The result of the search for parts that stay in float32, and its steps.

    A part consists of layers that share kernels. The search first uses a switched model, whose
    inputs select for each part whether it is quantised.

    Attributes:
        candidates: all parts, in the order in which the search keeps them in float32.
        kept: the positions of the parts that stay in float32.
        runs: the number of combinations of parts that were tried on the switched model.
        rounds: for each quantised model in order, the number of parts that it keeps in float32.
    """

    candidates: tuple[PartNoise, ...]
    kept: frozenset[int]
    runs: int
    rounds: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "order": [
                {"part": c.part, "noise": finite(c.noise), "saved_seconds": c.saved_seconds}
                for c in self.candidates
            ],
            "kept": sorted(self.kept),
            "runs": self.runs,
            "rounds": list(self.rounds),
        }


def by_noise_for_time(candidates: Sequence[PartNoise]) -> tuple[PartNoise, ...]:
    """Sort parts of a model into the order in which the search keeps them in float32.

    A part consists of layers that share kernels. Parts whose quantisation saves no time come first.
    Then follow the others by noise per second saved, highest first. Unknown savings count as the
    median of the positive savings. Parts without noise come last.
    """
    known = [c.saved_seconds for c in candidates if c.saved_seconds is not None]
    usual = median([s for s in known if s > 0] or [1.0])

    def worth(candidate: PartNoise) -> tuple[bool, float]:
        saved = usual if candidate.saved_seconds is None else candidate.saved_seconds
        if saved <= 0:
            return True, candidate.noise
        return False, candidate.noise / saved

    noisy = [c for c in candidates if c.noise > 0]
    silent = [c for c in candidates if not c.noise > 0]
    return (*sorted(noisy, key=worth, reverse=True), *silent)


def select(
    candidates: Sequence[PartNoise],
    would_keep: Callable[[frozenset[int]], bool],
    does_keep: Callable[[frozenset[int]], bool],
) -> Selection | None:
    """Search for the smallest set of parts to keep in float32, so that the model meets a limit.

    A part consists of layers that share kernels.

    Args:
        candidates: all parts of the model.
        would_keep: estimates whether the model meets the limit with these parts in float32. It runs
            a model whose inputs select the quantised parts, so that nothing is compiled.
        does_keep: quantises the real model with these parts in float32, and returns whether it
            meets the limit.

    Returns:
        The search with the selected parts, the last set for which `does_keep` returned true; None
        if no tried set meets the limit.
    """
    order = by_noise_for_time(candidates)
    runs = len(order)

    def first(count: int) -> frozenset[int]:
        return frozenset(candidate.part for candidate in order[:count])

    low, high = 0, len(order)  # keeping all of them gives the float32 model, which has no loss
    while low < high:
        middle = (low + high) // 2
        runs += 1
        if would_keep(first(middle)):
            high = middle
        else:
            low = middle + 1
    rounds: list[int] = []
    too_few, enough = low - 1, len(order)
    count, step = low, 1
    while too_few < count < enough and len(rounds) < ROUNDS:
        rounds.append(count)
        if does_keep(first(count)):
            enough = count
        else:
            too_few = count
        if enough < len(order):
            count = (too_few + enough) // 2
        else:
            count, step = min(count + step, len(order) - 1), 2 * step
    if enough == len(order):
        return None
    return Selection(order, first(enough), runs, tuple(rounds))
