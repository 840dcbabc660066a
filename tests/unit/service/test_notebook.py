"""The client's display while it waits, and its results in notebooks."""

from __future__ import annotations

import io
import re
import sys
import xml.etree.ElementTree as ET
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from tilewright.service.api.schemas.jobs import CurvePoint, JobEventView
from tilewright.service.client.results import Curve, Job, Jobs, Task, Tasks, Tuned
from tilewright.service.show import notebook
from tilewright.service.show.chart import Chart, ChartAxis, ChartPoint, Series
from tilewright.service.show.console import console
from tilewright.service.show.progress import InNotebook, OnConsole, Silent, display_for_here
from tilewright.service.show.table import Column, table

HOSTILE = "<script>alert('x')</script>\x1b[2J\" onload=\"x"


TAGS = {"x", "div", "b", "p", "code", "figure", "figcaption", "svg", "path"}
TAGS |= {"circle", "details", "summary", "pre"}
TAGS |= {"table", "caption", "thead", "tbody", "tr", "th", "td"}
ATTRIBUTES = {"style", "width", "height", "role", "aria-label", "d", "fill", "stroke"}
ATTRIBUTES |= {"stroke-width", "cx", "cy", "r", "fill-opacity"}


def job(**changes: Any) -> Job:
    known: dict[str, Any] = {
        "id": "1" * 32,
        "state": "running",
        "final": False,
        "model": "d" * 64,
        "target": "x86-64-v3",
        "target_key": "c" * 64,
        "threads": 1,
        "numerics": "fast",
        "options": {},
        "progress": {"trials_budget": 40, "trials_done": 10, "default_seconds": 4e-3},
        "error": None,
        "result": None,
        "artifact": None,
        "tuner": None,
        "created_at": 0.0,
        "started_at": None,
        "finished_at": None,
    }
    return Job.model_validate({**known, **changes})


def task(**changes: Any) -> Task:
    known = {"workload_key": "a" * 64, "name": "cheap", "count": 3, "weight": 1.0, "trials": 4}
    times = {"status": "tuned", "default_seconds": 2e-4, "best_seconds": 1e-4, "facts": {}}
    return Task.model_validate({**known, **times, **changes})


def markup(shown: Any) -> ET.Element:
    """The HTML of a result, well-formed, with no element that loads or runs anything."""
    text = shown._repr_html_()
    found = ET.fromstring(f"<x>{text}</x>")
    assert {each.tag for each in found.iter()} <= TAGS
    assert {name for each in found.iter() for name in each.attrib} <= ATTRIBUTES
    return found


def text_of(shown: Any) -> str:
    return " ".join("".join(markup(shown).itertext()).split())


def test_results_are_tables_and_curves() -> None:
    points = [
        CurvePoint(at=float(at), trials=at, default_seconds=4e-3, best_seconds=best)
        for at, best in enumerate([None, 4e-3, 3e-3, 2e-3])
    ]
    curve = Curve(sequence=9, points=points)
    tasks = Tasks([task(weight=3.0), task(name="dear", count=60, weight=60.0)])
    done = job(
        state="succeeded", final=True, progress={"default_seconds": 4e-3, "best_seconds": 2e-3}
    )
    tuned = Tuned(done, tasks, curve, None)
    assert tuned.gain == 2.0 and job().gain is None
    said = text_of(tuned)
    assert "succeeded" in said and "4.000 ms to 2.000 ms in 3 s" in said
    assert said.index("dear") < said.index("cheap") and "95.2 %" in said
    untuned, best = (line.get("d", "") for line in markup(curve).iter("path"))
    assert "L" in untuned and best.count("H") == 2
    assert re.findall(r"(?:V|M\S+ )([\d.]+)", best) == ["4.0", "100.0", "196.0"]
    assert "25.0%" in job()._repr_html_() and "waits for a board" in text_of(
        job(reason="waits for a board")
    )
    listed = text_of(Jobs([job(), job(state="waiting_for_worker")]))
    assert "waiting for worker" in listed and "10/40" in listed
    assert "nothing was measured" in text_of(Curve(sequence=0, points=[]))
    assert text_of(task()).startswith("workload")


def test_nothing_that_others_wrote_is_obeyed() -> None:
    facts = {"schedule": {"algorithm": HOSTILE, "choices": {HOSTILE: HOSTILE}}}
    for shown in (
        job(state=HOSTILE, model_name=HOSTILE, target=HOSTILE, error=HOSTILE, reason=HOSTILE),
        Jobs([job(model_name=HOSTILE, target=HOSTILE)]),
        Tasks([task(name=HOSTILE, facts=facts), task(facts={"schedule": [HOSTILE]})]),
    ):
        assert "<script" not in shown._repr_html_() and "script" in text_of(shown)


