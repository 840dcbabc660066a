"""Two knobs together: which values go well with which, where neither knob says so by itself."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from tilewright.service.sentences import one_sentence

MOST_PAIRS = 4
MOST_VALUES = 8
"""Of a knob: those with the fastest trials."""

LEAST_FILLED = 0.5
"""Share of the fields that trials must have filled: with fewer there is no pattern to see."""

SHADES = 10
SWEEPS = 8
"""Of taking out what rows and columns say by themselves; with gaps it takes a few."""

LONGEST_NAME = 12
MOST_STRENGTH = 999.0


@dataclass(frozen=True, slots=True)
class Field:
    """The fastest trial that has both values: its speed, 1 for the fastest of all."""

    speed: float

    @property
    def shade(self) -> int:
        """From 0 to `SHADES`, with the speed."""
        return round(SHADES * self.speed)


@dataclass(frozen=True, slots=True)
class KnobPair:
    """Values of one knob down and of another across; a field is None where no trial has both.

    `strength` is by what factor the fields' speeds are off, typically, where each knob is taken to
    do the same whatever the other does: 1 if they have nothing to do with each other.
    """

    down: str
    across: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Field | None, ...]], ...]
    strength: float


def interactions(
    trials: Sequence[tuple[Mapping[str, Any], float]], knobs: Sequence[str]
) -> tuple[KnobPair, ...]:
    """Pairs of knobs, first those that depend on each other most.

    Args:
        trials: (value by knob, speed) of each trial that worked, the fastest first.
        knobs: those to look at.
    """
    found = [_pair(trials, *two) for two in combinations(knobs, 2)]
    pairs = sorted((p for p in found if p is not None), key=lambda p: (-p.strength, p.down))
    return tuple(pairs[:MOST_PAIRS])


def value_rank(value: Any) -> tuple[int, float, str]:
    """Numbers by size, before all others by name."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return (0, float(value), "") if number else (1, 0.0, str(value))


def _pair(
    trials: Sequence[tuple[Mapping[str, Any], float]], down: str, across: str
) -> KnobPair | None:
    best: dict[tuple[str, str], float] = {}
    values: dict[str, dict[str, Any]] = {down: {}, across: {}}
    for choices, speed in trials:
        if down not in choices or across not in choices:
            continue
        names = {knob: str(choices[knob]) for knob in values}
        for knob, name in names.items():
            if len(values[knob]) < MOST_VALUES:
                values[knob].setdefault(name, choices[knob])
        if all(name in values[knob] for knob, name in names.items()):
            best.setdefault((names[down], names[across]), speed)
    rows, columns = (
        sorted(found, key=lambda name: value_rank(found[name])) for found in values.values()
    )
    if min(len(rows), len(columns)) < 2 or len(best) < LEAST_FILLED * len(rows) * len(columns):
        return None
    fields = {place: Field(speed) for place, speed in best.items()}
    return KnobPair(
        down=one_sentence(down, 40),
        across=one_sentence(across, 40),
        columns=tuple(one_sentence(name, LONGEST_NAME) for name in columns),
        rows=tuple(
            (one_sentence(name, LONGEST_NAME), tuple(fields.get((name, c)) for c in columns))
            for name in rows
        ),
        strength=_strength(best),
    )


def _strength(speeds: Mapping[tuple[str, str], float]) -> float:
    """Of speeds by row and column: what is left of their logarithms without both means."""
    left = {place: math.log(speed) for place, speed in speeds.items() if speed > 0.0}
    for _ in range(SWEEPS):
        for side in (0, 1):
            lines: dict[str, list[float]] = {}
            for place, value in left.items():
                lines.setdefault(place[side], []).append(value)
            means = {name: sum(found) / len(found) for name, found in lines.items()}
            left = {place: value - means[place[side]] for place, value in left.items()}
    if not left:
        return 1.0
    typical = math.sqrt(sum(value * value for value in left.values()) / len(left))
    return min(math.exp(min(typical, 10.0)), MOST_STRENGTH)  # times may be absurd
