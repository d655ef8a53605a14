// SPDX-License-Identifier: Apache-2.0
// Values over steps: lines, stepped lines, or areas on top of each other; with numbered marks.

import {s} from "../dom.js";
import {significant} from "../format.js";

import {Frame} from "./frame.js";
import {range, scale} from "./scale.js";

const rowsMax = 100;
const markDistance = 16;

// description: what Frame takes, and
//   series: [{label, className, of: (point) => number or null, area, stepped}]; areas are stacked
//   in order log, tight: of the y axis; format: of values areasTimes: the axis ends at so many
//   times the highest area, and lines beyond run along its top edge
export class SeriesChart extends Frame {
  constructor(description) {
    super({
      ...description,
      legend: [
        ...description.series.map((entry) => ({...entry, shape: entry.area ? "area" : "line"})),
        ...(description.marks ? [{label: description.marks, shape: "mark"}] : [])
      ]
    });
    this.points = [];
    this.marks = [];
  }

  // points: SeriesPoint objects, oldest first. marks: [{step, number, text}].
  draw(points, marks) {
    this.points = points;
    this.marks = marks;
    if (this.cursor !== null && this.cursor >= points.length) this.cursor = null;
    this.redraw();
    this.showRows();
  }

  size() {
    return this.points.length;
  }

  layers() {
    const sums = this.points.map(() => 0);
    return this.description.series.map((entry) => {
      const values = this.points.map((point) => {
        const value = entry.of(point);
        return Number.isFinite(value) && !(this.description.log && value <= 0) ? value : null;
      });
      if (!entry.area) return {entry, values, base: null};
      const base = [...sums];
      for (const [index, value] of values.entries()) sums[index] += value || 0;
      return {entry, values: [...sums], base};
    });
  }

  redraw() {
    const {log, tight, format} = this.description;
    const {left, right, top, bottom} = this.area;
    if (this.points.length === 0) {
      this.svg.replaceChildren(
          s("text", {class: "tick", x: left, y: top + 20}, "Nothing measured yet"));
      return;
    }
    const steps = this.points.map((point) => Number(point.step));
    const layers = this.layers();
    const y = range(layers.flatMap((layer) => layer.values), {log, tight});
    if (this.description.areasTimes) {
      const areas =
          range(layers.filter((layer) => layer.base).flatMap((layer) => layer.values), {});
      y.high = Math.min(y.high, areas.high * this.description.areasTimes);
    }
    this.high = y.high;
    const last = steps.at(-1);
    const x = {low: steps[0], high: last > steps[0] ? last : steps[0] + 1};
    this.placeX = scale({...x, from: left, to: right});
    this.placeY = scale({...y, log, from: bottom, to: top});
    this.steps = steps;
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
    this.pointer = s("line", {class: "pointer", y1: top, y2: bottom, visibility: "hidden"});
    this.svg.replaceChildren(
        this.axes(
            {...x, place: this.placeX, format: (value) => String(Math.round(value)), label: "step"},
            {...y, log, place: this.placeY, format: (value) => format(value)}),
        ...layers.map((layer) => this.path(layer)), this.markLines(), this.pointer);
    this.drawCursor();
    this.say();
  }

  path({entry, values, base}) {
    const at = (index) => `${this.placeX(this.steps[index]).toFixed(1)}`;
    let d = "";
    let open = false;
    for (const [index, value] of values.entries()) {
      if (value === null) {
        open = false;
        continue;
      }
      const y = this.placeY(Math.min(value, this.high)).toFixed(1);
      if (!open)
        d += `M${at(index)} ${y}h0`;  // a point that stands alone is a dot
      else
        d += entry.stepped ? `H${at(index)}V${y}` : `L${at(index)} ${y}`;
      open = true;
    }
    if (base) {
      for (let index = base.length - 1; index >= 0; index -= 1)
        d += `L${at(index)} ${this.placeY(base[index]).toFixed(1)}`;
      d += "Z";
    }
    return s("path", {
      class: `${entry.area ? "area" : "line"} ${entry.className}`,
      d,
      "data-series": entry.label
    });
  }

  markLines() {
    const {top, bottom} = this.area;
    let labelled = -Infinity;
    const lines = [];
    for (const mark of this.marks) {
      if (mark.step < this.steps[0] || mark.step > this.steps.at(-1)) continue;
      const x = this.placeX(mark.step);
      const label = x - labelled > markDistance ?
          s("text", {class: "mark-label", x: x + 2, y: top + 8}, String(mark.number)) :
          null;
      if (label) labelled = x;
      lines.push(s("g", {}, s("title", {}, mark.text),
          s("line", {class: "mark", x1: x, x2: x, y1: top, y2: bottom}), label));
    }
    return s("g", {class: "marks"}, lines);
  }

  nearest(x) {
    if (this.points.length === 0) return null;
    let best = 0;
    for (const [index, step] of this.steps.entries()) {
      if (Math.abs(this.placeX(step) - x) < Math.abs(this.placeX(this.steps[best]) - x))
        best = index;
    }
    return best;
  }

  drawCursor() {
    if (!this.pointer) return;
    this.pointer.setAttribute("visibility", this.cursor === null ? "hidden" : "visible");
    if (this.cursor === null) return;
    const x = this.placeX(this.steps[this.cursor]);
    this.pointer.setAttribute("x1", x);
    this.pointer.setAttribute("x2", x);
  }

  describe(cursor) {
    if (this.points.length === 0) return "";
    const index = cursor ?? this.points.length - 1;
    const point = this.points[index];
    const values = this.description.series.map((entry) => {
      const value = entry.of(point);
      return `${entry.label} ${Number.isFinite(value) ? this.description.format(value) : "–"}`;
    });
    const mark = this.marks.findLast((candidate) => candidate.step <= Number(point.step));
    return `step ${point.step}: ${values.join(", ")}${
        cursor !== null && mark ? ` (since mark ${mark.number})` : ""}`;
  }

  tabular() {
    const stride = Math.max(1, Math.ceil(this.points.length / rowsMax));
    const rows =
        this.points.filter((_, index) => (this.points.length - 1 - index) % stride === 0).reverse();
    return {
      rows,
      columns: [
        {name: "step", number: true, of: (point) => String(point.step)},
        ...this.description.series.map((entry) => ({
          name: entry.label,
          number: true,
          of: (point) => {
            const value = entry.of(point);
            return Number.isFinite(value) ? this.description.format(value) : "–";
          }
        }))
      ]
    };
  }
}

export const plain = (value) => significant(value);
