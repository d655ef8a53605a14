// SPDX-License-Identifier: Apache-2.0
// The solver's comparison as a table: what each candidate was predicted to cost, which one runs,
// what dense would be. Used for decisions and for what-if questions.

import {h, s, table} from "./dom.js";
import {number, seconds, significant} from "./format.js";
import {againstDense} from "./savings.js";

const barWidth = 120;

function bar(candidate, longest) {
  const width = (value) => Math.max(1, (value / longest) * barWidth);
  const step = width(number(candidate.step_s));
  const network = Math.min(step, width(number(candidate.communication_s)));
  return s("svg", {width: barWidth, height: 12, "aria-hidden": "true", class: "bar"},
      s("rect", {class: "area c1", x: 0, y: 1, width: step, height: 10}),
      s("rect", {class: "area c2", x: step - network, y: 7, width: network, height: 4}));
}

const note = (candidate) => [candidate.chosen ? "★ chosen" : "", candidate.dense ? "■ dense" : "",
    candidate.excluded_by ? `✕ excluded: ${candidate.excluded_by}` : ""]
                                .filter(Boolean)
                                .join(", ");

export function candidateTable(caption, candidates, denseStep) {
  const longest = Math.max(1e-12,
      ...candidates.filter((each) => each.feasible || each.dense || each.chosen)
          .map((each) => number(each.step_s)));
  return h("div", {},
    table(caption, [
      { name: "candidate", of: (each) => each.label || "" },
      { name: "predicted step", number: true, of: (each) => seconds(number(each.step_s)) },
      { name: "±", number: true, of: (each) => seconds(number(each.step_deviation_s)) },
      { name: "as bars", of: (each) => bar({ ...each, step_s: Math.min(number(each.step_s), longest) }, longest) },
      { name: "against dense", number: true, of: (each) => againstDense(number(each.step_s), denseStep) },
      { name: "communication", number: true, of: (each) => seconds(number(each.communication_s)) },
      { name: "gain", number: true, of: (each) => significant(number(each.gain)) },
      { name: "objective", number: true, of: (each) => significant(number(each.objective)) },
      { name: "note", of: note },
    ], candidates, (each) => ({ class: each.chosen ? "chosen" : each.feasible ? null : "infeasible" })),
    h("p", { class: "muted" }, "Bars: predicted step; the thin part is communication, which may overlap with computing."));
}

export const denseOf = (candidates) => {
  const dense = candidates.find((candidate) => candidate.dense);
  return dense ? number(dense.step_s) : 0;
};
