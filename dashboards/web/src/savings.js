// SPDX-License-Identifier: Apache-2.0
// Whether Weir helps a job: one signed figure against dense, and its sign in words. Pure.

import {number, percent, seconds} from "./format.js";

const tones = {
  BENEFIT_VERDICT_SAVES: "good",
  BENEFIT_VERDICT_COSTS: "bad"
};

// {share, saved_s, compared_s, text, tone}: share of dense's time that was saved, negative where it
// was lost, NaN while nothing was compared. tone: "good", "bad" or "even", for colour beside the words.
// The controller's own figure has an interval; one of a former release is made of its sums.
export function savings(job) {
  const {benefit} = job;
  if (benefit && benefit.text) {
    const compared = number(benefit.compared_s);
    return {
      share: compared > 0 ? number(benefit.saved_share) : NaN,
      saved_s: number(benefit.saved_s),
      compared_s: compared,
      text: benefit.text,
      tone: tones[benefit.verdict] || "even"
    };
  }
  return savingsOf(number(job.saved_s), number(job.compared_s));
}

// All jobs together.
export function savingsOfAll(jobs) {
  const all = jobs.map(savings);
  const sum = (name) => all.reduce((total, each) => total + each[name], 0);
  return savingsOf(sum("saved_s"), sum("compared_s"));
}

function savingsOf(saved, compared) {
  if (compared <= 0) {
    return {share: NaN, saved_s: 0, compared_s: 0, text: "not compared with dense yet", tone: "even"};
  }
  const share = saved / (compared + saved);
  const size = Math.abs(share);
  const even = size < 0.005;
  const text = even ? "as fast as dense" :
      share > 0     ? `saves ${percent(size)} of the time (${seconds(saved)})` :
                      `costs ${percent(size)} of the time (${seconds(-saved)})`;
  return {
    share,
    saved_s: saved,
    compared_s: compared,
    text,
    tone: even ? "even" : share > 0 ? "good" : "bad"
  };
}

// The share of dense's step time that a predicted one saves: "saves 34 %".
export function againstDense(step, dense) {
  if (!(step > 0 && dense > 0)) return "-";
  const share = 1 - step / dense;
  if (Math.abs(share) < 0.005) return "as dense";
  return `${share > 0 ? "saves" : "costs"} ${percent(Math.abs(share))}`;
}

// Jobs by what they lose, the worst first; those that were not compared come last, by name.
export function worstFirst(jobs) {
  return [...jobs].sort((a, b) => {
    const [x, y] = [savings(a).share, savings(b).share];
    if (Number.isNaN(x) || Number.isNaN(y)) {
      return Number.isNaN(x) - Number.isNaN(y) || (a.name < b.name ? -1 : 1);
    }
    return x - y;
  });
}
