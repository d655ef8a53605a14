// SPDX-License-Identifier: Apache-2.0
// Values over steps or time, drawn by uPlot: lines, stepped lines, bands, areas on top of each other,
// with numbered marks. Cursor and zoom are the same in all charts of a page.

import uPlot from "uplot";

import {h} from "../dom.js";
import {significant} from "../format.js";

import {Frame} from "./frame.js";
import {range, ticks} from "./scale.js";

const rowsMax = 100;
const markDistance = 16;
const together = "weir";

// Colours follow the style sheet, also when a person chooses other ones.
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const dashes = {
  c2: [7, 3],
  c6: [2, 3]
};

// description: what Frame takes, and
//   series: [{label, className, of: (point) => number, area, stepped, low, high}]; areas are stacked
//   in order, low and high of a point bound a band behind the line
//   log, tight: of the y axis; format: of values
//   areasTimes: the axis ends at so many times the highest area, and lines beyond leave the chart
export class SeriesChart extends Frame {
  constructor(description) {
    super({
      ...description,
      legend: [
        ...description.series.map((entry) => ({...entry, shape: entry.area ? "area" : "line"})),
        ...(description.marks ? [{label: description.marks, shape: "mark"}] : [])
      ]
    },
        h("div", {class: "plot", "data-series": description.series.map((each) => each.label).join(", ")}));
    this.points = [];
    this.marks = [];
    this.axis = {time: false};
    this.note = h("p", {class: "muted plot-note"}, "Loading…");
    this.surface.append(this.note);
    // Only charts in view are drawn: a job has more charts than a window has room for.
    this.seen = false;
    new IntersectionObserver((entries) => {
      this.seen = entries.at(-1).isIntersecting;
      if (this.seen && this.pending) this.redraw();
    }, {rootMargin: "200px"}).observe(this.surface);
  }

  // points: SeriesPoint objects, oldest first. marks: [{step, unix_s, number, text}]. axis: {time}.
  draw(points, marks, axis = {time: false}) {
    const sameAxis = axis.time === this.axis.time;
    this.points = points;
    this.marks = marks;
    this.axis = axis;
    if (this.cursor !== null && this.cursor >= points.length) this.cursor = null;
    this.note.textContent = points.length === 0 ? "Nothing measured yet" : "";
    this.note.hidden = points.length > 0;
    if (!sameAxis && this.plot) this.discard();
    this.redraw();
    this.showRows();
  }

  size() {
    return this.points.length;
  }

  place(point) {
    return Number((this.axis.time ? point.unix_s : point.step) || 0);
  }

  value(of, point) {
    const value = of(point);
    return Number.isFinite(value) && !(this.description.log && value <= 0) ? value : null;
  }

  // One column of places, then a column for everything that is drawn, in the order of drawing: the
  // top of a stack first, so that what lies lower covers it.
  columns() {
    const places = this.points.map((point) => this.place(point));
    const sums = this.points.map(() => 0);
    const stack = [];
    const lines = [];
    for (const entry of this.description.series) {
      const values = this.points.map((point) => this.value(entry.of, point));
      if (entry.area) {
        for (const [index, value] of values.entries()) sums[index] += value || 0;
        stack.unshift([...sums]);
        continue;
      }
      if (entry.low) {
        lines.push(this.points.map((point) => this.value(entry.high, point)),
            this.points.map((point) => this.value(entry.low, point)));
      }
      lines.push(values);
    }
    this.areaHigh = stack.length > 0 ? Math.max(...stack[0]) : 0;
    return [places, ...stack, ...lines];
  }

  options() {
    const areas = this.description.series.filter((entry) => entry.area).reverse();
    const series = [{}];
    const bands = [];
    for (const entry of areas) {
      series.push({
        stroke: () => colour("--card"),
        width: 0.7,
        fill: () => colour(`--${entry.className}`),
        points: {show: false}
      });
    }
    for (const entry of this.description.series.filter((each) => !each.area)) {
      const stroke = () => colour(`--${entry.className}`);
      const paths = entry.stepped ? uPlot.paths.stepped({align: 1}) : undefined;
      if (entry.low) {
        const edge = {stroke: "transparent", width: 0, points: {show: false}, paths};
        bands.push({series: [series.length, series.length + 1], fill: () => `${stroke()}40`});
        series.push({...edge}, {...edge});
      }
      series.push({
        stroke,
        width: 1.8,
        dash: dashes[entry.className],
        paths,
        points: {show: (plot) => plot.data[0].length < 3}
      });
    }
    return {
      width: this.width,
      height: this.height,
      series,
      bands,
      legend: {show: false},
      cursor: {sync: {key: together, setSeries: false}, drag: {x: true, y: false}, points: {show: false}},
      scales: {
        x: {time: this.axis.time, range: (plot, low, high) => (low === high ? [low, low + 1] : [low, high])},
        y: {distr: this.description.log ? 3 : 1, range: (plot, low, high) => this.bounds(low, high)}
      },
      axes: this.chartAxes(),
      hooks: {draw: [(plot) => this.drawMarks(plot)], setCursor: [(plot) => this.point(plot.cursor.idx)]}
    };
  }

