"""Mutation and crossover of schedules: changing knobs, or combining the knobs of two schedules.

A numeric knob is mostly changed to a neighbouring value, because its values are ordered. A string
or boolean knob is changed to any other value. If the new schedule violates the constraints of the
space, another one is tried.
"""

from __future__ import annotations

import random

from tilewright.compiler.schedule.schedule import Choice, Schedule
from tilewright.compiler.schedule.space import Knob, ScheduleSpace

NEIGHBOUR = 0.7
"""Probability that a change of an ordered knob selects a neighbouring value. Otherwise it selects
any other value."""

TWO_KNOBS = 0.25
"""Probability that a mutation changes two knobs instead of one. Some knobs can only change
together, because of constraints."""

ATTEMPTS = 8
"""Number of attempts to find a valid schedule by mutation or crossover."""


def is_ordered(knob: Knob) -> bool:
    """Whether all values of the knob are integers, so that they have an order (not booleans)."""
    return all(isinstance(v, int) and not isinstance(v, bool) for v in knob.values)


def mutate(space: ScheduleSpace, parent: Schedule, rng: random.Random) -> Schedule | None:
    """Return a valid schedule that differs from `parent` in one or two random knobs.

    Return None if none was found in ATTEMPTS tries.
    """
    subspace = next(s for s in space.subspaces if s.algorithm == parent.algorithm)
    knobs = [knob for knob in subspace.knobs if len(knob.values) > 1]
    for _ in range(ATTEMPTS if knobs else 0):
        child = parent
        for _ in range(2 if rng.random() < TWO_KNOBS else 1):
            child = _turn(child, rng.choice(knobs), rng)
        if child != parent and child in space:
            return child
    return None


def cross(
    space: ScheduleSpace, first: Schedule, second: Schedule, rng: random.Random
) -> Schedule | None:
    """Return a valid schedule in which each knob has the value of a random one of two parents.

    The parents must have the same algorithm. Return None if no valid schedule that differs from
    both was found in ATTEMPTS tries.
    """
    other = dict(second.choices)
    for _ in range(ATTEMPTS):
        child = Schedule(
            first.algorithm,
            tuple(
                (name, other[name] if name in other and rng.random() < 0.5 else value)
                for name, value in first.choices
            ),
        )
        if child not in (first, second) and child in space:
            return child
    return None


def _turn(schedule: Schedule, knob: Knob, rng: random.Random) -> Schedule:
    values, current = knob.values, schedule[knob.name]
    choices: list[Choice] = [value for value in values if value != current]
    if current in values and is_ordered(knob) and rng.random() < NEIGHBOUR:
        place = values.index(current)
        choices = [values[i] for i in (place - 1, place + 1) if 0 <= i < len(values)]
    changed = rng.choice(choices)
    return Schedule(
        schedule.algorithm,
        tuple((name, changed if name == knob.name else v) for name, v in schedule.choices),
    )
