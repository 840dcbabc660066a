"""Charts of a job: latency over trials or time, and predicted against measured times of trials."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.service.api.schemas.jobs import CurveView, OrderView, PredictionsView
from tilewright.service.show.chart import Chart, ChartAxis, ChartPoint, Mark, Series
from tilewright.service.show.units import finite, milliseconds, percent

OVER = {"trials": ChartAxis("trials", whole=True), "seconds": ChartAxis("time", "s")}
"""The x axes of a progress curve, by the name of the quantity."""


def curve_chart(
    curve: CurveView,
    over: str,
    start: float | None = None,
    target_ms: float | None = None,
    race: tuple[float, float] | None = None,
) -> Chart | None:
    """Return a chart of a job's untuned and best latency over trials or seconds.

    Returns None if the curve has no measured latency yet.

    Args:
        curve: the progress of the job.
        over: the quantity of the x axis, "trials" or "seconds".
        start: the time at which the job began, in Unix seconds; None for the first point of the
            curve.
        target_ms: the latency at which the job ends, in milliseconds; None or 0 for no such line.
        race: the confidence interval of tuned over untuned time of the whole model. It is shown as
            a band, relative to the untuned latency at the end of the curve.
    """
    began = start if start is not None else curve.points[0].at if curve.points else 0.0
    known = [(p, finite(p.default_seconds), finite(p.best_seconds)) for p in curve.points]
    rows = [
        (float(p.trials) if over == "trials" else max(0.0, p.at - began), untuned, best)
        for p, untuned, best in known
        if untuned is not None or best is not None
    ]
    if not rows:
        return None
    rows = _corners(sorted(rows, key=lambda row: row[0]))
    ends = (rows[0][0], rows[-1][0])
    raced = next((untuned for _, untuned, _ in reversed(rows) if untuned is not None), None)
    series = [
        _line("untuned", [(x, untuned) for x, untuned, _ in rows], colour="quiet", dashed=True),
        _line("best so far", [(x, best) for x, _, best in rows], Mark.STEPS),
    ]
    if target_ms:
        series.append(_line("target", [(x, target_ms / 1e3) for x in ends], colour="good"))
    for name, share in zip(("from", "to"), race or (), strict=False):
        level = None if raced is None else raced * share
        series.append(_line(f"race, {name}", [(x, level) for x in ends], Mark.EDGE))
    return Chart(
        _told(curve), OVER[over], ChartAxis("kernels of one inference", "ms"), tuple(series)
    )


def prediction_charts(found: PredictionsView) -> tuple[Chart, ...]:
    """Return scatter plots of predictions against measured times, with a dot per trial.

    The first plot has the scores of the cost model; it is left out if no trial has a score. The
    second has the estimates of the roofline model.
    """
    measured = [_us(each.measured_seconds) for each in found.trials]
    across = ChartAxis("measured", "us", log=True)
    charts = []
    if any(each.score is not None for each in found.trials):
        scores = [each.score for each in found.trials]
        said = f"Cost model, version {found.version}: {order_text(found.by_score)}"
        charts.append(Chart(said, across, ChartAxis("score"), (_dots(measured, scores),)))
    if found.trials:
        estimates = [_us(each.estimated_seconds) for each in found.trials]
        both = [n for each in (*measured, *estimates) if (n := across.drawn(each)) is not None]
        ends = [ChartPoint(n, n) for n in ((min(both), max(both)) if both else ())]
        equal = Series("equal", tuple(ends), Mark.LINE, "quiet", dashed=True)
        said = f"Roofline: {order_text(found.by_estimate)}"
        up = ChartAxis("estimated", "us", log=True)
        charts.append(Chart(said, across, up, (_dots(measured, estimates), equal)))
    return tuple(charts)


def order_text(order: OrderView | None) -> str:
    """Return a phrase on how well predictions rank trials.

    It states the fraction of pairs of trials in the right order, and the speed of the trial that is
    predicted to be the fastest, relative to the best trial.
    """
    if order is None:
        return "too few trials to judge"
    return (
        f"{percent(order.pairwise)} of the pairs in order (by chance 50 %), its first pick at "
        f"{percent(order.top1)} of the best"
    )


def _told(curve: CurveView) -> str:
    best = [(p.at, finite(p.best_seconds)) for p in curve.points]
    known = [(at, seconds) for at, seconds in best if seconds is not None]
    if not known:
        return "untuned times only"
    (_, first), (at, last) = known[0], known[-1]
    seconds = at - curve.points[0].at
    return f"{milliseconds(first)} to {milliseconds(last)} in {seconds:.0f} s"


def _corners(
    rows: Sequence[tuple[float, float | None, float | None]],
) -> list[tuple[float, float | None, float | None]]:
    """Remove each inner row (x, untuned, best) whose two values equal those of both neighbours.

    The curve through the remaining rows is the same.
    """
    last = len(rows) - 1
    return [
        row
        for n, row in enumerate(rows)
        if n in (0, last) or rows[n - 1][1:] != row[1:] or rows[n + 1][1:] != row[1:]
    ]


def _line(
    name: str,
    places: Sequence[tuple[float, float | None]],
    mark: Mark = Mark.LINE,
    colour: str = "accent",
    dashed: bool = False,
) -> Series:
    points = tuple(ChartPoint(x, None if y is None else y * 1e3) for x, y in places)
    return Series(name, points, mark, colour, dashed)


def _dots(across: Sequence[float | None], up: Sequence[float | None]) -> Series:
    return Series("trial", tuple(ChartPoint(x, y) for x, y in zip(across, up, strict=True)))


def _us(seconds: float | None) -> float | None:
    known = finite(seconds)
    return None if known is None else known * 1e6
