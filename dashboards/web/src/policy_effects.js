// SPDX-License-Identifier: Apache-2.0
// The effects of a change of policies on the jobs that run, as the controller foresees it (PolicyEffect).

import {h, table} from "./dom.js";
import {number, seconds} from "./format.js";

const planOf = (facts) => (facts ? facts.label || "a plan" : "no plan");

export function effectText(effect) {
  if (effect.nothing_to_choose) return `▲ leaves nothing to choose: ${effect.nothing_to_choose}`;
  if (effect.unforeseen) return `cannot be foreseen: ${effect.unforeseen}`;
  if (!effect.switches) return `goes on with ${planOf(effect.running)}`;
  const step = effect.chosen ? number(effect.chosen.step_s) : 0;
  return `switches from ${planOf(effect.running)} to ${planOf(effect.chosen)}` +
      (step > 0 ? `, predicted step ${seconds(step)}` : "");
}

// Whether the controller would refuse the change.
export const refused = (effects) => effects.some((effect) => effect.nothing_to_choose);

export function effectTable(effects) {
  if (effects.length === 0) return h("p", {class: "muted"}, "No running job is concerned.");
  return table("Effect on running jobs",
      [
        {name: "job", of: (effect) => effect.job},
        {
          name: "policy",
          of: (effect) => effect.policy_before === effect.policy_after ?
              effect.policy_after || "-" :
              `${effect.policy_before || "-"} → ${effect.policy_after || "-"}`
        },
        {name: "effect", of: effectText},
      ],
      effects, (effect) => ({class: effect.nothing_to_choose ? "trouble" : null}));
}
