// What a reader with a screen reader, a keyboard or weak eyes would stumble over, as sentences.
(() => {
  const found = [];
  const all = (selector) => [...document.querySelectorAll(selector)];
  const visible = (node) => node.checkVisibility({ visibilityProperty: true, contentVisibilityAuto: true });
  const hidden = (node) => node.closest("[aria-hidden=true]") !== null;
  const place = (node) => {
    const classes = node.getAttribute("class");
    const name = node.tagName.toLowerCase() + (node.id ? `#${node.id}` : classes ? `.${classes.trim().replace(/\s+/g, ".")}` : "");
    const text = (node.textContent || "").trim().replace(/\s+/g, " ").slice(0, 40);
    return text ? `${name} “${text}”` : name;
  };

  // The document: language, title, one heading of the first level, landmarks, ids.
  if (!document.documentElement.lang) found.push("html has no lang");
  if (!document.title.trim()) found.push("the page has no title");
  const first = all("h1").filter(visible).length;
  if (first !== 1) found.push(`the page has ${first} h1, not one`);
  const mains = all("main, [role=main]").filter(visible).length;
  if (mains !== 1) found.push(`the page has ${mains} main landmarks, not one`);
  const landmarks = "main, header, footer, nav, aside, [role=main], [role=banner], [role=contentinfo], [role=navigation]";
  for (const node of document.body.children) {
    if (visible(node) && node.innerText?.trim() && !node.matches(landmarks) && !node.querySelector("main")) {
      found.push(`${place(node)} is in no landmark`);
    }
  }
  const ids = new Map();
  for (const node of all("[id]")) ids.set(node.id, (ids.get(node.id) || 0) + 1);
  for (const [id, times] of ids) if (times > 1) found.push(`the id ${id} occurs ${times} times`);

  // Names of what can be used, and of pictures.
  const referred = (node) => (node.getAttribute("aria-labelledby") || "").split(/\s+/)
    .map((id) => document.getElementById(id)?.textContent || "").join(" ").trim();
  const named = (node) => Boolean(
    node.getAttribute("aria-label")?.trim() || referred(node) || node.getAttribute("title")?.trim(),
  );
  const CONTROLS = "button, a[href], input:not([type=hidden]), select, textarea, summary, [tabindex], "
    + "[role=button], [role=slider], [role=checkbox], [role=tab], [role=switch], [role=link]";
  for (const node of all(CONTROLS)) {
    if (!visible(node) || hidden(node)) continue;
    const field = node.matches("input, select, textarea");
    const label = field ? [...(node.labels || [])].some((own) => own.textContent.trim()) : false;
    // The value of a scrolling region is not its name, and neither is what a chart happens to draw.
    const spoken = !field && !node.matches("svg, div, section, figure") && node.textContent.trim();
    if (!named(node) && !label && !spoken) found.push(`${place(node)} can be used but has no name`);
    if (node.tabIndex > 0) found.push(`${place(node)} changes the order of the tab key`);
    const role = node.getAttribute("role");
    if (role === "slider" && !node.hasAttribute("aria-valuenow")) found.push(`${place(node)} is a slider without a value`);
  }
  for (const node of all("svg, img, canvas")) {
    if (!visible(node) || hidden(node)) continue;
    const alt = node.matches("img") && node.hasAttribute("alt");
    const titled = node.matches("svg") && node.querySelector(":scope > title")?.textContent.trim();
    if (!alt && !titled && !named(node)) found.push(`${place(node)} is a picture without a name`);
  }

  // Tables and lists.
  for (const table of all("table")) {
    if (!visible(table)) continue;
    if (!table.querySelector("th")) found.push(`${place(table)} has no header cell`);
    for (const cell of table.querySelectorAll("th")) {
      if (!cell.scope) found.push(`${place(cell)} is a header cell without scope`);
      if (!cell.textContent.trim() && !named(cell)) found.push(`a header cell of ${place(table)} is empty`);
    }
  }
  for (const list of all("dl")) {
    for (const group of [list, ...list.querySelectorAll(":scope > div")]) {
      const kinds = [...group.children].map((node) => node.tagName).filter((name) => name === "DT" || name === "DD");
      if (kinds.length && (kinds[0] !== "DT" || kinds.at(-1) !== "DD")) {
        found.push(`${place(group)} does not give each value of the list after its term`);
      }
    }
  }

  // Whatever scrolls must be reached with the keyboard.
  for (const node of all("body *")) {
    const style = getComputedStyle(node);
    const scrolls = (/auto|scroll/.test(style.overflowX) && node.scrollWidth > node.clientWidth + 1)
      || (/auto|scroll/.test(style.overflowY) && node.scrollHeight > node.clientHeight + 1);
    if (!scrolls || !visible(node)) continue;
    const inside = node.querySelector("button, a[href], input, select, textarea, summary, [tabindex='0']");
    if (!node.hasAttribute("tabindex") && !inside) found.push(`${place(node)} scrolls but cannot be reached with keys`);
  }

  // Contrast of text with what lies behind it, as rendered (WCAG 2.2, 1.4.3).
  const colour = (text) => {
    const parts = text.match(/[\d.]+/g)?.map(Number) || [0, 0, 0, 0];
    return { rgb: parts.slice(0, 3), alpha: parts.length > 3 ? parts[3] : 1 };
  };
  const over = (top, below) => top.rgb.map((value, i) => value * top.alpha + below[i] * (1 - top.alpha));
  const luminance = (rgb) => {
    const [r, g, b] = rgb.map((value) => {
      const share = value / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (node) => {
    const layers = [];
    for (let at = node; at; at = at.parentElement) {
      const style = getComputedStyle(at);
      if (style.backgroundImage !== "none" && /url|conic/.test(style.backgroundImage)) return null;
      layers.push(colour(style.backgroundColor));
    }
    return layers.reverse().reduce((below, layer) => over(layer, below), [255, 255, 255]);
  };
  const seen = new Set();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || seen.has(node) || node.closest("script, style, noscript, option")) continue;
    seen.add(node);
    if (!visible(node) || node.closest(":disabled, [aria-disabled=true]")) continue;
    const style = getComputedStyle(node);
    const ground = behind(node);
    if (!ground) continue;
    let opacity = 1;
    for (let at = node; at; at = at.parentElement) opacity *= Number(getComputedStyle(at).opacity);
    const ink = colour(node.namespaceURI.endsWith("svg") ? style.fill : style.color);
    const text = over({ rgb: ink.rgb, alpha: ink.alpha * opacity }, ground);
    const [light, dark] = [luminance(text), luminance(ground)].sort((a, b) => b - a);
    const ratio = (light + 0.05) / (dark + 0.05);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    const least = large ? 3 : 4.5;
    if (ratio < least) found.push(`${place(node)} has contrast ${ratio.toFixed(2)}, less than ${least}`);
  }
  return [...new Set(found)];
})()
