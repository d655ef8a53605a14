// SPDX-License-Identifier: Apache-2.0
// All jobs: what is saved in all, and a line each, the worst first.

import {card, h, show, table, tile} from "../dom.js";
import {choiceLabel, number, percent, seconds, syncText} from "../format.js";
import {address} from "../router.js";
import {savings, savingsOfAll, worstFirst} from "../savings.js";

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

// The plan in a line: that choice, and how often ranks synchronise.
export const running = (job) =>
    [choiceLabel(largestChoice(job)), syncText((job.active_plan || {}).sync)].filter(Boolean).join(", ");

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
    word: word === "" || word === "unspecified" ? "-" : word,
    detail: job.key_id ? `key ${job.key_id}` : "no job key"
  };
}

const filters = [["all", "all"], ["running", "that run"], ["losing", "that lose time"], ["pinned", "that are pinned"]];

const passes = {
  all: () => true,
  running: (job) => job.state === "running",
  losing: (job) => savings(job).tone === "bad",
  pinned: (job) => Boolean(job.pinned)
};

export const matching = (jobs, words, filter) => {
  const wanted = words.trim().toLowerCase();
  return worstFirst(jobs).filter((job) => passes[filter](job) &&
      [job.name, job.policy, job.state, running(job)].some(
          (text) => (text || "").toLowerCase().includes(wanted)));
};

export default class JobsView {
  constructor({api}) {
    this.api = api;
    this.title = "Jobs";
    this.jobs = [];
    this.search = h("input", {type: "search", id: "job-search", autocomplete: "off"});
    this.filter = h("select", {id: "job-filter"}, filters.map(([value, text]) => h("option", {value}, text)));
    this.search.addEventListener("input", () => this.showJobs());
    this.filter.addEventListener("change", () => this.showJobs());
    this.tiles = h("div", {class: "tiles", id: "fleet-saved", "aria-label": "all jobs together"});
    this.rows = h("div", {});
    this.controls = h("div", {class: "controls"}, h("label", {}, "Search ", this.search),
        h("label", {}, "Show jobs ", this.filter));
    this.element = h("div", {}, this.tiles,
        card("Jobs, those that lose most first", {id: "jobs"}, this.controls, this.rows));
  }

  async load() {
    this.jobs = await this.api.getList("/v1/jobs", "jobs");
    this.showJobs();
  }

  showJobs() {
    const all = savingsOfAll(this.jobs);
    show(this.tiles,
        tile("saved by all jobs", h("span", {class: all.tone}, all.text),
            all.compared_s > 0 ? `in ${seconds(all.compared_s)} of steps` : ""),
        tile("jobs run", `${this.jobs.filter(passes.running).length} of ${this.jobs.length}`),
        tile("jobs that lose time", String(this.jobs.filter(passes.losing).length)));
    this.controls.hidden = this.jobs.length === 0;
    if (this.jobs.length === 0) {
      show(this.rows, h("div", {id: "empty"}, h("p", {}, h("b", {}, "No training job has attached yet.")),
          h("p", {}, "Start an agent on each node and set ", h("code", {}, "WEIR_AGENT"),
              " in the job's environment. The job appears here when its first rank says hello.")));
      return;
    }
    const shown = matching(this.jobs, this.search.value, this.filter.value);
    show(this.rows, shown.length === 0 ? h("p", {class: "muted"}, "No job matches.") : table("Jobs", [
      { name: "job", of: (job) => h("a", { href: address("jobs", job.name) }, job.name) },
      { name: "state", of: (job) => job.state || "" },
      { name: "ranks", number: true, of: (job) => `${(job.ranks || []).filter((rank) => rank.connected).length} of ${number(job.world)}` },
      { name: "against dense", of: (job) => h("span", { class: savings(job).tone }, savings(job).text) },
      { name: "step time", number: true, of: (job) => (number(job.step_s) ? seconds(number(job.step_s)) : "-") },
      { name: "keeps", number: true, of: (job) => percent(number(job.gain)) },
      { name: "runs", of: running },
      { name: "step", number: true, of: (job) => String(number(job.step)) },
      { name: "policy", of: (job) => (job.pinned ? `pinned: ${job.pinned}` : job.policy || "") },
    ], shown));
  }
}
