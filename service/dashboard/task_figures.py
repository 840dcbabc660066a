"""Figures of a task's trials: charts of each knob's values against measured speed."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.db.stores.trials import TrialOutline
from tilewright.service.dashboard.interaction_figures import KnobPair, interactions, value_rank
from tilewright.service.show.chart import Axis, Chart, Point, Series
from tilewright.service.show.text import one_sentence

MOST_KNOBS = 8
MOST_DOTS = 300
LONGEST_NAME = 12

ALGORITHM = "algorithm"


@dataclass(frozen=True, slots=True)
class KnobPlot:
    """The chart of a knob: its values on x, and each trial's speed relative to the fastest on y.

    `matters` is the speed of the best value's best trial over the speed of the worst value's best
    trial. `name` is the knob's name in its shown form.
    """

    knob: str
    name: str
    chart: Chart
    best: str
    matters: float


@dataclass(frozen=True, slots=True)
class TaskFigures:
    """The figures of a task.

    `fastest` are the successful trials, the fastest first. `failed` are (kind, count, error of the
    newest trial). `pairs` are knobs that interact.
    """

    fastest: tuple[TrialOutline, ...]
    failed: tuple[tuple[str, int, str], ...]
    knobs: tuple[KnobPlot, ...]
    pairs: tuple[KnobPair, ...]

    @classmethod
    def of(cls, trials: Sequence[TrialOutline]) -> TaskFigures:
        """Return the figures of trials, which are sorted with the newest first."""
        worked = [t for t in trials if t.run_seconds and t.status == "ok" and not t.withdrawn]
        fastest = sorted(worked, key=lambda trial: trial.run_seconds or 0.0)
        kinds = Counter(trial.status for trial in trials if trial.status != "ok")
        errors = {trial.status: trial.error for trial in reversed(trials)}
        failed = tuple((kind, n, errors[kind]) for kind, n in kinds.most_common())
        speeds = [(_choices(trial), _speed(trial, fastest[0])) for trial in fastest]
        plots = _plots(speeds)
        pairs = interactions(speeds, [plot.knob for plot in plots])
        return cls(tuple(fastest), failed, plots, pairs)


def _choices(trial: TrialOutline) -> dict[str, Any]:
    """Return the values of a trial's knobs, including the algorithm."""
    return {ALGORITHM: trial.schedule.get("algorithm"), **trial.schedule.get("choices", {})}


def _speed(trial: TrialOutline, fastest: TrialOutline) -> float:
    return (fastest.run_seconds or 0.0) / (trial.run_seconds or 1.0)


def _plots(trials: Sequence[tuple[dict[str, Any], float]]) -> tuple[KnobPlot, ...]:
    """Return the plots of the knobs that matter most. Knobs with a single value are left out."""
    values: dict[str, list[tuple[str, float]]] = defaultdict(list)
    order: dict[str, dict[str, Any]] = defaultdict(dict)
    for choices, speed in trials:
        for knob, value in choices.items():
            values[knob].append((str(value), speed))
            order[knob][str(value)] = value
    plots = [
        _plot(knob, found, order[knob]) for knob, found in values.items() if len(order[knob]) > 1
    ]
    return tuple(sorted(plots, key=lambda plot: (-plot.matters, plot.name))[:MOST_KNOBS])


def _plot(knob: str, found: Sequence[tuple[str, float]], values: dict[str, Any]) -> KnobPlot:
    """Return the plot of a knob. `found` are (value, speed) per trial, the fastest first."""
    ordered = sorted(values, key=lambda name: value_rank(values[name]))
    across = {name: float(n) for n, name in enumerate(ordered)}
    best: dict[str, float] = {}
    for name, speed in found:
        best.setdefault(name, speed)
    worst = min(best.values())  # 0 if a time is absurd
    shown, first = one_sentence(knob, 40), one_sentence(found[0][0], 40)
    matters = max(best.values()) / worst if worst else math.inf
    chart = Chart(
        f"{shown}: best with {first}, {matters:.2f} times as fast as its worst value",
        Axis(
            "",
            names=tuple(one_sentence(name, LONGEST_NAME) for name in ordered),
            span=(-0.5, len(ordered) - 0.5),
        ),
        Axis("speed", span=(0.0, 1.0)),
        (Series("trial", tuple(Point(across[name], y) for name, y in found[:MOST_DOTS])),),
    )
    return KnobPlot(knob, shown, chart, first, matters)