def test_listings_are_folded_keep_their_indentation_and_end() -> None:
    text = "\n".join(["loop i", f"    {HOSTILE}", *["x"] * notebook.MOST_LINES])
    shown = notebook.listing(HOSTILE, text)
    found = ET.fromstring(shown)
    code = found.findtext("pre") or ""
    assert "<script" not in shown and found.findtext("summary", "").startswith("<script>")
    assert code.startswith("loop i\n    <script>") and "\\x1b[2J" in code
    assert code.endswith("\nand 2 more lines")


def dots(*places: tuple[float, float], log: bool = True) -> str:
    series = Series("s", tuple(ChartPoint(x, y) for x, y in places))
    return notebook.chart(
        Chart(HOSTILE, ChartAxis("a", log=log), ChartAxis("b", log=log), (series,))
    )


def test_a_picture_of_dots() -> None:
    shown = ET.fromstring(dots((1e-3, 1e-3), (1e-2, 1e-1), (1e-1, 1e-2), (0.0, 1.0)))
    at = [(float(c.get("cx", "")), float(c.get("cy", ""))) for c in shown.iter("circle")]
    margin, wide, tall = notebook.MARGIN, notebook.WIDTH, notebook.HEIGHT
    assert at == [(margin, tall - margin), (wide / 2, margin), (wide - margin, tall / 2)]
    assert "<script" not in dots((1.0, 1.0), (2.0, 2.0))


def test_absurd_numbers_are_shown_all_the_same() -> None:
    nan, far = float("nan"), float("inf")
    for log in (True, False):
        assert "<svg" not in dots((nan, 1.0), (0.0, far), (1.0, 1e300), (1.0, 2.0), log=log)
        assert "<svg" in dots((1.0, 1.0), (1.0, 1.0), log=log)
    assert "width:0.0%" in notebook.bar(nan, "") and "width:100.0%" in notebook.bar(7.0, "")
    numbers = (Column[int]("a", str),)
    assert "and 3 more" in notebook.table(table(numbers, range(notebook.MOST_ROWS + 3)))


def events() -> list[JobEventView]:
    progress = {"phase": "tuning", "trials_budget": 40, "trials_done": 30, "best_seconds": 3e-3}
    waits = {"state": "waiting_for_worker", "reason": f"nobody runs {HOSTILE}"}
    told = [("state", waits), ("progress", progress), ("progress", progress), ("other", {})]
    return [
        JobEventView(sequence=n, kind=kind, created_at=0.0, data=data)
        for n, (kind, data) in enumerate(told)
    ]


def test_a_pipe_gets_each_phase_once_and_a_terminal_a_bar(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with OnConsole(console()) as shown:
        for event in events():
            shown.event(event)
    waiting, line = capsys.readouterr().out.splitlines()
    assert waiting.startswith("waiting for worker: nobody runs <script>") and "\x1b" not in waiting
    assert line.startswith("tuning") and "trials" not in line
    out = Console(file=io.StringIO(), force_terminal=True, width=100)
    with OnConsole(out) as shown:
        for event in events():
            shown.event(event)
    drawn = out.file.getvalue()  # type: ignore[attr-defined]
    assert "trials 30/40" in drawn and "━" * 40 in drawn


def test_a_notebook_gets_a_bar_that_is_rewritten(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Any] = []

    def display(value: Any, display_id: bool) -> Any:
        assert display_id
        shown.append(value._repr_html_())
        return SimpleNamespace(update=lambda value: shown.append(value._repr_html_()))

    shell = SimpleNamespace(kernel=object())
    inside = SimpleNamespace(get_ipython=lambda: shell)
    monkeypatch.setitem(sys.modules, "IPython", inside)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))  # type: ignore[arg-type]
    found = display_for_here()
    assert isinstance(found, InNotebook)
    with found:
        for event in events():
            found.event(event)
    assert len(shown) == 4 and "width:75.0%" in shown[-1] and "<script" not in "".join(shown)
    assert "nobody runs" in text_of(found)
    monkeypatch.delattr(shell, "kernel")  # IPython on a terminal
    monkeypatch.setattr("sys.stderr", io.StringIO())
    assert isinstance(display_for_here(), Silent)
    monkeypatch.setattr("sys.stderr", SimpleNamespace(isatty=lambda: True, write=len, flush=len))
    assert isinstance(display_for_here(), OnConsole)
