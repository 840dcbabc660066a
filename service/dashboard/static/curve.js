// Draws a job's best time so far, and updates it from the job's event stream.
(() => {
  "use strict";

  const HEIGHT = 280;
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const finite = (value) => (Number.isFinite(value) ? value : null);
  const job = document.getElementById("job");
  const points = []; // [Unix seconds, trials, untuned seconds, best seconds]
  let sequence = 0;
  let chart = null;
  let drawn = null; // the element that contains the chart
  let shown = ""; // the x axis and the number of lines

  function add(point) {
    const [at, trials, untuned, best] = point.map(finite);
    if (at !== null && trials !== null) points.push([at, trials, untuned, best]);
  }

  // The lines of the chart that the job has, and their values.
  function lines(frame) {
    const over = document.querySelector("input[name=over]:checked")?.value ?? "trials";
    const start = frame.start ?? points[0]?.[0] ?? 0;
    const ms = (seconds) => (seconds === null ? null : seconds * 1e3);
    const found = [
      { of: ([at, trials]) => (over === "trials" ? trials : Math.max(0, at - start)) },
      { of: ([, , untuned]) => ms(untuned), label: "untuned", colour: "--quiet", dash: [6, 4] },
      { of: ([, , , best]) => ms(best), label: "best so far", colour: "--accent", width: 3, stepped: true },
    ];
    if (frame.target) found.push({ of: () => frame.target, label: "target", colour: "--good", dash: [2, 4] });
    // the end-to-end ratios refer to the untuned time at the end of the job
    const raced = points.findLast(([, , untuned]) => untuned !== null)?.[2] ?? null;
    for (const [share, end] of (frame.race ?? []).map((share, n) => [share, ["from", "to"][n]]))
      found.push({ of: () => (raced === null ? null : ms(raced * share)), label: `race, ${end}`, colour: "--accent", width: 0 });
    // nothing to draw before each task has a measurement
    const known = points.filter(([, , untuned, best]) => untuned !== null || best !== null);
    const rows = known.map((point) => found.map((line) => line.of(point))).sort((a, b) => a[0] - b[0]);
    return { over, found, data: found.map((_, column) => rows.map((row) => row[column])) };
  }

  function draw() {
    const place = document.getElementById("curve");
    const frame = document.getElementById("frame");
    if (!place || !frame || !window.uPlot) return;
    if (place !== drawn) {
      chart?.destroy();
      chart = null;
      drawn = place;
      const told = JSON.parse(place.dataset.curve);
      points.length = 0;
      told.points.forEach(add);
      sequence = Math.max(sequence, told.sequence);
      new ResizeObserver(fit).observe(place);
    }
    const { over, found, data } = lines(JSON.parse(frame.dataset.frame));
    const kind = `${over} ${found.length}`;
    if (chart && kind !== shown) {
      chart.destroy();
      chart = null;
    }
    if (chart) chart.setData(data);
    else chart = new uPlot(options(over, found, place.clientWidth), data, place);
    last(chart);
    shown = kind;
    place.dataset.points = String(points.length);
  }

  // Without a pointer, the legend shows the last values of the lines.
  function last(self) {
    if (self.cursor.idx == null && self.data[0].length) self.setLegend({ idx: self.data[0].length - 1 }, false);
  }

  function fit() {
    if (chart && drawn.clientWidth) chart.setSize({ width: drawn.clientWidth, height: HEIGHT });
  }

  function options(over, found, width) {
    const axis = { stroke: css("--text"), grid: { stroke: css("--line") }, ticks: { stroke: css("--line") } };
    const unit = over === "trials" ? "trials" : "seconds";
    const value = (self, ms) => (ms == null ? "-" : `${Number(ms.toPrecision(5))} ms`);
    const series = found.slice(1).map(({ label, colour, width = 2, dash, stepped }) => ({
      label,
      value,
      width,
      dash,
      stroke: css(colour),
      points: { show: false },
      ...(stepped ? { paths: uPlot.paths.stepped({ align: 1 }) } : {}),
    }));
    const end = series.length;
    return {
      width,
      height: HEIGHT,
      scales: { x: { time: false } },
      axes: [
        // trials are integers
        { ...axis, label: unit, ...(over === "trials" ? { incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 1e6, 1e7] } : {}) },
        // the usual three digits would make all values of a microsecond model equal
        { ...axis, label: "ms", size: 76, values: (self, marks) => marks.map((ms) => String(Number(ms.toPrecision(5)))) },
      ],
      series: [{ label: unit, value: (self, x) => (x == null ? "-" : x.toFixed(over === "trials" ? 0 : 1)) }, ...series],
      hooks: { setCursor: [last] },
      bands: series[end - 1].width === 0 ? [{ series: [end, end - 1], fill: css("--band") }] : [],
    };
  }

  function heard(text) {
    const told = JSON.parse(text);
    if (told.sequence <= sequence) return;
    sequence = told.sequence;
    add([told.created_at, told.data.trials_done, told.data.default_seconds, told.data.best_seconds]);
    draw();
  }

  function again() {
    chart?.destroy();
    chart = null;
    draw();
  }

  // These events make the page reload its parts. The browser reconnects a broken stream.
  function listen(address) {
    const stream = new EventSource(address);
    const tell = (kind) => job.dispatchEvent(new CustomEvent(kind));
    for (const kind of ["progress", "task", "state"])
      stream.addEventListener(kind, (event) => {
        if (kind === "progress") heard(event.data);
        tell(kind);
      });
    stream.addEventListener("end", () => {
      stream.close();
      tell("end");
    });
  }

  if (job?.dataset.events) listen(job.dataset.events);
  document.addEventListener("htmx:after:swap", draw);
  document.addEventListener("change", (event) => event.target.name === "over" && draw());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  draw();
})();
