// SPDX-License-Identifier: Apache-2.0
// The charts of a job. Each is described as data: a new one is an entry here and a place in job.js.

import {SeriesChart} from "../charts/series.js";
import {bitsPerSecond, number, seconds, significant} from "../format.js";

const positive = (name) => (point) => (number(point[name]) > 0 ? number(point[name]) : NaN);

// Parts of a step's wall-clock time that add up to it. Encoding, network and decoding overlap with
// each other and with the backward pass; of what stayed exposed each gets the share that it was
// busy.
export function parts(point) {
  const step = number(point.step_s);
  const compute = Math.min(step, number(point.compute_s) + number(point.backward_s));
  const exposed = Math.min(step - compute, number(point.exposed_s));
  const busy = {
    encode: number(point.encode_s),
    network: number(point.network_s),
    decode: number(point.decode_s)
  };
  const sum = busy.encode + busy.network + busy.decode;
  const share = (name) => (sum > 0 ? (exposed * busy[name]) / sum :
          name === "network"       ? exposed :
                                     0);
  return {
    compute,
    encode: share("encode"),
    network: share("network"),
    decode: share("decode"),
    wait: step - compute - exposed
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
          "Where dense would take far longer its line runs along the top edge.",
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
      title: "Communication: predicted and measured",
      log: true,
      marks,
      format: seconds,
      series: [
        {label: "predicted", className: "c2", of: positive("predicted_network_s")},
        {label: "measured", className: "c1", of: positive("measured_network_s")}
      ]
    }),
    bandwidth: new SeriesChart({
      title: "Bandwidth of the bottleneck link",
      log: true,
      marks,
      format: bitsPerSecond,
      series: [{label: "bandwidth", className: "c1", of: positive("bandwidth_bytes_per_s")}]
    }),
    latency: new SeriesChart({
      title: "One-way latency of the worst link",
      log: true,
      marks,
      format: seconds,
      series: [{label: "latency", className: "c3", of: positive("latency_s")}]
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
