"use strict";
// What every page that draws needs: elements, numbers for people, and places for ticks.
(() => {
  const fill = (parent, node, text) => {
    if (text !== undefined) node.textContent = text;
    parent.append(node);
    return node;
  };
  const svg = (parent, name, attributes, text) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes || {})) node.setAttribute(key, value);
    return fill(parent, node, text);
  };
  const html = (parent, name, className, text) => {
    const node = document.createElement(name);
    if (className) node.className = className;
    return fill(parent, node, text);
  };

  const digits = (value, count) => String(Number(value.toPrecision(count)));
  // An epsilon is rounded up, so that what is shown holds as well.
  const roundedUp = (value) => {
    const unit = 10 ** (Math.floor(Math.log10(value)) - 3);
    return digits(Math.ceil(value / unit - 1e-6) * unit, 4);
  };

  const stepOf = (low, high, wanted, whole) => {
    const rough = (high - low) / wanted || 1;
    const power = 10 ** Math.floor(Math.log10(rough));
    const steps = [1, 2, 2.5, 5, 10].map((m) => m * power);
    return steps.find((s) => s >= rough * 0.999 && (!whole || Number.isInteger(s)));
  };
  const ticks = (low, high, wanted, whole) => {
    const step = stepOf(low, high, wanted, whole) || 1;
    const found = [];
    for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-9; n++) {
      found.push(n * step);
    }
    return found;
  };

  window.udpfl = { svg, html, digits, roundedUp, stepOf, ticks };
})();
