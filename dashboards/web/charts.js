// The time series of one job, drawn by uPlot. Each chart is described as data; steps are the x axis.

import { number } from "./format.js";

const palette = ["#0b6e8a", "#d1822b", "#7a4fb5", "#1c7c42", "#b3261e"];

function get(name) {
  return (point) => {
    const value = number(point[name]);
    return Number.isFinite(value) ? value : null;
  };
}

const positive = (name, factor = 1) => (point) => {
  const value = number(point[name]) * factor;
  return value > 0 ? value : null;
};

const definitions = [
  { id: "chart-ratio", log: true, series: [{ label: "kept ratio", of: positive("ratio"), stepped: true }] },
  { id: "chart-step", series: [
    { label: "step (s)", of: get("step_s") },
    { label: "compute (s)", of: get("compute_s") },
    { label: "codec (s)", of: get("codec_s") },
    { label: "exposed (s)", of: get("exposed_s") }] },
  { id: "chart-network", log: true, series: [
    { label: "bandwidth (Mb/s)", of: positive("bandwidth_bytes_per_s", 8e-6) },
    { label: "latency (ms)", of: positive("latency_s", 1e3) }] },
  { id: "chart-prediction", log: true, series: [
    { label: "predicted (s)", of: positive("predicted_network_s") },
    { label: "measured (s)", of: positive("measured_network_s") }] },
  { id: "chart-loss", series: [
    { label: "loss", of: positive("loss") },
    { label: "gain", of: positive("gain"), scale: "gain" }] },
];

// Vertical lines at the steps where a decision switched the plan, numbered as in the list of reasons.
function decisionMarks(steps) {
  return {
    hooks: {
      draw: (plot) => {
        const { ctx } = plot;
        ctx.save();
        ctx.strokeStyle = "#d1822b";
        ctx.fillStyle = "#d1822b";
        ctx.font = `${Math.round(11 * devicePixelRatio)}px system-ui, sans-serif`;
        ctx.setLineDash([4, 4]);
        let labelled = -Infinity;
        for (const [index, step] of steps().entries()) {
          const x = plot.valToPos(step, "x", true);
          if (x < plot.bbox.left || x > plot.bbox.left + plot.bbox.width) continue;
          if (x - labelled > 14 * devicePixelRatio) {
            ctx.fillText(String(index + 1), x + 2, plot.bbox.top + 10 * devicePixelRatio);
            labelled = x;
          }
          ctx.beginPath();
          ctx.moveTo(x, plot.bbox.top);
          ctx.lineTo(x, plot.bbox.top + plot.bbox.height);
          ctx.stroke();
        }
        ctx.restore();
      },
    },
  };
}

function build(definition, element, data, marks) {
  const ink = getComputedStyle(document.body).color;
  const axis = { stroke: ink, grid: { stroke: "rgba(128,128,128,.2)" } };
  const scales = { x: { time: false }, y: definition.log ? { distr: 3 } : {} };
  const axes = [{ ...axis, label: "step" }, { ...axis, size: 60 }];
  if (definition.series.some((series) => series.scale === "gain")) {
    scales.gain = { range: [0, 1] };
    axes.push({ ...axis, scale: "gain", side: 1, grid: { show: false } });
  }
  const options = {
    width: Math.max(300, element.clientWidth), height: 220, scales, axes,
    series: [{ label: "step" }, ...definition.series.map((series, index) => ({
      label: series.label, stroke: palette[index], width: 1.5, spanGaps: true,
      scale: series.scale || "y",
      paths: series.stepped ? uPlot.paths.stepped({ align: 1 }) : undefined,
      points: { show: (plot) => plot.data[0].length < 30 },
    }))],
    plugins: [decisionMarks(marks)],
  };
  return new uPlot(options, data, element);
}

export class Charts {
  constructor() {
    this.plots = new Map();
    this.marks = [];
    window.addEventListener("resize", () => {
      for (const [id, plot] of this.plots) {
        plot.setSize({ width: document.getElementById(id).clientWidth, height: 220 });
      }
    });
  }

  clear() {
    for (const plot of this.plots.values()) plot.destroy();
    this.plots.clear();
  }

  // points: SeriesPoint objects, oldest first. marks: steps of plan switches.
  draw(points, marks) {
    this.marks = marks;
    if (points.length === 0) return;
    const steps = points.map((point) => number(point.step));
    for (const definition of definitions) {
      const data = [steps, ...definition.series.map((series) => points.map(series.of))];
      let plot = this.plots.get(definition.id);
      if (plot) {
        plot.setData(data);
      } else {
        plot = build(definition, document.getElementById(definition.id), data, () => this.marks);
        this.plots.set(definition.id, plot);
      }
      // The newest values, where no pointer asks for others.
      if (plot.cursor.idx === null || plot.cursor.left < 0) plot.setLegend({ idx: steps.length - 1 });
    }
  }
}
