"""Data of a task's page: its fastest and failed trials, and charts of speed by knob value."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.db.stores.trials import TrialOutline
from tilewright.service.dashboard.interaction_figures import KnobPair, interactions, value_rank
from tilewright.service.show.chart import Chart, ChartAxis, ChartPoint, Series
from tilewright.service.show.text import one_sentence

MOST_KNOBS = 8
MOST_DOTS = 300
LONGEST_NAME = 12

ALGORITHM = "algorithm"


@dataclass(frozen=True, slots=True)
class TaskFigures:
    """The data of a task's page.

    Attributes:
        fastest: the successful trials, the fastest first.
        failed: (kind, number, error of the newest trial) for each kind of failure, the most
            frequent first.
        knobs: charts of speed by value, for the knobs that affect the speed most.
        pairs: tables of the pairs of knobs that interact most.
    """

    fastest: tuple[TrialOutline, ...]
    failed: tuple[tuple[str, int, str], ...]
    knobs: tuple[Chart, ...]
    pairs: tuple[KnobPair, ...]

    @classmethod
    def of(cls, trials: Sequence[TrialOutline]) -> TaskFigures:
        """Return the data of a task's page. `trials` has the task's trials, the newest first."""
        worked = [t for t in trials if t.run_seconds and t.status == "ok" and not t.withdrawn]
        fastest = sorted(worked, key=lambda trial: trial.run_seconds or 0.0)
        kinds = Counter(trial.status for trial in trials if trial.status != "ok")
        errors = {trial.status: trial.error for trial in reversed(trials)}
        failed = tuple((kind, n, errors[kind]) for kind, n in kinds.most_common())
        speeds = [(_choices(trial), _speed(trial, fastest[0])) for trial in fastest]
        plots = _plots(speeds)
        pairs = interactions(speeds, list(plots))
        return cls(tuple(fastest), failed, tuple(plots.values()), pairs)


def _choices(trial: TrialOutline) -> dict[str, Any]:
    """Return the value of each knob of a trial, by name; the algorithm is one of the knobs."""
    return {ALGORITHM: trial.schedule.get("algorithm"), **trial.schedule.get("choices", {})}


def _speed(trial: TrialOutline, fastest: TrialOutline) -> float:
    return (fastest.run_seconds or 0.0) / (trial.run_seconds or 1.0)


def _plots(trials: Sequence[tuple[dict[str, Any], float]]) -> dict[str, Chart]:
    """Return charts of the knobs that affect the speed most, at most `MOST_KNOBS`, by knob name.

    For each value of a knob, only its fastest trial counts. The effect of the knob is the speed
    with its best value over the speed with its worst value. Knobs with a single value are left out.
    `trials` has (knob values, speed) pairs.
    """
    values: dict[str, list[tuple[str, float]]] = defaultdict(list)
    order: dict[str, dict[str, Any]] = defaultdict(dict)
    for choices, speed in trials:
        for knob, value in choices.items():
            values[knob].append((str(value), speed))
            order[knob][str(value)] = value
    matters = {knob: _matters(found) for knob, found in values.items() if len(order[knob]) > 1}
    most = sorted(matters, key=lambda knob: (-matters[knob], knob))[:MOST_KNOBS]
    return {knob: _plot(knob, values[knob], order[knob], matters[knob]) for knob in most}


def _matters(found: Sequence[tuple[str, float]]) -> float:
    best: dict[str, float] = {}
    for name, speed in found:
        best.setdefault(name, speed)
    worst = min(best.values())  # 0 if a time is absurd
    return max(best.values()) / worst if worst else math.inf


def _plot(
    knob: str, found: Sequence[tuple[str, float]], values: dict[str, Any], matters: float
) -> Chart:
    """Return the chart of a knob: its values on the x axis, the speed of trials on the y axis.

    Args:
        knob: the name of the knob.
        found: (value as text, speed relative to the fastest trial) per trial, the fastest first.
        values: the values of the knob by their text.
        matters: the speed with the best value over the speed with the worst value, for the caption.
    """
    ordered = sorted(values, key=lambda name: value_rank(values[name]))
    names = tuple(one_sentence(name, LONGEST_NAME) for name in ordered)
    dots = tuple(ChartPoint(ordered.index(name), speed) for name, speed in found[:MOST_DOTS])
    return Chart(
        f"{one_sentence(knob, 40)}: best with {one_sentence(found[0][0], 40)}, {matters:.2f}x its "
        "worst value",
        ChartAxis("value", names=names, span=(-0.5, len(ordered) - 0.5)),
        ChartAxis("speed", span=(0.0, 1.0)),
        (Series("trial", dots),),
    )
