// SPDX-License-Identifier: Apache-2.0
// Every candidate by predicted step time and gain, the front of those that none beats in both, what
// runs, what dense would be, and what the policy rules out.

import {h, s} from "../dom.js";
import {number, seconds, significant} from "../format.js";

import {Frame} from "./frame.js";
import {range, scale} from "./scale.js";

const shapes = {
  chosen: "M0 -8 2 -2.5 8 -2.5 3.2 1.2 5 7 0 3.4 -5 7 -3.2 1.2 -8 -2.5 -2 -2.5Z",
  dense: "M-5 -5H5V5H-5Z",
  allowed: "M-4.5 0A4.5 4.5 0 1 1 4.5 0A4.5 4.5 0 1 1 -4.5 0Z",
  excluded: "M-4 -4 4 4M4 -4 -4 4",
};
const words = {
  chosen: "chosen",
  dense: "dense",
  allowed: "allowed",
  excluded: "excluded"
};

const kind = (candidate) => (candidate.chosen ? "chosen" :
        candidate.dense                       ? "dense" :
        candidate.feasible                    ? "allowed" :
                                                "excluded");

export class ParetoChart extends Frame {
  constructor(description) {
    super({
      title: "Step time against gain: the Pareto front",
      height: 300,
      note:
          "Each sign is one candidate for the whole job. Better is left and up; what is shaded the policy forbids.",
      legend: [
        ...Object.entries(shapes).map(
            ([name, shape]) => ({label: words[name], className: name, shape})),
        {label: "front", className: "front"},
        {label: "ruled out by the policy", className: "forbidden", shape: "area"}
      ],
      ...description
    });
    this.candidates = [];
    this.bounds = h("p", {class: "muted bounds"});
    this.readout.after(this.bounds);
  }

  // candidates, front: Candidate objects. bounds: PolicyBounds or undefined.
  draw(candidates, front, bounds) {
    const known = new Set(candidates.map((candidate) => candidate.label));
    // The chosen one is drawn last, on top; the keyboard goes from fast to slow.
    this.candidates =
        [...candidates, ...front.filter((candidate) => !known.has(candidate.label))].sort(
            (a, b) => number(a.step_s) - number(b.step_s));
    this.front = [...front].sort((a, b) => number(a.step_s) - number(b.step_s));
    this.limits = bounds;
    if (this.cursor !== null && this.cursor >= this.candidates.length) this.cursor = null;
    this.redraw();
    this.showRows();
  }

  size() {
    return this.candidates.length;
  }

  redraw() {
    const {left, right, top, bottom} = this.area;
    if (this.candidates.length === 0) {
      this.surface.replaceChildren(
          s("text", {class: "tick", x: left, y: top + 20}, "Nothing decided yet"));
      return;
    }
    const times = this.candidates.map((candidate) => number(candidate.step_s));
    const log = Math.max(...times) > 8 * Math.min(...times);
    const x = {...range(times, {log, tight: true}), log};
    const y = {low: 0, high: 1.05};
    this.placeX = scale({...x, from: left, to: right});
    this.placeY = scale({...y, from: bottom, to: top});
    this.surface.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
    this.ring = s("circle", {class: "pointer ring", r: 11, visibility: "hidden"});
    const order = [...this.candidates].sort((a, b) => Boolean(a.chosen) - Boolean(b.chosen));
    this.surface.replaceChildren(this.forbidden(),
        this.axes({...x, place: this.placeX, format: seconds, label: "predicted step time"},
            {...y, place: this.placeY, format: (value) => significant(value)}),
        s("path", {class: "line front", d: this.frontPath()}),
        ...order.map((candidate) => s("path", {
          class: `point ${kind(candidate)}`,
          d: shapes[kind(candidate)],
          transform: `translate(${this.placeX(number(candidate.step_s)).toFixed(1)} ${
              this.placeY(number(candidate.gain)).toFixed(1)})`
        },
                         s("title", {}, this.text(candidate)))),
        this.ring);
    this.bounds.textContent = this.boundsText();
    this.drawCursor();
    this.say();
  }

  // Faster candidates have a lower gain: the front steps down to the left.
  frontPath() {
    return this.front
        .map((candidate, index) => {
          const x = this.placeX(number(candidate.step_s)).toFixed(1);
          const y = this.placeY(number(candidate.gain)).toFixed(1);
          return index === 0 ? `M${x} ${y}` : `H${x}V${y}`;
        })
        .join("");
  }

  forbidden() {
    const {left, right, bottom} = this.area;
    const gain = this.limits ? number(this.limits.gain_min) : 0;
    if (gain <= 0) return s("g", {});
    const y = this.placeY(Math.min(1, gain));
    return s("g", {class: "bound"},
        s("rect", {class: "area forbidden", x: left, y, width: right - left, height: bottom - y}),
        s("line", {class: "mark", x1: left, x2: right, y1: y, y2: y}),
        s("text", {class: "mark-label", x: right - 4, y: y - 4, "text-anchor": "end"},
            `gain at least ${significant(gain)}`));
  }

  boundsText() {
    if (!this.limits) return "";
    const limits = this.limits;
    const parts = [
      `gain at least ${significant(number(limits.gain_min))}`,
      `kept ratio ${significant(number(limits.ratio_min))} to ${
          significant(number(limits.ratio_max))}`
    ];
    if (number(limits.residual_ratio_max))
      parts.push(
          `residual at most ${significant(number(limits.residual_ratio_max))} times the gradient`);
    if (number(limits.delay_target_s))
      parts.push(`at most ${seconds(number(limits.delay_target_s))} exposed`);
    if ((limits.codecs || []).length) parts.push(`codecs ${limits.codecs.join(", ")}`);
    if ((limits.collectives || []).length)
      parts.push(`collectives ${limits.collectives.join(", ")}`);
    return `Bounds of the policy: ${parts.join("; ")}.`;
  }

  nearest(x, y) {
    let best = null;
    let distance = 30;
    for (const [index, candidate] of this.candidates.entries()) {
      const away = Math.hypot(
          this.placeX(number(candidate.step_s)) - x, this.placeY(number(candidate.gain)) - y);
      if (away < distance) [best, distance] = [index, away];
    }
    return best;
  }

  drawCursor() {
    if (!this.ring) return;
    this.ring.setAttribute("visibility", this.cursor === null ? "hidden" : "visible");
    if (this.cursor === null) return;
    const candidate = this.candidates[this.cursor];
    this.ring.setAttribute("cx", this.placeX(number(candidate.step_s)));
    this.ring.setAttribute("cy", this.placeY(number(candidate.gain)));
  }

  text(candidate) {
    const why = candidate.excluded_by ? `: ${candidate.excluded_by}` : "";
    return `${candidate.label}: ${seconds(number(candidate.step_s))} a step, gain ${
        significant(number(candidate.gain))}, ${words[kind(candidate)]}${why}`;
  }

  describe(cursor) {
    const candidate =
        cursor === null ? this.candidates.find((each) => each.chosen) : this.candidates[cursor];
    return candidate ? this.text(candidate) : "";
  }

  tabular() {
    return {
      rows: this.candidates,
      columns: [
        {name: "candidate", of: (candidate) => candidate.label || ""},
        {name: "step", number: true, of: (candidate) => seconds(number(candidate.step_s))},
        {name: "gain", number: true, of: (candidate) => significant(number(candidate.gain))},
        {name: "kind", of: (candidate) => words[kind(candidate)]}
      ]
    };
  }
}
