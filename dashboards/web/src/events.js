// SPDX-License-Identifier: Apache-2.0
// Events as people read them: when, about what, what happened, and whether it is trouble.

import {table} from "./dom.js";
import {clock, number} from "./format.js";

const trouble = new Set(
    ["peer_failed", "non_finite", "agent_lost", "lease_expired", "offload_failed", "residual_reset",
      "plan_nack", "refused"]);
const lost = /\b(lost|rejected|refuse[sd]?|failed)\b/;

// Whether somebody may have to do something about it.
export function isTrouble(event) {
  if (event.kind === "rank") return trouble.has((event.rank_event || {}).kind);
  if (event.kind === "decision") return decisionFailed(event.decision || {});
  return lost.test(event.text || "");
}

export const decisionFailed = (decision) => ["nacked", "withdrawn"].includes(decision.outcome) ||
    decision.trigger === "rollback";

const sign = (event) => (isTrouble(event) ? "▲ trouble" : "· note");

export function eventTable(caption, events) {
  return table(caption,
      [
        {name: "when", class: "short", of: (event) => clock(number(event.unix_s))},
        {name: "sign", class: "short", of: sign},
        {name: "about", class: "short", of: (event) => event.job || event.kind},
        {
          name: "what",
          of: (event) => {
            const decision = event.decision;
            if (!decision) return event.text || "";
            const outcome = decision.switched ?
                `${decision.from || "start"} → ${decision.to || ""} (${decision.outcome}): ` :
                "";
            return outcome + (event.text || "");
          }
        },
      ],
      events, (event) => ({class: isTrouble(event) ? "trouble" : null, "data-key": `${event.id}`}));
}
