"use strict";
// Draws the charts of a report as SVG: read-out by pointer, touch and keys; series on and off.
(() => {
  const HEIGHT = 250, LEFT = 68, RIGHT = 14, TOP = 18, BOTTOM = 42;
  const DASHES = { solid: "none", dashed: "7 4", dotted: "2 3" };
  const charts = JSON.parse(document.getElementById("report-data").textContent);

  const { svg, html, digits, roundedUp, stepOf, ticks } = window.udpfl;

  // Numbers for people.
  const grouped = (text) => {
    const [whole, rest] = text.split(".");
    const spaced = whole.length > 4 && !/e/.test(text)
      ? whole.replace(/\B(?=(\d{3})+$)/g, ",") : whole;
    return rest === undefined ? spaced : `${spaced}.${rest}`;
  };
  const said = (value, format) => {
    if (value === null || value === undefined) return "–";
    if (format === "percent") return `${digits(100 * value, 4)} %`;
    if (format === "epsilon" && value > 0) return grouped(roundedUp(value));
    return grouped(digits(value, 4));
  };
  const tick = (value, format) =>
    format === "percent" ? `${digits(100 * value, 3)} %` : grouped(digits(value, 3));

  const decades = (low, high) => {
    const found = [];
    const last = Math.ceil(Math.log10(high) - 1e-9);
    const first = Math.floor(Math.log10(low) + 1e-9);
    const every = Math.max(1, Math.ceil((last - first) / 6));
    for (let k = first; k <= last; k += every) found.push(10 ** k);
    return found;
  };

  // What all labels begin with need not be written under every bar: client-0, client-1, ...
  const shortened = (labels) => {
    if (labels.length < 2) return labels;
    let end = labels[0].length;
    for (const label of labels) while (!label.startsWith(labels[0].slice(0, end))) end--;
    const cut = labels[0].slice(0, end).search(/[-_ /][^-_ /]*$/) + 1;
    return labels.map((label) => label.slice(cut));
  };

  class Plot {
    constructor(figure, chart) {
      Object.assign(this, { figure, chart, hidden: new Set(), at: null });
      this.box = figure.querySelector(".plot");
      this.readout = figure.querySelector(".readout");
      this.stops = chart.bars
        ? chart.bars.labels.map((_, i) => i)
        : [...new Set(chart.series.flatMap((s) => s.x))].sort((a, b) => a - b);
      this.whole = this.stops.every(Number.isInteger);
      const legend = figure.querySelector(".legend"), details = figure.querySelector("details.data");
      if (legend) this.legend(legend);
      if (details) this.table(details);
      new ResizeObserver(() => this.width !== this.measure() && this.draw()).observe(this.box);
      this.draw();
    }

    // Long names that stand slanted need more room beneath the bars.
    room() {
      const { bars } = this.chart;
      if (!bars) return BOTTOM;
      const step = (this.width - LEFT - RIGHT) / bars.labels.length;
      const longest = Math.max(...shortened(bars.labels).map((label) => label.length));
      this.flat = step > 6.6 * longest;
      return this.flat || step <= 13 ? BOTTOM : Math.min(84, 30 + 4.2 * longest);
    }

    measure() { return Math.max(260, Math.round(this.box.clientWidth)); }
    get height() { return this.chart.height || HEIGHT; }
    shown() { return this.chart.series.filter((s) => !this.hidden.has(s.name)); }

    legend(place) {
      const parts = [...this.chart.series, ...this.chart.bands];
      if (this.chart.bars || (parts.length < 2 && !this.chart.legend)) return;
      for (const part of parts) {
        const button = html(place, "button");
        const sample = svg(button, "svg", { width: 30, height: 12, "aria-hidden": "true" });
        if (part.low) {
          this.hatch(sample, `legend-${this.chart.id}-hatch`, part.colour);
          svg(sample, "rect", { width: 30, height: 12, class: `area ${part.colour}`,
            ...(part.hatched ? { fill: `url(#legend-${this.chart.id}-hatch)`, "data-hatch": "" } : {}) });
        } else {
          svg(sample, "line", { x1: 0, x2: 30, y1: 6, y2: 6, class: `line ${part.colour}`,
            "stroke-dasharray": DASHES[part.dash] });
        }
        html(button, "span", "", part.name);
        button.type = "button";
        button.setAttribute("aria-pressed", "true");
        button.addEventListener("click", () => {
          const off = !this.hidden.delete(part.name);
          if (off) this.hidden.add(part.name);
          button.setAttribute("aria-pressed", String(!off));
          this.draw();
        });
      }
    }

    table(details) {
      const { chart } = this;
      details.addEventListener("toggle", () => {
        const place = details.querySelector("div");
        if (!details.open || place.firstChild) return;
        const table = html(place, "table");
        const row = (parent, cells, head) => {
          const line = html(parent, "tr");
          cells.forEach((text, i) => {
            const cell = html(line, head || i === 0 ? "th" : "td", "", text);
            if (head || i === 0) cell.scope = head ? "col" : "row";
          });
        };
        const top = html(table, "thead"), body = html(table, "tbody");
        const { bars } = chart;
        if (bars) {
          row(top, [chart.x, chart.y, bars.mark_name], true);
          bars.labels.forEach((label, i) => row(body, [label, said(bars.values[i], chart.format),
            said(bars.marks[i], chart.format)]));
          return;
        }
        row(top, [chart.x, ...chart.series.map((s) => s.name)], true);
        for (const x of this.stops) {
          row(body, [said(x), ...chart.series.map((s) => {
            const i = s.x.indexOf(x);
            return i < 0 ? "" : said(s.y[i], chart.format);
          })]);
        }
      });
    }

    // The axes: from the data that is switched on, zero included except for errors and losses.
    scales() {
      const { chart } = this;
      const lines = this.shown();
      const bands = chart.bands.filter((band) => !this.hidden.has(band.name));
      const values = [
        ...lines.flatMap((s) => s.y), ...bands.flatMap((b) => [...b.low, ...b.high]),
        ...(chart.bars ? [...chart.bars.values, ...chart.bars.marks] : []),
        ...chart.marks.map((mark) => mark[0]), ...(chart.range || []),
      ].filter((value) => value !== null && (!chart.log || value > 0));
      let low = chart.log || chart.free ? Math.min(...values) : Math.min(0, ...values);
      let high = Math.max(...values, chart.top || -Infinity);
      if (!values.length) [low, high] = chart.log ? [1, 10] : [0, 1];
      if (chart.log) {
        low = 10 ** Math.floor(Math.log10(low) + 1e-9);
        high = 10 ** Math.ceil(Math.log10(high) - 1e-9);
        if (low === high) high *= 10;
      } else {
        if (high === low) high = low + 1;
        const step = stepOf(low, high, chart.free ? 4 : 5);
        high = Math.ceil(high / step - 1e-9) * step;
        if (chart.free) low = Math.floor(low / step + 1e-9) * step;
      }
      const ends = chart.bars ? [0, this.stops.length] : [...(chart.ends || [this.stops[0], this.stops.at(-1)])];
      if (ends[0] === ends[1]) {  // a single stop stands in the middle
        const half = this.whole ? 0.5 : Math.abs(ends[0]) / 2;
        ends[0] -= half;
        ends[1] += half;
      }
      const f = chart.log ? Math.log10 : (v) => v;
      this.x = (v) => LEFT + (v - ends[0]) / (ends[1] - ends[0]) * (this.width - LEFT - RIGHT);
      this.y = (v) => this.height - this.bottom
        - (f(v) - f(low)) / (f(high) - f(low)) * (this.height - TOP - this.bottom);
      return { low, high, ends, lines, bands };
    }

    draw() {
      const { chart } = this;
      this.width = this.measure();
      this.bottom = Math.max(BOTTOM, this.room());
      const { low, high, ends, lines, bands } = this.scales();
      const focused = this.root && this.root === document.activeElement;
      const root = this.root = document.createElementNS("http://www.w3.org/2000/svg", "svg");
      for (const [key, value] of Object.entries({
        viewBox: `0 0 ${this.width} ${this.height}`, tabindex: 0, role: "slider",
        "aria-label": `${chart.title}. Arrow keys read the values.`,
        "aria-valuemin": 0, "aria-valuemax": Math.max(0, this.stops.length - 1),
        "aria-valuenow": this.at ?? Math.max(0, this.stops.length - 1),
        "aria-valuetext": "move to read values",
      })) root.setAttribute(key, value);
      const floor = this.height - this.bottom;
      for (const v of chart.log ? decades(low, high) : ticks(low, high, 5)) {
        svg(root, "line", { x1: LEFT, x2: this.width - RIGHT, y1: this.y(v), y2: this.y(v), class: "grid" });
        svg(root, "text", { x: LEFT - 7, y: this.y(v) + 4, class: "tick end" }, tick(v, chart.format));
      }
      if (!chart.bare) svg(root, "text", { x: (LEFT + this.width - RIGHT) / 2, y: this.height - 3, class: "axis" }, chart.x);
      if (!chart.bare) svg(root, "text", { x: 13, y: (TOP + floor) / 2, class: "axis",
        transform: chart.y.length > 2 ? `rotate(-90 13 ${(TOP + floor) / 2})` : "" }, chart.y);
      const colour = chart.bars ? chart.bars.colour : bands[0]?.colour;
      this.hatch(root, `hatch-${this.chart.id}`, colour);
      if (chart.bars) this.bars(root, floor);
      else {
        for (const v of ticks(ends[0], ends[1], Math.min(8, this.width / 70), this.whole)) {
          svg(root, "text", { x: this.x(v), y: floor + 16, class: "tick middle" }, tick(v));
        }
        for (const band of bands) this.band(root, band);
        for (const line of lines) this.line(root, line);
      }
      chart.marks.forEach(([value, label], i) => {
        svg(root, "line", { x1: LEFT, x2: this.width - RIGHT, y1: this.y(value), y2: this.y(value), class: "mark" });
        const end = i % 2 ? { x: this.width - RIGHT - 4, class: "label end" } : { x: LEFT + 6, class: "label" };
        svg(root, "text", { ...end, y: this.y(value) - 5 }, label);
      });
      this.cursor = svg(root, "g", { class: "cursor" });
      this.box.replaceChildren(root);
      root.addEventListener("pointermove", (event) => this.point(event));
      root.addEventListener("pointerdown", (event) => this.point(event));
      root.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && this.read(null));
      root.addEventListener("keydown", (event) => this.key(event));
      root.addEventListener("blur", () => this.read(null));
      this.read(this.at);
      if (focused) root.focus();
    }

    hatch(root, id, colour) {
      const pattern = svg(svg(root, "defs"), "pattern", { id, width: 7, height: 7,
        patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" });
      svg(pattern, "rect", { width: 7, height: 7, class: `wash ${colour}` });
      svg(pattern, "rect", { width: 2.5, height: 7, class: `area ${colour}` });
    }

    // Line segments, broken where there is no value.
    path(xs, ys) {
      let open = false;
      return xs.map((x, i) => {
        const y = ys[i];
        if (y === null || (this.chart.log && y <= 0)) { open = false; return ""; }
        const step = `${open ? "L" : "M"}${this.x(x).toFixed(1)} ${this.y(y).toFixed(1)}`;
        open = true;
        return step;
      }).join("");
    }

    line(root, { x, y, colour, dash, silent }) {
      svg(root, "path", { d: this.path(x, y), class: `line ${colour}`, "stroke-dasharray": DASHES[dash] });
      if (silent) return;
      const dots = x.length <= 3 ? x.map((_, i) => i) : [x.length - 1];
      for (const i of dots) if (y[i] !== null) {
        svg(root, "circle", { cx: this.x(x[i]), cy: this.y(y[i]), r: 3.5, class: `dot ${colour}` });
      }
    }

    band(root, { x, low, high, colour, hatched }) {
      const back = this.path([...x].reverse(), [...low].reverse()).replace("M", "L");
      svg(root, "path", { d: `${this.path(x, high)}${back}Z`, class: `area faint ${colour}`,
        ...(hatched ? { fill: `url(#hatch-${this.chart.id})`, "data-hatch": "" } : {}) });
    }

    bars(root, floor) {
      const { labels, values, marks, colour, hatched, spent } = this.chart.bars;
      const step = this.x(1) - this.x(0);
      const gap = step > 6 ? Math.min(step * 0.2, 12) / 2 : 0;
      let bodies = "", full = "", lids = "";
      shortened(labels).forEach((label, i) => {
        const left = (this.x(i) + gap).toFixed(1), right = (this.x(i + 1) - gap).toFixed(1);
        const body = values[i] === null ? "" : `M${left} ${floor}V${this.y(values[i]).toFixed(1)}H${right}V${floor}Z`;
        if (spent && spent[i]) full += body;
        else bodies += body;
        if (marks[i] !== null) lids += `M${left} ${this.y(marks[i]).toFixed(1)}H${right}`;
        const middle = (this.x(i) + this.x(i + 1)) / 2;
        if (this.flat) {
          svg(root, "text", { x: middle, y: floor + 16, class: "tick middle" }, label);
        } else if (step > 13) {
          svg(root, "text", { x: middle + 4, y: floor + 12, class: "tick end slanted",
            transform: `rotate(-35 ${middle + 4} ${floor + 12})` }, this.ending(label));
        }
      });
      if (bodies) svg(root, "path", { d: bodies, class: `area ${colour}`,
        ...(hatched ? { fill: `url(#hatch-${this.chart.id})`, "data-hatch": "" } : {}) });
      if (full) svg(root, "path", { d: full, class: "area spent" });
      svg(root, "path", { d: lids, class: "mark solid" });
    }

    // Beneath a slanted bar there is room for so many letters; the end of a name tells it apart.
    ending(label) {
      const room = Math.floor((this.bottom - 16) / 4.2);
      return label.length > room ? `…${label.slice(1 - room)}` : label;
    }

    point(event) {
      const place = this.root.getBoundingClientRect();
      const at = (event.clientX - place.left) / place.width * this.width;
      if (this.chart.bars) {
        const i = Math.floor((at - LEFT) / (this.width - LEFT - RIGHT) * this.stops.length);
        return this.read(Math.min(Math.max(i, 0), this.stops.length - 1));
      }
      let best = 0;
      this.stops.forEach((x, i) => {
        if (Math.abs(this.x(x) - at) < Math.abs(this.x(this.stops[best]) - at)) best = i;
      });
      this.read(best);
    }

    key(event) {
      const last = this.stops.length - 1;
      const from = this.at ?? last;
      const to = { ArrowLeft: from - 1, ArrowDown: from - 1, ArrowRight: from + 1, ArrowUp: from + 1,
        PageUp: from + 10, PageDown: from - 10, Home: 0, End: last, Escape: null }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      this.read(to === null ? null : Math.min(Math.max(to, 0), last));
    }

    // Show the values at one stop; null clears it.
    read(at) {
      const { chart } = this;
      this.at = at;
      this.cursor.replaceChildren();
      this.readout.textContent = "";
      if (at === null || !this.stops.length) return;
      const floor = this.height - this.bottom;
      let words;
      if (chart.bars) {
        const { labels, values, marks, mark_name } = chart.bars;
        svg(this.cursor, "rect", { x: this.x(at), y: TOP, width: Math.max(2, this.x(at + 1) - this.x(at)), height: floor - TOP });
        words = `${labels[at]}: ${said(values[at], chart.format)}`
          + (marks[at] === null ? "" : `, ${mark_name} ${said(marks[at], chart.format)}`);
      } else {
        const x = this.stops[at];
        svg(this.cursor, "line", { x1: this.x(x), x2: this.x(x), y1: TOP, y2: floor });
        const parts = this.shown().filter((s) => !s.silent).map((s) => {
          let i = 0;
          s.x.forEach((v, k) => { if (Math.abs(v - x) < Math.abs(s.x[i] - x)) i = k; });
          if (!chart.nearest && s.x[i] !== x) return null;
          if (s.y[i] !== null && (!chart.log || s.y[i] > 0)) {
            svg(this.cursor, "circle", { cx: this.x(s.x[i]), cy: this.y(s.y[i]), r: 4.5, class: `dot ${s.colour}` });
          }
          const sd = s.sd?.[i] ? ` ± ${said(s.sd[i], chart.format === "percent" ? "percent" : "")}` : "";
          return `${s.name} ${said(s.y[i], chart.format)}${sd}`;
        }).filter(Boolean);
        words = `${chart.x} ${said(x)}: ${parts.join("; ")}`;
      }
      this.readout.textContent = words;
      this.root.setAttribute("aria-valuenow", at);
      this.root.setAttribute("aria-valuetext", words);
    }
  }

  Object.assign(window.udpfl, { Plot, said, DASHES });  // for the page that compares

  document.querySelectorAll("figure[data-chart]").forEach((figure) => {
    const chart = charts.find((one) => one.id === figure.dataset.chart);
    new Plot(figure, chart);
  });

  // Cells of the confusion matrix say in words what they count.
  const matrix = document.getElementById("matrix");
  if (matrix) {
    const columns = [...matrix.querySelectorAll("thead th")].map((cell) => cell.textContent);
    matrix.addEventListener("pointerover", (event) => {
      const cell = event.target.closest("tbody td");
      if (!cell) return;
      const row = cell.parentElement;
      const total = [...row.querySelectorAll("td")].reduce((sum, c) => sum + Number(c.textContent), 0);
      document.getElementById("cell").textContent = `${row.querySelector("th").textContent} taken for `
        + `${columns[cell.cellIndex - 1]}: ${cell.textContent} of ${total} (${said(Number(cell.textContent) / (total || 1), "percent")})`;
    });
  }

  // A table that is wider than its frame says so: shadows alone are easily missed.
  const frames = new ResizeObserver((seen) => seen.forEach(({ target }) => {
    target.toggleAttribute("data-scrolls", target.scrollWidth > target.clientWidth + 1);
  }));
  document.querySelectorAll(".scroll").forEach((frame) => frames.observe(frame));

  // On paper the table of clients is unfolded; what is left out there is said on the page.
  let unfolded = [];
  addEventListener("beforeprint", () => {
    unfolded = [...document.querySelectorAll("details.on-paper:not([open])")];
    unfolded.forEach((details) => { details.open = true; });
  });
  addEventListener("afterprint", () => unfolded.forEach((details) => { details.open = false; }));
  document.documentElement.dataset.ready = "yes";
})();
