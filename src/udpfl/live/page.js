"use strict";
// Asks for what is new every second, and draws it. Ends with the run.
(() => {
  const HEIGHT = 220, LEFT = 56, RIGHT = 12, TOP = 14, BOTTOM = 36;
  const ENDED = ["finished", "stopped", "interrupted", "failed"];
  const TONE = { finished: "guarantee", stopped: "nominal", interrupted: "nominal", failed: "none" };
  const byId = (id) => document.getElementById(id);
  const rows = [];
  let about = { state: "preparing", clients: [] };

  const { svg, html, digits, roundedUp, ticks } = window.udpfl;

  // Numbers for people.
  const epsilonOf = (value) => {
    if (value === null || value === undefined) return "–";
    if (value === "inf") return "∞";
    return value <= 0 ? "0" : roundedUp(value);
  };
  const numberOf = (value) => (typeof value === "number" ? value : null);
  const inWords = (seconds) => {
    const whole = Math.round(seconds);
    if (whole < 60) return `${whole} s`;
    if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
    return `${Math.floor(whole / 3600)} h ${Math.floor(whole % 3600 / 60)} min`;
  };

  // One chart: a figure with a heading, the last value beside it, and lines over rounds.
  class Chart {
    constructor(title, tone, series, format, limit) {
      Object.assign(this, { title, tone, series, format, limit });
      this.figure = html(byId("charts"), "figure", "card");
      html(this.figure, "h3", "", title);
      this.readout = html(this.figure, "output", "readout", "no value yet");
      this.box = html(this.figure, "div", "plot");
      new ResizeObserver(() => this.draw()).observe(this.box);
    }

    lines() {
      return this.series.map(({ name, value, dash }) => {
        const known = rows.map((row) => [row.round, numberOf(value(row))]);
        return { name, dash, points: known.filter(([, y]) => y !== null) };
      }).filter((line) => line.points.length);
    }

    draw() {
      const width = Math.max(240, Math.round(this.box.clientWidth));
      const lines = this.lines();
      const values = lines.flatMap((line) => line.points.map(([, y]) => y));
      const marks = this.limit && values.length ? [this.limit()].filter((v) => v !== null) : [];
      const high = Math.max(...values, ...marks, 1e-9), low = Math.min(0, ...values);
      const last = Math.max(about.rounds || 1, 2);
      const x = (round) => LEFT + (round - 1) / (last - 1) * (width - LEFT - RIGHT);
      const y = (value) => HEIGHT - BOTTOM - (value - low) / (high * 1.05 - low) * (HEIGHT - TOP - BOTTOM);
      const root = document.createElementNS("http://www.w3.org/2000/svg", "svg");
      root.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
      root.setAttribute("role", "img");
      const said = lines.map((line) => `${line.name} ${this.format(line.points.at(-1)[1])}`).join(", ");
      root.setAttribute("aria-label", `${this.title} by round. Last: ${said || "no value yet"}`);
      this.readout.textContent = said || "no value yet";
      for (const v of values.length ? ticks(low, high * 1.05, 5) : []) {
        svg(root, "line", { x1: LEFT, x2: width - RIGHT, y1: y(v), y2: y(v), class: "grid" });
        svg(root, "text", { x: LEFT - 7, y: y(v) + 4, class: "tick end" }, digits(v, 3));
      }
      svg(root, "line", { x1: LEFT, x2: width - RIGHT, y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM, class: "grid" });
      for (const v of ticks(1, last, Math.min(8, width / 70), true)) {
        svg(root, "text", { x: x(v), y: HEIGHT - BOTTOM + 16, class: "tick middle" }, digits(v, 6));
      }
      svg(root, "text", { x: (LEFT + width - RIGHT) / 2, y: HEIGHT - 4, class: "axis" }, "round");
      for (const mark of marks) {
        svg(root, "line", { x1: LEFT, x2: width - RIGHT, y1: y(mark), y2: y(mark), class: "mark" });
        svg(root, "text", { x: LEFT + 6, y: y(mark) + 14, class: "label" }, `budget ${epsilonOf(mark)}`);
      }
      for (const line of lines) {
        const path = line.points.map(([r, v], i) => `${i ? "L" : "M"}${x(r).toFixed(1)} ${y(v).toFixed(1)}`).join("");
        svg(root, "path", { d: path, class: `line ${this.tone()}`, "stroke-dasharray": line.dash || "none" });
        const [r, v] = line.points.at(-1);
        svg(root, "circle", { cx: x(r), cy: y(v), r: 3.5, class: `dot ${this.tone()}` });
      }
      this.box.replaceChildren(root);
    }
  }

  const lastWith = (name) => rows.findLast((row) => row[name] !== undefined && row[name] !== null);
  const kind = () => lastWith("privacy")?.privacy || "guarantee";
  // Drawn where all clients have the same: the largest epsilon is not of the smallest budget.
  const budgetOfAll = () => {
    const known = new Set(about.clients.map((c) => c.budget));
    return known.size === 1 ? [...known][0] : null;
  };
  const four = (value) => digits(value, 4);
  const charts = [
    new Chart("Quality on the test records", () => "main", [
      { name: "accuracy", value: (r) => r.accuracy },
      { name: "mean absolute error", value: (r) => r.mae },
    ], four),
    new Chart("Loss on the test records", () => "second", [{ name: "loss", value: (r) => r.loss }], four),
    new Chart("Privacy spent", () => kind(), [
      { name: "largest ε", value: (r) => r.epsilon?.max },
      { name: "median ε", value: (r) => r.epsilon?.median, dash: "7 4" },
    ], epsilonOf, budgetOfAll),
    new Chart("Seconds of each round", () => "unverified", [{ name: "seconds", value: (r) => r.seconds }], four),
  ];

  const clients = () => {
    const place = byId("clients");
    const list = html(document.createDocumentFragment(), "div", "spent");
    for (const client of about.clients) {
      html(list, "span", "name", client.name);
      const share = client.epsilon === "inf" ? 1
        : client.budget ? Math.min(1, (client.epsilon || 0) / client.budget) : 0;
      const amount = html(list, "span", "amount");
      const bar = svg(list, "svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none", role: "img",
        "aria-label": `${Math.round(100 * share)} % of the budget spent` });
      svg(bar, "rect", { width: 100, height: 10, class: "room" });
      svg(bar, "rect", { width: 100 * share, height: 10, class: share > 0.999 ? "full" : "used" });
      const budget = client.budget === null ? "no budget" : `of ${epsilonOf(client.budget)}`;
      amount.textContent = `ε ${epsilonOf(client.epsilon)} ${budget}`;
    }
    const note = kind() === "none" ? "Nothing is claimed of this run, so no budget is spent."
      : kind() === "nominal" ? "Nominal numbers: not a privacy guarantee." : "By the ledger of this run.";
    byId("budget-note").textContent = lastWith("privacy") ? note : "Known once a round has been evaluated.";
    place.replaceChildren(list);
  };

  const show = () => {
    const done = rows.length ? rows.at(-1).round : 0;
    byId("title").textContent = about.title || "A run";
    document.title = about.title ? `${about.state}: ${about.title}` : "udpfl: a run, live";
    byId("state").textContent = about.state;
    byId("state").className = `badge ${TONE[about.state] || "unverified"}`;
    const words = {
      finished: () => `${about.statement}. ${about.report ? `Report: ${about.report}` : ""}`,
      stopped: () => about.why,
      interrupted: () => `To go on: udpfl run --resume ${about.folder}`,
      failed: () => "The command says why.",
    }[about.state];
    byId("said").textContent = words ? words() : about.folder || "The first round has not ended yet.";
    byId("progress").max = about.rounds || 1;
    byId("progress").value = done;
    byId("round").textContent = about.rounds ? `${done} of ${about.rounds}` : "–";
    const judged = lastWith("loss");
    const name = judged && numberOf(judged.accuracy) !== null ? "accuracy" : judged && "mae" in judged ? "mae" : "loss";
    byId("quality-name").textContent = judged ? name : "accuracy";
    byId("quality").textContent = judged && numberOf(judged[name]) !== null ? four(judged[name]) : "–";
    byId("epsilon-name").textContent = kind() === "nominal" ? "nominal ε" : "ε, largest of any client";
    byId("epsilon").textContent = kind() === "none" ? "not private" : epsilonOf(lastWith("epsilon")?.epsilon.max);
    const mean = rows.reduce((sum, row) => sum + row.seconds, 0) / (rows.length || 1);
    byId("left").textContent = ENDED.includes(about.state) || !rows.length ? "–" : inWords(mean * (about.rounds - done));
    clients();
    for (const chart of charts) chart.draw();
    document.documentElement.dataset.rounds = done;
  };

  const ask = async () => {
    try {
      const answer = await fetch(`data?after=${rows.length}`, { cache: "no-store" });
      if (!answer.ok) throw new Error(answer.status);
      const news = await answer.json();
      rows.push(...news.rows);
      about = news;
      show();
    } catch {
      byId("state").textContent = "not connected";
      byId("state").className = "badge nominal";
      byId("said").textContent = "The process that trains does not answer. What is shown may be old.";
    }
    if (!ENDED.includes(about.state)) setTimeout(ask, 1000);
  };
  show();
  ask();
})();
