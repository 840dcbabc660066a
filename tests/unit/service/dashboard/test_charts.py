"""The script of the charts of pages, with stubs of the browser and of uPlot."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

import pytest

from tilewright.service.dashboard.pages import STATIC
from tilewright.service.show.chart import Chart, ChartAxis, ChartPoint, Mark, Series

NODE = shutil.which("node")

pytestmark = pytest.mark.skipif(NODE is None, reason="there is no node")

BROWSER = """
const built = [], drawn = [], heard = {}, visited = [];
const draw = (_, name) => (...sent) => drawn.push([name, ...sent]);
const listener = (to) => (kind, call) => (to[kind] = call);
globalThis.uPlot = class {
  constructor(options, data, place) {
    Object.assign(this, { options, data, place, width: options.width, height: options.height });
    Object.assign(this, { cursor: {}, legends: [], events: {}, destroyed: false });
    this.ctx = new Proxy({}, { get: draw, set: () => true });
    this.over = { style: {}, title: "", addEventListener: listener(this.events),
                  getBoundingClientRect: () => ({ left: 0, top: 0 }) };
    built.push(this);
    for (const hook of options.hooks.ready) hook(this);
    for (const hook of options.hooks.draw ?? []) hook(this);
  }
  valToPos(value, axis) { return value * (axis === "x" ? 100 : 10); }
  setData(data) { this.data = data; }
  setSize({ width }) { this.width = width; }
  setLegend({ idxs }) { this.legends.push(idxs); }
  destroy() { this.destroyed = true; }
};
uPlot.paths = { stepped: () => "stepped" };
const place = { clientWidth: 0, dataset: { height: "200", root: "/dashboard/" } };
const element = { dataset: { chart: JSON.stringify(CHARTS[0]) }, firstElementChild: place };
const sizes = [];
globalThis.ResizeObserver = class {
  constructor(call) { sizes.push(call); }
  observe() {}
  disconnect() {}
};
let elements = [element];
globalThis.document = { documentElement: {}, querySelectorAll: () => elements };
document.addEventListener = listener(heard);
globalThis.getComputedStyle = () => ({ getPropertyValue: (name) => `colour${name}` });
globalThis.matchMedia = () => ({ addEventListener: () => {} });
globalThis.location = { assign: (address) => visited.push(address) };
globalThis.devicePixelRatio = 1;
"""


def ran(charts: list[Chart], steps: str) -> Any:
    """The JSON that `steps` print, after the script drew the first chart into a hidden element."""
    data = f"const CHARTS = {json.dumps([chart.to_json() for chart in charts])};\n"
    script = data + BROWSER + (STATIC / "charts.js").read_text() + steps
    assert NODE is not None
    done = subprocess.run([NODE, "-"], input=script, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def curve(*best: float) -> Chart:
    points = tuple(ChartPoint(float(n), y) for n, y in enumerate(best))
    target = Series("target", (ChartPoint(0.0, 1.0), ChartPoint(5.0, 1.0)), Mark.LINE, dashed=True)
    edges = [
        Series(name, (ChartPoint(0.0, y),), Mark.EDGE) for name, y in (("from", 2.0), ("to", 3.0))
    ]
    series = (Series("best", points, Mark.STEPS), target, *edges)
    return Chart("a curve", ChartAxis("trials", whole=True), ChartAxis("time", "ms"), series)


def test_a_curve_grows_in_its_plot() -> None:
    found = ran(
        [curve(4.0, 3.0), curve(4.0, 3.0, 2.5)],
        """
        const hidden = built.length;
        place.clientWidth = 600;
        sizes[0]();
        const [plot] = built;
        const before = plot.data;
        element.dataset.chart = JSON.stringify(CHARTS[1]);
        heard["htmx:after:swap"]();
        const { series, bands, axes, scales } = plot.options;
        const told = { hidden, before, after: plot.data, plots: built.length };
        told.until = place.dataset.until;
        told.label = axes[1].label;
        told.value = series[1].value(null, 1.2345678);
        told.widths = series.slice(1).map((each) => each.width);
        console.log(JSON.stringify({ ...told, bands, series, legends: plot.legends,
          marks: axes[0].values(null, [5, null]), range: scales.x.range(null, 3, 3),
          ends: scales.x.range(null, 2, 6) }));
        """,
    )
    assert found["hidden"] == 0, "drawn once it is seen"
    rows = [[0, 1, 5], [4, 3, None], [1, None, 1], [2, None, None], [3, None, None]]
    assert found["before"] == rows
    assert found["after"][:2] == [[0, 1, 2, 5], [4, 3, 2.5, None]]
    assert (found["plots"], found["until"]) == (1, "5"), "the same plot got the new points"
    assert found["bands"] == [{"series": [4, 3], "fill": "colour--band"}]
    assert [each["label"] for each in found["series"]] == ["trials", "best", "target", "from", "to"]
    assert found["widths"] == [3, 2, 0, 0] and found["series"][1]["paths"] == "stepped"
    assert (found["value"], found["label"]) == ("1.2346 ms", "time, ms")
    assert found["legends"] == [[2, 1, 2, 0, 0], [3, 2, 3, 0, 0]], "the last value of each line"
    assert found["marks"] == ["5", ""] and found["range"] == [2, 4]
    assert found["ends"][0] == 2 and 6 < found["ends"][1] < 6.001, "uPlot draws all rows at the end"


def test_dots_have_texts_links_and_limits() -> None:
    dots = Series(
        "kernel", (ChartPoint(1.0, 2.0, "a", "jobs/j", 5.0, "c3", 4.0), ChartPoint(1.0, 3.0, "b"))
    )
    axes = ChartAxis("knob", names=("x", "y"), span=(-0.5, 1.5)), ChartAxis("speed", log=True)
    found = ran(
        [Chart("dots", *axes, (dots,)), curve(1.0)],
        """
        place.clientWidth = 600;
        sizes[0]();
        const [plot] = built;
        const told = [];
        for (const [clientX, clientY] of [[103, 22], [100, 31], [500, 500]]) {
          plot.events.pointermove({ clientX, clientY });
          plot.events.click({ clientX, clientY });
          told.push([plot.over.title, plot.over.style.cursor]);
        }
        const { legend, scales, axes } = plot.options;
        const names = axes[0].values({ width: 50 });
        element.dataset.chart = JSON.stringify(CHARTS[1]);
        heard["htmx:after:swap"]();
        const replaced = [plot.destroyed, built.length];
        elements = [];
        heard["htmx:after:swap"]();
        const marks = drawn.filter(([name]) => ["arc", "lineTo"].includes(name));
        const gone = built[1].destroyed;
        const { data } = plot;
        const found = { told, visited, legend, scales, names, data, replaced, marks, gone };
        console.log(JSON.stringify(found));
        """,
    )
    assert found["told"] == [["a", "pointer"], ["b", ""], ["", ""]]
    assert found["visited"] == ["/dashboard/jobs/j"]
    assert found["data"] == [[1, 1], [2, 3]], "equal x need a row each"
    assert found["legend"] == {"show": False} and found["scales"]["y"]["distr"] == 3
    assert found["scales"]["x"]["range"] == [-0.5, 1.5] and found["names"] == ["x", ""]
    circles = [each[1:4] for each in found["marks"] if each[0] == "arc"]
    assert circles == [[100, 20, 5], [100, 30, 3]]
    assert ["lineTo", 100, 40] in found["marks"], "the limit"
    assert found["replaced"] == [True, 2] and found["gone"]
