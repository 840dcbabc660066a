"""The drawing of a model's graph: edges, and boxes coloured by time, precision or layout."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tilewright.service.api.schemas.jobs import TaskView
from tilewright.service.jobs.report.layered import Point
from tilewright.service.jobs.report.model_graph import (
    BOX_HEIGHT,
    LONGEST_NAME,
    GraphStep,
    GraphStepKind,
    ModelGraph,
)
from tilewright.service.show.text import one_sentence
from tilewright.service.show.units import finite, microseconds, percent

HOTTEST = (0.002, 0.01, 0.03, 0.08, 0.2)
"""Fractions of the model's time at which a step's colour changes to the next hotter one."""

KINDS = 7
"""Number of precisions, and of layouts, that have a colour of their own. All others share one
colour."""

MARGIN = 16.0


@dataclass(frozen=True, slots=True)
class StepBox:
    """The box of a step in the drawing of a graph.

    Attributes:
        number: the position of the step in the graph.
        step: the step.
        classes: CSS classes that select the colours of the box.
        left: the x coordinate of the left edge, in units of the drawing.
        top: the y coordinate of the upper edge, in units of the drawing.
        name: the first line of text: the name of the step.
        under: the second line of text: the time if it was measured, and otherwise the output's
            type.
        said: the label for screen readers.
        link: the workload key of the step's kernel, to which the box links; "" without a kernel.
        seconds: the time of the step in one run of the model; None without a measurement.
        share: `seconds` as a fraction of the time of all steps, 0 to 1; None without a measurement.
    """

    number: int
    step: GraphStep
    classes: str
    left: float
    top: float
    name: str
    under: str
    said: str
    link: str
    seconds: float | None
    share: float | None


@dataclass(frozen=True, slots=True)
class GraphFigures:
    """The drawing of a graph.

    Attributes:
        boxes: the boxes of the steps.
        lines: the edges: (start, end, SVG path), with the numbers of the connected steps.
        width: the width of the drawing, in its units.
        height: the height of the drawing, in its units.
        heat: the labels of the colours that show times, for the legend.
        precisions: the legend of precisions: (number of the colour, name, number of steps).
        layouts: the legend of layouts: (number of the colour, name, number of steps).
    """

    boxes: tuple[StepBox, ...]
    lines: tuple[tuple[int, int, str], ...]
    width: int
    height: int
    heat: tuple[str, ...]
    precisions: tuple[tuple[int, str, int], ...]
    layouts: tuple[tuple[int, str, int], ...]
    untuned: int
    """Number of kernels without a task in the job, for example because another release planned the
    job."""

    @classmethod
    def of(cls, graph: ModelGraph, tasks: Sequence[TaskView]) -> GraphFigures:
        known = {task.workload_key: task for task in tasks}
        seconds = [_seconds(step, known) for step in graph.steps]
        whole = sum(filter(None, seconds)) or 1.0
        kernels = [step for step in graph.steps if step.kernels]
        precisions = _colours(step.precision for step in kernels)
        layouts = _colours(step.layout for step in kernels)
        boxes = tuple(
            _box(number, step, took, whole, precisions, layouts)
            for number, (step, took) in enumerate(zip(graph.steps, seconds, strict=True))
        )
        return cls(
            boxes,
            tuple((edge.start, edge.end, _path(edge.path)) for edge in graph.edges),
            round(graph.width + 2 * MARGIN),
            round(graph.height + 2 * MARGIN),
            tuple(_heat_names()),
            _legend(precisions, (step.precision for step in kernels)),
            _legend(layouts, (step.layout for step in kernels)),
            sum(key not in known for step in kernels for key, _ in step.kernels),
        )


def _seconds(step: GraphStep, known: Mapping[str, TaskView]) -> float | None:
    """Return the time of a step in one run of the model; None without a measurement.

    It is the sum over the step's kernels, from the best or else the untuned time of each kernel's
    task. `known` has the tasks by workload key.
    """
    times = []
    for key, runs in step.kernels:
        task = known.get(key)
        took = finite(task and (task.best_seconds or task.default_seconds))
        if took is not None and took > 0.0:
            times.append(took * runs)
    return finite(sum(times)) if times else None


def _box(
    number: int,
    step: GraphStep,
    seconds: float | None,
    whole: float,
    precisions: Mapping[str, int],
    layouts: Mapping[str, int],
) -> StepBox:
    share = None if seconds is None else seconds / whole
    classes = [step.kind.value]
    if step.kernels:
        heat = 0 if share is None else 1 + sum(share >= limit for limit in HOTTEST)
        classes += [f"heat{heat}", f"type{precisions.get(step.precision, KINDS)}"]
        classes += [f"layout{layouts.get(step.layout, KINDS)}"]
    under = step.type
    if seconds is not None:
        under = f"{microseconds(seconds)} us, {percent(share)}"
    elif step.kernels:
        under = "not measured"
    name = one_sentence(step.name, LONGEST_NAME) or "-"
    below = one_sentence(under, LONGEST_NAME)
    # the label contains the visible text, so that voice control finds the step
    said = f"{step.kind.value} {name}, {below}"
    said += "".join(
        f", {whole_text}"
        for seen, whole_text in ((name, one_sentence(step.name, 120)), (below, under))
        if whole_text not in ("", seen)
    )
    return StepBox(
        number,
        step,
        " ".join(classes),
        MARGIN + step.x - step.width / 2,
        MARGIN + step.y - BOX_HEIGHT / 2,
        name,
        below,
        said,
        step.kernels[0][0] if step.kind is GraphStepKind.KERNEL else "",
        seconds,
        share,
    )


def _path(points: Sequence[Point]) -> str:
    """Return a smooth SVG path through the points of an edge.

    Its tangent is vertical at each point.
    """
    if not points:
        return ""
    rounded = [(round(x + MARGIN), round(y + MARGIN)) for x, y in points]
    parts = [f"M{rounded[0][0]} {rounded[0][1]}"]
    for (x, y), (to_x, to_y) in pairwise(rounded):
        middle = (y + to_y) // 2
        straight = f"V{to_y}"
        parts.append(straight if x == to_x else f"C{x} {middle} {to_x} {middle} {to_x} {to_y}")
    return "".join(parts)


def _colours(names: Iterable[str]) -> dict[str, int]:
    """Return the number of a colour for each of the `KINDS` most frequent names.

    The most frequent name has the number 0.
    """
    return {name: n for n, (name, _) in enumerate(Counter(names).most_common(KINDS))}


def _legend(colours: Mapping[str, int], names: Iterable[str]) -> tuple[tuple[int, str, int], ...]:
    counts = Counter(names)
    own = [(n, name, counts[name]) for name, n in colours.items()]
    rest = sum(counts.values()) - sum(number for _, _, number in own)
    return (*own, *([(KINDS, "others", rest)] if rest else []))


def _heat_names() -> Iterable[str]:
    yield "not measured"
    yield f"under {percent(HOTTEST[0])}"
    for low, high in pairwise(HOTTEST):
        yield f"{percent(low, 0) if low >= 0.01 else percent(low)} to {percent(high, 0)}"
    yield f"{percent(HOTTEST[-1], 0)} or more of the time"
