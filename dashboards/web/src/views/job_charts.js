// SPDX-License-Identifier: Apache-2.0
// The charts of a job. Each is described as data: a new one is an entry here and a place in job.js.

import {SeriesChart} from "../charts/series.js";
import {bitsPerSecond, number, seconds, significant} from "../format.js";
import {parts} from "../step_parts.js";

const positive = (name) => (point) => (number(point[name]) > 0 ? number(point[name]) : NaN);

// One standard deviation below and above what is believed; the chart is logarithmic, so never 0.
const below = (name, deviation) => (point) =>
    Math.max(number(point[name]) - number(point[deviation]), number(point[name]) / 10);
const above = (name, deviation) => (point) => number(point[name]) + number(point[deviation]);

function believed(label, className, name, deviation) {
  return {
    label,
    className,
    of: positive(name),
    low: below(name, deviation),
    high: above(name, deviation)
  };
}

const part = (name) => (point) => parts(point)[name];

export function jobCharts() {
  const marks = "plan changed";
  return {
    ratio: new SeriesChart({
      title: "Kept ratio, with the reason of each change",
      log: true,
      marks,
      format: significant,
      series: [{label: "kept ratio", className: "c1", of: positive("ratio"), stepped: true}]
    }),
    time: new SeriesChart({
      title: "Where a step's time goes",
      marks,
      format: seconds,
      areasTimes: 2,
      note:
          "Exposed communication is shared out as encode, network and decode were busy; the rest is optimiser and waiting. " +
          "Where dense would take far longer its line leaves the chart.",
      series: [
        {label: "compute", className: "c1", of: part("compute"), area: true},
        {label: "encode", className: "c2", of: part("encode"), area: true},
        {label: "network", className: "c3", of: part("network"), area: true},
        {label: "decode", className: "c4", of: part("decode"), area: true},
        {label: "wait", className: "c5", of: part("wait"), area: true},
        {label: "dense, predicted", className: "c6", of: positive("dense_step_s")}
      ]
    }),
    prediction: new SeriesChart({
      title: "Communication of a step: predicted and measured",
      log: true,
      marks,
      format: seconds,
      series: [
        {label: "predicted", className: "c2", of: positive("predicted_network_s")},
        {label: "measured", className: "c1", of: positive("measured_network_s")}
      ]
    }),
    bandwidth: new SeriesChart({
      title: "Bandwidth of the bottleneck link, as believed",
      note: "The band is one standard deviation; tables of links and the map of the fleet show what was measured.",
      log: true,
      marks,
      format: bitsPerSecond,
      series: [believed("bandwidth", "c1", "bandwidth_bytes_per_s", "bandwidth_deviation_bytes_per_s")]
    }),
    latency: new SeriesChart({
      title: "One-way latency of the worst link, as believed",
      log: true,
      marks,
      format: seconds,
      series: [believed("latency", "c3", "latency_s", "latency_deviation_s")]
    }),
    gain: new SeriesChart({
      title: "Gradient gain",
      marks,
      format: significant,
      series: [{label: "gain", className: "c3", of: positive("gain"), stepped: true}]
    }),
    loss: new SeriesChart({
      title: "Training loss",
      tight: true,
      marks,
      format: significant,
      series: [{label: "loss", className: "c1", of: positive("loss")}]
    }),
  };
}
