// Draws the charts of a page with uPlot, from their descriptions (service/show/chart.py).
(() => {
  "use strict";

  const NEAR = 12; // pixels between the pointer and a dot
  const WHOLE = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 1e6, 1e7];
  const NAME_WIDTH = 40;
  const views = new Map(); // chart element -> {place, text, chart, plot, sizes}
  const colours = {};
  const css = (name) => (colours[name] ??= getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim());
  // the usual three digits would make all values of a microsecond model equal
  const digits = (number) => (number == null ? "" : String(Number(number.toPrecision(5))));
  const hasDots = (chart) => chart.series.some(({ mark }) => mark === "dots");

  // The data for uPlot: rows by x, which several series share. Equal x of a series need a row each.
  function columns({ series }) {
    const rows = new Map();
    series.forEach(({ x, y }, column) =>
      x.forEach((at, n) => {
        if (!rows.has(at)) rows.set(at, []);
        let row = rows.get(at).find((each) => each[column] === null);
        if (!row) rows.get(at).push((row = series.map(() => null)));
        row[column] = y[n];
      }),
    );
    const sorted = [...rows].sort(([a], [b]) => a - b).flatMap(([at, same]) => same.map((row) => [at, ...row]));
    return Array.from({ length: series.length + 1 }, (_, column) => sorted.map((row) => row[column]));
  }

  // What requires a new plot when it changes.
  const frame = ({ x, y, series }) => JSON.stringify([x, y, series.map(({ name, mark }) => [name, mark])]);

  // uPlot draws rows up to the first whose x is the end of the range. So the range ends a little
  // behind the last x: several rows may have it, as the last trial and the confirmation after it.
  const around = (self, low, high) => (low === high ? [low - 1, high + 1] : [low, high + 1e-6 * (high - low)]);

  function scale({ log, span }, isX) {
    const range = span ?? (isX && !log ? around : undefined);
    return { time: false, distr: log ? 3 : 1, ...(range && { range }) };
  }

  function axis({ label, whole, names }) {
    const line = { stroke: css("line"), width: 1 };
    const made = { stroke: css("text"), grid: line, ticks: line, label: label || undefined };
    if (whole) made.incrs = WHOLE;
    if (!names.length) return { ...made, values: (self, marks) => marks.map(digits) };
    const shown = (self) => Math.ceil((names.length * NAME_WIDTH) / self.width);
    const splits = () => names.map((_, n) => n);
    return { ...made, grid: { show: false }, splits, values: (self) => names.map((name, n) => (n % shown(self) ? "" : name)) };
  }

  function line({ name, mark, colour, dashed, x }, unit) {
    const made = { label: name, stroke: css(colour), spanGaps: true };
    if (mark === "dots") return { ...made, paths: () => null, points: { show: false } };
    return {
      ...made,
      width: { edge: 0, line: 2, steps: 3 }[mark],
      dash: dashed ? [6, 4] : undefined,
      points: { show: mark === "line" && !dashed && x.length < 50 },
      value: (self, value) => (value == null ? "-" : `${digits(value)} ${unit}`),
      ...(mark === "steps" && { paths: uPlot.paths.stepped({ align: 1 }) }),
    };
  }

  function options(view) {
    const { chart, place } = view;
    const { x, y, series } = chart;
    const edges = series.flatMap(({ mark }, n) => (mark === "edge" ? [n + 1] : []));
    const scattered = hasDots(chart);
    return {
      width: place.clientWidth,
      height: Number(place.dataset.height),
      scales: { x: scale(x, true), y: scale(y, false) },
      axes: [axis(x), { ...axis(y), size: 76 }],
      series: [{ label: x.label, value: (self, value) => digits(value) || "-" }, ...series.map((each) => line(each, y.unit))],
      bands: edges.length === 2 ? [{ series: edges.reverse(), fill: css("band") }] : [],
      cursor: { show: !scattered },
      legend: { show: !scattered },
      hooks: scattered ? { draw: [(self) => drawDots(self, view.chart)], ready: [(self) => follow(self, view)] } : { setCursor: [showLast], ready: [showLast] },
    };
  }

  // Without a pointer, the legend shows the last value of each line. Lines may end in different rows.
  function showLast(self) {
    if (self.cursor.idx != null || !self.data[0].length) return;
    self.setLegend({ idxs: self.data.map((column) => Math.max(0, column.findLastIndex((value) => value != null))) }, false);
  }

  function* dotsOf(chart) {
    for (const { mark, colour, x, y, texts, links, radii, colours: own, limits } of chart.series)
      if (mark === "dots")
        for (let n = 0; n < x.length; n++)
          yield { x: x[n], y: y[n], text: texts?.[n] ?? "", link: links?.[n] ?? "", radius: radii[n], colour: own?.[n] || colour, limit: limits?.[n] ?? null };
  }

  function drawDots(self, chart) {
    const { ctx } = self;
    const ratio = devicePixelRatio;
    const up = (y) => self.valToPos(y, "y", true);
    ctx.save();
    for (const dot of dotsOf(chart)) {
      const left = self.valToPos(dot.x, "x", true);
      if (dot.limit !== null) {
        ctx.beginPath();
        ctx.moveTo(left, up(dot.y));
        ctx.lineTo(left, up(dot.limit));
        ctx.moveTo(left - 7 * ratio, up(dot.limit));
        ctx.lineTo(left + 7 * ratio, up(dot.limit));
        ctx.strokeStyle = css("quiet");
        ctx.stroke();
      }
      ctx.beginPath();
      ctx.arc(left, up(dot.y), dot.radius * ratio, 0, 2 * Math.PI);
      ctx.globalAlpha = 0.6;
      ctx.fillStyle = css(dot.colour);
      ctx.fill();
      ctx.globalAlpha = 1;
    }
    ctx.restore();
  }

  // The dot under the pointer shows its text and leads to its page.
  function follow(self, view) {
    const dotAt = (event) => {
      const { left, top } = self.over.getBoundingClientRect();
      let found = null;
      let least = NEAR;
      for (const dot of dotsOf(view.chart)) {
        const away = Math.hypot(self.valToPos(dot.x, "x") - event.clientX + left, self.valToPos(dot.y, "y") - event.clientY + top);
        if (away <= least) [found, least] = [dot, away];
      }
      return found;
    };
    self.over.addEventListener("pointermove", (event) => {
      const dot = dotAt(event);
      self.over.title = dot?.text ?? "";
      self.over.style.cursor = dot?.link ? "pointer" : "";
    });
    self.over.addEventListener("click", (event) => {
      const dot = dotAt(event);
      if (dot?.link) location.assign(view.place.dataset.root + encodeURI(dot.link));
    });
  }

  // Creates the plot once its element has a width, and fits it to a new width.
  function fit(view) {
    const width = view.place.clientWidth;
    if (!width) return;
    if (!view.plot) view.plot = new uPlot(options(view), columns(view.chart), view.place);
    else if (view.plot.width !== width) view.plot.setSize({ width, height: view.plot.height });
  }

  function clear(view) {
    view.plot?.destroy();
    view.plot = null;
  }

  function update(view, text) {
    if (view.text === text) return;
    const before = view.chart && frame(view.chart);
    view.text = text;
    view.chart = JSON.parse(text);
    if (before === frame(view.chart)) {
      view.plot?.setData(columns(view.chart));
      if (view.plot && !hasDots(view.chart)) showLast(view.plot);
    } else {
      clear(view);
      fit(view);
    }
    view.place.dataset.until = String(Math.max(...view.chart.series.flatMap(({ x }) => x)));
  }

  function drawAll() {
    const seen = new Set(document.querySelectorAll(".chart"));
    for (const [element, view] of views)
      if (!seen.has(element) || view.place !== element.firstElementChild) {
        view.sizes.disconnect();
        clear(view);
        views.delete(element);
      }
    for (const element of seen) {
      let view = views.get(element);
      if (!view) {
        const made = { place: element.firstElementChild, text: "", chart: null, plot: null };
        made.sizes = new ResizeObserver(() => fit(made));
        views.set(element, (view = made));
      }
      update(view, element.dataset.chart);
      view.sizes.observe(view.place);
    }
  }

  document.addEventListener("htmx:after:swap", drawAll);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const name of Object.keys(colours)) delete colours[name];
    for (const view of views.values()) {
      clear(view);
      fit(view);
    }
  });
  drawAll();
})();