  chartAxes() {
    const {log, format} = this.description;
    const common = {stroke: () => colour("--muted"), grid: {stroke: () => colour("--line"), width: 1},
      ticks: {show: false}, font: "11px system-ui, sans-serif"};
    const steps = {values: (plot, splits) =>
      splits.map((value) => (Number.isInteger(value) ? String(value) : ""))};
    return [
      {...common, size: 28, space: 70, ...(this.axis.time ? {} : steps)},
      {
        ...common,
        size: 66,
        splits: (plot, axis, low, high) => ticks({low, high, count: 4, log}),
        filter: (plot, splits) => splits,
        values: (plot, splits) => splits.map((value) => format(value))
      }
    ];
  }

  bounds(low, high) {
    const {log, tight, areasTimes} = this.description;
    const found = range([low, high].filter((value) => value !== null), {log, tight});
    if (areasTimes && this.areaHigh > 0) {
      found.high = Math.min(found.high, this.areaHigh * areasTimes);
    }
    return [found.low, found.high];
  }

  discard() {
    this.plot.destroy();
    this.plot = null;
  }

  redraw() {
    this.pending = !this.seen;
    if (this.pending) return;
    if (this.points.length === 0) {
      if (this.plot) this.discard();
      this.say();
      return;
    }
    const data = this.columns();
    if (!this.plot) {
      this.plot = new uPlot(this.options(), data, this.surface);
    } else {
      if (this.plot.width !== this.width) {
        this.plot.setSize({width: this.width, height: this.height});
      }
      // A range that a person has zoomed into stays; otherwise the newest comes into view.
      const {min, max} = this.plot.scales.x;
      const before = this.plot.data[0];
      const zoomed = min > before[0] || max < before.at(-1);
      this.plot.setData(data, !zoomed);
      if (zoomed) this.plot.redraw();
    }
    this.say();
  }

  drawMarks(plot) {
    const {left, top, width, height} = plot.bbox;
    const {ctx} = plot;
    const ratio = window.devicePixelRatio || 1;
    let labelled = -Infinity;
    ctx.save();
    ctx.strokeStyle = colour("--c6");
    ctx.fillStyle = colour("--bad");
    ctx.lineWidth = 1.4 * ratio;
    ctx.font = `600 ${11 * ratio}px system-ui, sans-serif`;
    ctx.setLineDash([4 * ratio, 3 * ratio]);
    for (const mark of this.marks) {
      const x = plot.valToPos(this.place(mark), "x", true);
      if (!(x >= left && x <= left + width)) continue;
      ctx.beginPath();
      ctx.moveTo(x, top);
      ctx.lineTo(x, top + height);
      ctx.stroke();
      if (x - labelled > markDistance * ratio) {
        ctx.fillText(String(mark.number), x + 2 * ratio, top + 10 * ratio);
        labelled = x;
      }
    }
    ctx.restore();
  }

  // Pointing at the canvas is uPlot's own; this is for the keyboard, and tells the other charts.
  drawCursor() {
    if (!this.plot || this.plot.cursor.idx === this.cursor) return;
    const left = this.cursor === null ? -10 : this.plot.valToPos(this.plot.data[0][this.cursor], "x");
    this.plot.setCursor({left, top: this.cursor === null ? -10 : 10}, true, true);
  }

  describe(cursor) {
    if (this.points.length === 0) return "";
    const point = this.points[cursor ?? this.points.length - 1];
    const values = this.description.series.map((entry) => {
      const value = this.value(entry.of, point);
      const low = entry.low ? this.value(entry.low, point) : null;
      const {format} = this.description;
      const interval = low === null ? "" : ` (${format(low)} to ${format(entry.high(point))})`;
      return `${entry.label} ${value === null ? "-" : format(value)}${interval}`;
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
            const value = this.value(entry.of, point);
            return value === null ? "-" : this.description.format(value);
          }
        }))
      ]
    };
  }
}


// Charts take the colours of a theme when they are drawn.
export const recolour = (charts) => {
  for (const chart of charts) if (chart.plot) chart.plot.redraw(false, true);
};
