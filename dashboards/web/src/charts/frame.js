// SPDX-License-Identifier: Apache-2.0
// The parts of every chart: a figure with title and legend, a surface that a keyboard can reach, a line
// that says what the cursor points at, and the same figures as a table. Colours come from the style
// sheet by class.

import {h, s, show, table} from "../dom.js";

import {ticks} from "./scale.js";

export const margin = {
  left: 58,
  right: 12,
  top: 14,
  bottom: 34
};
let count = 0;

export class Frame {
  // description: {title, note, legend: [{label, className, shape}], height, axisLabel}
  // surface: where it is drawn; without one an SVG.
  constructor(description, surface) {
    this.description = description;
    this.height = description.height || 230;
    this.width = 480;
    this.cursor = null;  // index of what is pointed at; null: nothing
    count += 1;
    const id = `chart-${count}`;
    this.surface = surface || s("svg", {height: this.height, width: "100%"});
    const attributes = {tabindex: "0", role: "img", "aria-label": description.title, "aria-describedby": id};
    for (const [name, value] of Object.entries(attributes)) this.surface.setAttribute(name, value);
    this.readout = h("output", {id, class: "readout"});
    this.rows = h("div", {});
    this.details = h("details", {}, h("summary", {}, "As a table"), this.rows);
    this.element = h("figure", {class: "card chart"},
        h("figcaption", {}, h("h3", {}, description.title),
            description.note ? h("p", {class: "muted"}, description.note) : null),
        h("ul", {class: "legend"},
            (description.legend || []).map((entry) => h("li", {}, swatch(entry), entry.label))),
        this.surface, this.readout, this.details);
    this.listen();
  }

  listen() {
    new ResizeObserver(() => {
      const width = Math.round(this.surface.getBoundingClientRect().width);
      if (width > 0 && width !== this.width) {
        this.width = width;
        this.redraw();
      }
    }).observe(this.surface);
    if (this.nearest) {  // otherwise whatever draws it follows the pointer
      this.surface.addEventListener("pointermove", (event) => {
        const box = this.surface.getBoundingClientRect();
        this.point(this.nearest(event.clientX - box.left, event.clientY - box.top));
      });
      this.surface.addEventListener("pointerleave", () => this.point(null));
    }
    this.surface.addEventListener("blur", () => this.point(null));
    this.surface.addEventListener("keydown", (event) => this.key(event));
    this.details.addEventListener("toggle", () => this.showRows());
  }

  key(event) {
    const last = this.size() - 1;
    const from = this.cursor ?? last + (event.key === "ArrowLeft" ? 1 : 0);
    const page = Math.max(1, Math.round(last / 10));
    const to = {
      ArrowLeft: from - 1,
      ArrowRight: from + 1,
      PageUp: from - page,
      PageDown: from + page,
      Home: 0,
      End: last,
      Escape: null
    }[event.key];
    if (to === undefined || last < 0) return;
    event.preventDefault();
    this.point(to === null ? null : Math.max(0, Math.min(last, to)));
  }

  point(index) {
    if (index === this.cursor) return;
    this.cursor = index;
    this.drawCursor();
    this.say();
  }

  // Spoken where a person moves the cursor, not at every new value.
  say() {
    this.readout.setAttribute("aria-live", this.cursor === null ? "off" : "polite");
    this.readout.textContent = this.describe(this.cursor);
  }

  showRows() {
    if (!this.details.open) return;
    const {columns, rows} = this.tabular();
    show(this.rows, table(this.description.title, columns, rows));
  }

  get area() {
    return {
      left: margin.left,
      right: this.width - margin.right,
      top: margin.top,
      bottom: this.height - margin.bottom
    };
  }

  // Grid, numbers and names of both axes. x, y: {low, high, log, place, format, label, count}
  axes(x, y) {
    const {left, right, top, bottom} = this.area;
    const parts = [];
    for (const value of ticks({count: 4, ...y})) {
      const at = y.place(value);
      parts.push(s("line", {class: "grid", x1: left, x2: right, y1: at, y2: at}),
          s("text", {class: "tick", x: left - 6, y: at + 4, "text-anchor": "end"},
              y.format(value)));
    }
    for (const value of ticks({count: Math.max(2, Math.floor(this.width / 90)), ...x})) {
      const at = x.place(value);
      parts.push(s("line", {class: "grid", x1: at, x2: at, y1: top, y2: bottom}),
          s("text", {class: "tick", x: at, y: bottom + 14, "text-anchor": "middle"},
              x.format(value)));
    }
    parts.push(
        s("text", {class: "tick", x: right, y: this.height - 4, "text-anchor": "end"}, x.label));
    return s("g", {"aria-hidden": "true"}, parts);
  }
}

// The sign of a series in a legend, drawn as it is in the chart.
function swatch({className, shape}) {
  const sign = shape === "area" ?
      s("rect", {class: `area ${className}`, x: 1, y: 2, width: 20, height: 9}) :
      shape === "mark" ?
      s("line", {class: "mark", x1: 11, x2: 11, y1: 0, y2: 13}) :
      shape === "line" || !shape ?
      s("line", {class: `line ${className}`, x1: 0, x2: 22, y1: 6.5, y2: 6.5}) :
      s("path", {class: `point ${className}`, d: shape, transform: "translate(11 6.5)"});
  return s("svg", {width: 22, height: 13, "aria-hidden": "true"}, sign);
}
