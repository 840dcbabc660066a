// Navigation in the drawing of a model, search for steps, and details of a step.
(() => {
  "use strict";

  const LEAST = 0.02;
  const MOST = 4;
  const LEGIBLE = 0.45; // below this scale, texts are not legible
  const NEAR = 1e9;
  const page = document.getElementById("graph");
  let view = null; // the current drawing

  class View {
    constructor(place) {
      this.place = place;
      this.svg = place.querySelector("svg");
      this.whole = this.svg.viewBox.baseVal;
      this.size = { width: this.whole.width, height: this.whole.height };
      this.boxes = [...this.svg.querySelectorAll(".box")];
      this.places = this.boxes.map((box) => {
        const rect = box.querySelector("rect");
        const of = (name) => Number(rect.getAttribute(name));
        return { left: of("x"), top: of("y"), right: of("x") + of("width"), bottom: of("y") + of("height") };
      });
      this.away = this.boxes.map(() => false);
      this.chosen = null;
      this.pointers = new Map();
      this.moved = false;
      this.below = new Map();
      this.above = new Map();
      this.lines = new Map();
      for (const line of this.svg.querySelectorAll("[data-e]")) {
        const [start, end] = line.dataset.e.split(" ").map(Number);
        for (const [from, to, map] of [[start, end, this.below], [end, start, this.above]]) {
          if (!map.has(from)) map.set(from, []);
          map.get(from).push(to);
        }
        for (const step of [start, end]) {
          if (!this.lines.has(step)) this.lines.set(step, []);
          this.lines.get(step).push(line);
        }
      }
      place.classList.add("live");
      this.svg.removeAttribute("width");
      this.svg.removeAttribute("height");
      this.scale = Math.min(1, this.room().width / this.size.width);
      this.scale = Math.max(this.scale, LEGIBLE + 0.1);
      const first = this.boxes.findIndex((box) => /\binput\b/.test(box.getAttribute("class")));
      this.centre(this.middle(Math.max(0, first)), 0.1);
      this.listen();
      new ResizeObserver(() => {
        this.measured = null;
        this.show();
      }).observe(place);
      place.dataset.ready = String(this.boxes.length);
    }

    // Read once per size of the frame, because reading forces a layout of the whole drawing.
    room() {
      if (!this.measured) {
        const { width, height } = this.place.getBoundingClientRect();
        this.measured = { width: Math.max(1, width), height: Math.max(1, height) };
      }
      return this.measured;
    }

    middle(number) {
      const { left, top, right, bottom } = this.places[number];
      return { x: (left + right) / 2, y: (top + bottom) / 2 };
    }

    // `x`, `y` are the upper left corner in units of the drawing, which never leaves the frame.
    show() {
      const room = this.room();
      const seen = { width: room.width / this.scale, height: room.height / this.scale };
      const keep = (at, shown, all) =>
        shown >= all ? (all - shown) / 2 : Math.min(Math.max(at, -shown / 4), all - (3 * shown) / 4);
      this.x = keep(this.x, seen.width, this.size.width);
      this.y = keep(this.y, seen.height, this.size.height);
      this.frame ??= requestAnimationFrame(() => this.paint());
    }

    // Once per animation frame, for any number of events. Invisible texts are left out of the
    // layout, which is most of its cost. Their steps keep their names for screen readers.
    paint() {
      this.frame = null;
      const room = this.room();
      const [wide, high] = [room.width / this.scale, room.height / this.scale];
      this.svg.setAttribute("viewBox", `${this.x} ${this.y} ${wide} ${high}`);
      const far = this.scale < LEGIBLE;
      this.place.classList.toggle("far", far);
      if (far) return;
      this.places.forEach(({ left, top, right, bottom }, n) => {
        const away = right < this.x || left > this.x + wide || bottom < this.y || top > this.y + high;
        if (away === this.away[n]) return;
        this.away[n] = away;
        this.boxes[n].classList.toggle("away", away);
      });
    }

    centre({ x, y }, above = 0.5) {
      const room = this.room();
      this.x = x - room.width / this.scale / 2;
      this.y = y - (room.height / this.scale) * above;
      this.show();
    }

    // Zooming keeps the drawing's point at (left, top) of the frame in place.
    zoom(factor, left = this.room().width / 2, top = this.room().height / 2) {
      const before = this.scale;
      this.scale = Math.min(MOST, Math.max(LEAST, this.scale * factor));
      this.x += left / before - left / this.scale;
      this.y += top / before - top / this.scale;
      this.show();
    }

    fit() {
      const room = this.room();
      this.scale = Math.max(LEAST, Math.min(1, room.width / this.size.width, room.height / this.size.height));
      this.centre({ x: this.size.width / 2, y: this.size.height / 2 });
    }

    move(across, down) {
      this.x -= across / this.scale;
      this.y -= down / this.scale;
      this.show();
    }

    choose(number, { far = true, ask = true } = {}) {
      for (const box of this.svg.querySelectorAll(".chosen, .near")) box.classList.remove("chosen", "near");
      const box = this.boxes[number];
      this.chosen = number;
      box.classList.add("chosen");
      for (const line of this.lines.get(number) ?? []) line.classList.add("near");
      for (const n of [...(this.below.get(number) ?? []), ...(this.above.get(number) ?? [])]) this.boxes[n].classList.add("near");
      for (const other of this.boxes) if (other.tabIndex === 0) other.tabIndex = -1;
      box.tabIndex = 0;
      if (far) this.centre(this.middle(number));
      if (ask) window.htmx?.ajax("GET", page.dataset.steps + number, { target: "#step", swap: "innerHTML" });
    }

    // The step for an arrow key: along a value, or the nearest step in the same layer.
    next(key) {
      const from = this.chosen ?? 0;
      if (key === "ArrowDown") return this.below.get(from)?.[0];
      if (key === "ArrowUp") return this.above.get(from)?.[0];
      const here = this.middle(from);
      const side = key === "ArrowRight" ? 1 : -1;
      let best;
      let least = NEAR;
      this.boxes.forEach((_, n) => {
        const { x, y } = this.middle(n);
        const away = (x - here.x) * side;
        if (Math.abs(y - here.y) < 1 && away > 0 && away < least) [best, least] = [n, away];
      });
      return best;
    }

    find(text, from) {
      const wanted = text.toLowerCase().split(/\s+/).filter(Boolean);
      if (!wanted.length) return { found: -1, count: 0 };
      const hits = [];
      this.boxes.forEach((box, n) => {
        const said = box.getAttribute("aria-label").toLowerCase();
        if (wanted.every((word) => said.includes(word))) hits.push(n);
      });
      return { found: hits.find((n) => n > from) ?? hits[0] ?? -1, count: hits.length };
    }

    listen() {
      const place = this.place;
      const at = (event) => {
        const { left, top } = place.getBoundingClientRect();
        return { x: event.clientX - left, y: event.clientY - top };
      };
      place.addEventListener(
        "wheel",
        (event) => {
          event.preventDefault();
          const { x, y } = at(event);
          if (event.ctrlKey || event.metaKey) this.zoom(Math.exp(-event.deltaY / 200), x, y);
          else this.move(event.shiftKey ? -event.deltaY : -event.deltaX, event.shiftKey ? 0 : -event.deltaY);
        },
        { passive: false },
      );
      place.addEventListener("pointerdown", (event) => {
        this.pointers.set(event.pointerId, at(event));
        this.moved = false;
      });
      place.addEventListener("pointermove", (event) => {
        const last = this.pointers.get(event.pointerId);
        if (!last) return;
        const now = at(event);
        const others = [...this.pointers].filter(([id]) => id !== event.pointerId);
        if (Math.hypot(now.x - last.x, now.y - last.y) < 3 && !this.moved) return;
        if (!this.moved) place.setPointerCapture(event.pointerId);
        this.moved = true;
        if (others.length) {
          const other = others[0][1];
          const apart = (point) => Math.hypot(point.x - other.x, point.y - other.y) || 1;
          this.zoom(apart(now) / apart(last), (now.x + other.x) / 2, (now.y + other.y) / 2);
        } else this.move(now.x - last.x, now.y - last.y);
        this.pointers.set(event.pointerId, now);
      });
      for (const kind of ["pointerup", "pointercancel"])
        place.addEventListener(kind, (event) => this.pointers.delete(event.pointerId));
      place.addEventListener("dragstart", (event) => event.preventDefault());
      place.addEventListener("click", (event) => {
        const box = event.target.closest(".box");
        if (!box || event.ctrlKey || event.metaKey || event.shiftKey) return;
        event.preventDefault();
        if (!this.moved) this.choose(this.boxes.indexOf(box), { far: false });
      });
      place.addEventListener("dblclick", (event) => {
        const box = event.target.closest(".box.kernel");
        if (box) location.assign(box.getAttribute("href"));
      });
      place.addEventListener("keydown", (event) => {
        if (event.ctrlKey || event.metaKey || event.altKey) return;
        if (event.key.startsWith("Arrow")) {
          const to = this.chosen === null ? 0 : this.next(event.key);
          if (to !== undefined) {
            this.choose(to);
            this.boxes[to].focus({ preventScroll: true });
          }
        } else if (event.key === "+" || event.key === "=") this.zoom(1.25);
        else if (event.key === "-") this.zoom(0.8);
        else if (event.key === "0") this.fit();
        else return;
        event.preventDefault();
      });
    }
  }

  function begin() {
    const place = document.getElementById("drawing");
    if (place && place !== view?.place) view = new View(place);
  }

  page.addEventListener("click", (event) => {
    const way = event.target.closest("[data-zoom]")?.dataset.zoom;
    if (way === "fit") view.fit();
    else if (way) view.zoom(way === "in" ? 1.4 : 1 / 1.4);
  });
  page.addEventListener("change", (event) => {
    if (event.target.name === "colour") document.getElementById("frame").dataset.colour = event.target.value;
  });
  page.addEventListener("submit", (event) => {
    event.preventDefault();
    const { found, count } = view.find(document.getElementById("find").value, view.chosen ?? -1);
    document.getElementById("found").textContent = count ? `${count} found` : "none found";
    if (found >= 0) view.choose(found);
  });
  document.addEventListener("htmx:after:swap", begin);
  begin();
})();
