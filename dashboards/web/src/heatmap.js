// SPDX-License-Identifier: Apache-2.0
// Node by node: bandwidth or round trip, how old each estimate is, and where it came from. It is a
// table whose cells are coloured (viridis: even in lightness, so also grey and colour-blind it
// reads in order); arrow keys move between cells. Bright is good: much bandwidth, or a short round
// trip.

import {h, s, show} from "./dom.js";
import {age, bitsPerSecond, number, seconds, withDeviation} from "./format.js";

const nodesMax = 40;
const classes = 10;
const staleSeconds = 120;

const metrics = {
  bandwidth: {
    label: "Bandwidth",
    field: "bandwidth_bytes_per_s",
    format: bitsPerSecond,
    brightIsHigh: true
  },
  rtt: {label: "Round trip", field: "rtt_s", format: seconds, brightIsHigh: false},
};

export class Heatmap {
  constructor() {
    this.metric = "bandwidth";
    this.links = new Map();
    this.nodes = [];
    this.place = [0, 0];
    this.grid = h("div", {class: "scroll"});
    this.legend = h("div", {});
    this.detail = h("output", {class: "readout", "aria-live": "polite"});
    this.filter = h("input", {type: "search", id: "heatmap-filter", placeholder: "part of a name"});
    this.choice = h("fieldset", {}, h("legend", {class: "hidden"}, "What the colours show"),
        Object.entries(metrics).map(
            ([name, metric]) => h("label", {},
                h("input",
                    {type: "radio", name: "metric", value: name, checked: name === this.metric}),
                ` ${metric.label} `)));
    this.element =
        h("section", {class: "card", id: "heatmap"}, h("h3", {}, "Network, node by node"),
            h("div", {class: "controls"}, this.choice, h("label", {}, "Nodes ", this.filter)),
            this.grid, this.detail, this.legend);
    this.listen();
  }

  listen() {
    this.choice.addEventListener("change", (event) => {
      this.metric = event.target.value;
      this.redraw();
    });
    this.filter.addEventListener("input", () => this.redraw());
    this.grid.addEventListener("focusin", (event) => this.tell(event.target.closest("td")));
    this.grid.addEventListener("pointerover", (event) => this.tell(event.target.closest("td")));
    this.grid.addEventListener("keydown", (event) => this.key(event));
  }

  // links: Link objects; names: of the nodes, for rows and columns that no link names yet.
  draw(links, names) {
    this.links = new Map(links.map((link) => [`${link.source}\n${link.target}`, link]));
    this.nodes =
        [...new Set([...names, ...links.flatMap((link) => [link.source, link.target])])].sort();
    this.redraw();
  }

  redraw() {
    const metric = metrics[this.metric];
    const wanted = this.filter.value.trim();
    const matching = this.nodes.filter((name) => name.includes(wanted));
    const names = matching.slice(0, nodesMax);
    const values = [...this.links.values()]
                       .map((link) => number((link[metric.field] || {}).value))
                       .filter((value) => value > 0);
    const range = {low: Math.min(...values), high: Math.max(...values)};
    const focused = this.grid.contains(document.activeElement);
    this.place = this.place.map((index) => Math.min(index, Math.max(0, names.length - 1)));
    show(this.grid,
        h("table",
            {role: "grid", class: "heatmap", "aria-label": `${metric.label} from row to column`},
            h("thead", {},
                h("tr", {role: "row"}, h("th", {scope: "col"}, "from \\ to"),
                    names.map((name) => h("th", {scope: "col"}, name)))),
            h("tbody", {},
                names.map((source, row) => h("tr", {role: "row"}, h("th", {scope: "row"}, source),
                              names.map((target, column) => this.cell(
                                            source, target, [row, column], metric, range)))))));
    if (focused) this.focus();
    show(this.legend, this.scaleLegend(metric, range, values.length),
        matching.length > names.length ?
            h("p", {class: "muted"},
                `The first ${nodesMax} of ${matching.length} nodes: name a part to see others.`) :
            null);
  }

  cell(source, target, place, metric, range) {
    const link = this.links.get(`${source}\n${target}`);
    const estimate = link && link[metric.field];
    const value = number((estimate || {}).value);
    const current = place[0] === this.place[0] && place[1] === this.place[1];
    const attributes = {
      role: "gridcell",
      tabindex: current ? "0" : "-1",
      "data-row": place[0],
      "data-column": place[1]
    };
    if (source === target)
      return h("td", {...attributes, class: "self", "aria-label": `${source}, itself`}, "·");
    if (value <= 0)
      return h("td",
          {...attributes, class: "unknown", "aria-label": `${source} to ${target}: not measured`},
          "-");
    const old = number(estimate.age_s) > staleSeconds;
    return h("td", {
      ...attributes,
      class: `${this.shade(value, metric, range)}${old ? " stale" : ""}`,
      "aria-label": this.describe(source, target, estimate, metric)
    },
        h("span", {}, metric.format(value)), h("small", {}, age(number(estimate.age_s))));
  }

  shade(value, metric, {low, high}) {
    const share = high > low ? Math.log(value / low) / Math.log(high / low) : 1;
    const bright = metric.brightIsHigh || high <= low ? share : 1 - share;
    return `v${Math.min(classes - 1, Math.floor(bright * classes))}`;
  }

  describe(source, target, estimate, metric) {
    const value = number(estimate.value);
    const text = withDeviation(metric.format(value), value, number(estimate.deviation));
    const old = number(estimate.age_s) > staleSeconds ? ", stale" : "";
    return `${source} to ${target}: ${text}, ${estimate.method || "unknown method"}, ` +
        `${number(estimate.samples)} samples, ${age(number(estimate.age_s))}${old}`;
  }

  scaleLegend(metric, {low, high}, count) {
    if (count === 0) return h("p", {class: "muted"}, "No link has been measured yet.");
    const [dark, bright] = metric.brightIsHigh ? [low, high] : [high, low];
    return h("p", {class: "muted"}, metric.format(dark), " ",
        s("svg", {width: 200, height: 12, role: "img", "aria-label": "colours from dark to bright"},
            Array.from({length: classes},
                (_, index) =>
                    s("rect", {class: `v${index}`, x: index * 20, width: 20, height: 12}))),
        ` ${metric.format(bright)}; dotted: older than ${seconds(staleSeconds)}; -: not measured`);
  }

  tell(cell) {
    if (cell) this.detail.textContent = cell.getAttribute("aria-label");
  }

  focus() {
    const [row, column] = this.place;
    const cell = this.grid.querySelector(`td[data-row="${row}"][data-column="${column}"]`);
    if (cell && cell !== document.activeElement) cell.focus();
  }

  key(event) {
    const moves = {
      ArrowLeft: [0, -1],
      ArrowRight: [0, 1],
      ArrowUp: [-1, 0],
      ArrowDown: [1, 0],
      Home: [0, -nodesMax],
      End: [0, nodesMax]
    };
    const move = moves[event.key];
    if (!move) return;
    event.preventDefault();
    const last = this.grid.querySelectorAll("tbody tr").length - 1;
    this.place = this.place.map((index, axis) => Math.max(0, Math.min(last, index + move[axis])));
    for (const cell of this.grid.querySelectorAll("td")) {
      const here = cell.dataset.row === String(this.place[0]) &&
          cell.dataset.column === String(this.place[1]);
      cell.setAttribute("tabindex", here ? "0" : "-1");
    }
    this.focus();
  }
}
