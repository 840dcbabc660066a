"""Tables that show interactions between two knobs: the speed for each combination of their values.

Two knobs interact if the speed of a combination is not the product of one factor per knob. For
example, unrolling is fast with a small tile, and slow with a large one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from tilewright.service.show.text import one_sentence

MOST_PAIRS = 4
MOST_VALUES = 8
"""Limit of the values shown per knob. The values of the fastest trials come first."""

LEAST_FILLED = 0.5
"""Minimum fraction of a table's fields with a trial. With fewer, no pattern is visible, and the
table is not shown."""

SHADES = 10
SWEEPS = 8
"""Number of iterations that subtract the means of rows and columns. One iteration is not enough if
fields are empty."""

LONGEST_NAME = 12
MOST_STRENGTH = 999.0


@dataclass(frozen=True, slots=True)
class Field:
    """A cell of `KnobPair`: the speed of the fastest trial with the values of its row and column.

    `speed` is relative to the fastest trial of the task, from 0 to 1.
    """

    speed: float

    @property
    def shade(self) -> int:
        """The number of the cell's colour, from 0 for no speed to `SHADES` for the full speed."""
        return round(SHADES * self.speed)


@dataclass(frozen=True, slots=True)
class KnobPair:
    """A table of speeds for the combinations of values of two knobs.

    Attributes:
        down: the name of the knob whose values are the rows.
        across: the name of the knob whose values are the columns.
        columns: the values of the knob `across`.
        rows: for each value of the knob `down`, the value and its cells; a cell without a trial is
            None.
        strength: the strength of the interaction; 1 without any interaction. A model without
            interaction predicts each speed as a row factor times a column factor. The strength is
            the typical factor between a speed and its prediction.
    """

    down: str
    across: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Field | None, ...]], ...]
    strength: float


def interactions(
    trials: Sequence[tuple[Mapping[str, Any], float]], knobs: Sequence[str]
) -> tuple[KnobPair, ...]:
    """Return tables for the pairs of knobs that interact most, the strongest interaction first.

    Args:
        trials: (values by knob, speed) of each successful trial, the fastest first.
        knobs: the names of the knobs of which pairs are formed.
    """
    found = [_pair(trials, *two) for two in combinations(knobs, 2)]
    pairs = sorted((p for p in found if p is not None), key=lambda p: (-p.strength, p.down))
    return tuple(pairs[:MOST_PAIRS])


def value_rank(value: Any) -> tuple[int, float, str]:
    """Return a sort key for knob values: numbers in ascending order, then other values by name."""
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
    """Return the strength of an interaction (`KnobPair.strength`), from speeds by (row, column).

    The fit subtracts the means of rows and columns from the logarithms of the speeds. The strength
    is the exponential of the root mean square of the remaining numbers.
    """
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
    return min(math.exp(min(typical, 10.0)), MOST_STRENGTH)  # limited, because times may be absurd
