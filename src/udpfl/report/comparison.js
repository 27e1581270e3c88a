"use strict";
// The page that compares: sorts settings and folds their runs, and draws what the menus say.
(() => {
  const { Plot, svg, html, said, DASHES } = window.udpfl;

  // The table: a button in every heading sorts the settings, each with its runs.
  const table = document.querySelector("table.compared");
  const heads = [...table.querySelectorAll("thead th")];
  const bodies = [...table.tBodies];
  const keyOf = (body, column) => {
    const key = body.rows[0].cells[column].dataset.sort;
    if (key === undefined) return null;
    return key === "inf" ? Infinity : key !== "" && !Number.isNaN(Number(key)) ? Number(key) : key;
  };
  const compare = (a, b) =>
    (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b)));
  const sort = (column) => {
    const before = heads[column].getAttribute("aria-sort");
    const best = heads[column].classList.contains("best");  // the best accuracy comes first
    const first = best && heads[column].textContent.trim() === "accuracy" ? "descending" : "ascending";
    const other = first === "ascending" ? "descending" : "ascending";
    const way = before === first ? other : first;
    heads.forEach((head) => head.removeAttribute("aria-sort"));
    heads[column].setAttribute("aria-sort", way);
    const sorted = [...bodies].sort((one, two) => {
      const [a, b] = [keyOf(one, column), keyOf(two, column)];
      if (a === null || b === null) return (a === null) - (b === null);  // nothing comes last
      return way === "ascending" ? compare(a, b) : compare(b, a);
    });
    table.append(...sorted);
  };
  heads.forEach((head, column) => {
    const button = html(head, "button");
    button.type = "button";
    button.append(...[...head.childNodes].filter((node) => node !== button));
    button.addEventListener("click", () => sort(column));
  });
  heads[0].setAttribute("aria-sort", "ascending");

  // The runs of a setting are folded below it.
  const folds = bodies.map((body) => {
    const [first, ...runs] = body.rows;
    const name = first.querySelector(".name");
    const button = document.createElement("button");
    name.replaceWith(button);
    button.type = "button";
    button.className = "fold";
    svg(svg(button, "svg", { width: 10, height: 10, viewBox: "0 0 10 10", "aria-hidden": "true" }),
      "path", { d: "M2 1l5 4-5 4z" });
    button.prepend(first.querySelector(".swatch"));
    button.append(name);
    const fold = (open) => {
      button.setAttribute("aria-expanded", String(open));
      runs.forEach((row) => { row.hidden = !open; });
    };
    button.addEventListener("click", () => fold(button.getAttribute("aria-expanded") !== "true"));
    fold(false);
    return fold;
  });
  const unfold = document.getElementById("unfold");
  unfold.addEventListener("click", () => {
    const open = unfold.getAttribute("aria-pressed") !== "true";
    unfold.setAttribute("aria-pressed", String(open));
    folds.forEach((fold) => fold(open));
  });

  // The charts: what the menus say, of the settings that are switched on.
  const place = document.getElementById("comparison-data");
  if (!place) return;
  const { quantities, settings, many } = JSON.parse(place.textContent);
  const off = new Set();
  const quantity = (id) => quantities.find((own) => own.id === id);
  const title = (text) => text[0].toUpperCase() + text.slice(1);

  // One line with its band; null where the setting has no such numbers.
  const lineOf = (setting, x, y) => {
    const across = setting.curves[x]?.mean, up = setting.curves[y];
    if (!across || !up) return null;
    const at = across.map((value, i) => i).filter((i) => across[i] !== null && up.mean[i] !== null);
    if (!at.length) return null;
    const pick = (values) => at.map((i) => values[i]);
    const line = { name: setting.name, x: pick(across), y: pick(up.mean), colour: setting.colour, dash: setting.dash };
    if (up.sd) line.sd = at.map((i) => up.sd[i] || 0);
    return line;
  };
  const bandOf = ({ name, x, y, sd, colour }) => ({
    name, x, colour, low: y.map((value, i) => value - sd[i]), high: y.map((value, i) => value + sd[i]),
  });

  class Card {
    constructor(figure) {
      this.figure = figure;
      this.menus = Object.fromEntries([...figure.querySelectorAll("select")].map((own) => [own.dataset.axis, own]));
      for (const menu of Object.values(this.menus)) menu.addEventListener("change", () => this.draw());
      figure.querySelector("details").addEventListener("toggle", () => this.fill());
      this.draw();
    }

    draw() {
      const x = this.x = quantity(this.menus.x.value), y = this.y = quantity(this.menus.y.value);
      const part = (selector) => this.figure.querySelector(selector);
      const all = settings.map((setting) => lineOf(setting, x.id, y.id));
      this.lines = all.filter((line) => line && !off.has(line.name));
      const name = title(`${y.name} by ${x.name}`);
      part("h3").textContent = name;
      const warnings = [...new Set([y.warning, x.warning])].filter(Boolean);
      part(".warning").textContent = warnings.join(" ");
      part(".warning").hidden = !warnings.length;
      const without = settings.filter((_, i) => !all[i]).map((own) => own.name);
      const missing = without.length ? `Without such numbers: ${without.join("; ")}.` : "";
      const nothing = this.lines.length ? "" : "There is nothing to draw.";
      part(".note").textContent = [...new Set([nothing, y.note, x.note, missing])].filter(Boolean).join(" ");
      const panels = part(".panels");
      panels.replaceChildren();
      panels.classList.toggle("many", many);
      const chart = {
        title: name, x: x.name, y: y.name, format: y.format, bars: null, marks: y.marks,
        log: false, free: true, nearest: x.id !== "round",
      };
      if (!many && this.lines.length) this.panel(panels, 0, { ...chart, series: this.lines });
      if (many) this.multiples(panels, chart);
      this.fill(true);
    }

    // A chart of its own for every setting, all on the same axes, the other settings in grey.
    multiples(panels, chart) {
      const xs = this.lines.flatMap((line) => line.x);
      const range = this.lines.flatMap((line) => [line, line.sd && bandOf(line)].filter(Boolean))
        .flatMap((own) => own.low ? [...own.low, ...own.high] : own.y);
      if (!xs.length) return;
      const shared = { ...chart, height: 170, bare: true, ends: [Math.min(...xs), Math.max(...xs)],
        range: [Math.min(...range), Math.max(...range)] };
      this.lines.forEach((line, number) => {
        const grey = this.lines.filter((own) => own !== line)
          .map((own) => ({ ...own, colour: "behind", dash: "solid", sd: undefined, silent: true }));
        this.panel(panels, number, { ...shared, title: `${line.name}: ${chart.title}`, series: [...grey, line] },
          line.name);
      });
    }

    panel(panels, number, chart, name) {
      const panel = html(panels, "div", "panel");
      if (name) html(panel, "h4", "", name);
      html(panel, "div", "plot");
      html(panel, "output", "readout");
      chart.id = `chart-${this.figure.dataset.compare}-${number}`;
      chart.bands = chart.series.filter((line) => line.sd).map(bandOf);
      new Plot(panel, chart);
    }

    // The numbers behind the chart, once somebody asks for them.
    fill(again) {
      const details = this.figure.querySelector("details"), box = details.querySelector("div");
      if (again) box.replaceChildren();
      if (!details.open || box.firstChild) return;
      const numbers = html(box, "table");
      const top = html(html(numbers, "thead"), "tr"), body = html(numbers, "tbody");
      for (const words of ["setting", this.x.name, this.y.name, "standard deviation"]) html(top, "th", "", words).scope = "col";
      for (const line of this.lines) {
        line.x.forEach((value, i) => {
          const row = html(body, "tr");
          html(row, "th", "", line.name).scope = "row";
          html(row, "td", "", said(value, this.x.format));
          html(row, "td", "", said(line.y[i], this.y.format));
          html(row, "td", "", line.sd ? said(line.sd[i], this.y.format === "percent" ? "percent" : "") : "–");
        });
      }
    }
  }

  const cards = [...document.querySelectorAll("figure[data-compare]")].map((figure) => new Card(figure));

  // One legend for all charts.
  const legend = document.querySelector(".legend.shared");
  for (const { name, colour, dash, curves, kind } of settings) {
    if (!Object.keys(curves).length) continue;
    const button = html(legend, "button");
    button.type = "button";
    button.setAttribute("aria-pressed", "true");
    const sample = svg(button, "svg", { width: 30, height: 12, "aria-hidden": "true" });
    svg(sample, "line", { x1: 0, x2: 30, y1: 6, y2: 6, class: `line ${colour}`, "stroke-dasharray": DASHES[dash] });
    html(button, "span", "", `${name} (${kind})`);
    button.addEventListener("click", () => {
      const hidden = !off.delete(name);
      if (hidden) off.add(name);
      button.setAttribute("aria-pressed", String(!hidden));
      cards.forEach((card) => card.draw());
    });
  }
  document.documentElement.dataset.compared = "yes";
})();
