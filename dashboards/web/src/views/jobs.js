// SPDX-License-Identifier: Apache-2.0
// All jobs, a line each: is it faster than dense, what runs, is anything wrong.

import {card, h, show, table} from "../dom.js";
import {choiceLabel, number, percent, seconds, significant} from "../format.js";
import {address} from "../router.js";

// The choice for the largest bucket: what most bytes travel by.
export function largestChoice(job) {
  const plan = job.active_plan || {};
  const buckets = [...(job.buckets || [])].sort((a, b) => number(b.elements) - number(a.elements));
  for (const bucket of buckets) {
    const entry = (plan.buckets || []).find((candidate) => candidate.bucket === bucket.key);
    if (entry) return entry.choice;
  }
  return plan.fallback;
}

// {text, share}: time saved against predicted dense since the controller began to compare.
export function savings(job) {
  const compared = number(job.compared_s);
  const saved = number(job.saved_s);
  if (compared <= 0) return {text: "not compared with dense yet", share: NaN};
  const share = saved / (compared + saved);
  return {
    share,
    text: saved >= 0 ? `saves ${percent(share)} (${seconds(saved)})` : `loses ${seconds(-saved)}`
  };
}

// {word, detail}: how the frames between the job's ranks are protected, and by which key.
export function protection(job) {
  const peers = number(job.unauthenticated_peers);
  if (peers > 0) {
    return {
      word: "▲ unauthenticated",
      detail: `a rank reaches ${peers} peers over a network without any proof`
    };
  }
  const word = (job.frame_protection || "").replace("FRAME_PROTECTION_", "").toLowerCase();
  return {
    word: word === "" || word === "unspecified" ? "–" : word,
    detail: job.key_id ? `key ${job.key_id}` : "no job key"
  };
}

const faster = (job) => {
  const compared = number(job.compared_s);
  return compared > 0 ? `${significant((compared + number(job.saved_s)) / compared, 3)}×` : "–";
};

export default class JobsView {
  constructor({api}) {
    this.api = api;
    this.title = "Jobs";
    this.element = h("div", {});
  }

  async load() {
    const jobs = await this.api.getList("/v1/jobs", "jobs");
    if (jobs.length === 0) {
      show(this.element,
          card("No training job has attached yet", {id: "empty"},
              h("p", {}, "Start an agent on each node and set ", h("code", {}, "WEIR_AGENT"),
                  " in the job's environment. The job appears here when its first rank says hello.")));
      return;
    }
    show(this.element, card("Jobs", { id: "jobs" }, table("Jobs", [
      { name: "job", of: (job) => h("a", { href: address("jobs", job.name) }, job.name) },
      { name: "state", of: (job) => job.state || "" },
      { name: "ranks", number: true, of: (job) => `${(job.ranks || []).filter((rank) => rank.connected).length} of ${number(job.world)}` },
      { name: "faster than dense", number: true, of: faster },
      { name: "time saved", of: (job) => savings(job).text },
      { name: "gain", number: true, of: (job) => significant(number(job.gain)) },
      { name: "runs", of: (job) => choiceLabel(largestChoice(job)) },
      { name: "step", number: true, of: (job) => String(number(job.step)) },
      { name: "policy", of: (job) => (job.pinned ? `pinned: ${job.pinned}` : job.policy || "") },
    ], jobs)));
  }
}
