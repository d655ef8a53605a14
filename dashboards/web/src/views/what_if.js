// SPDX-License-Identifier: Apache-2.0
// "What would Weir choose?": a model and a network that need not exist.

import {candidateTable, denseOf} from "../candidates.js";
import {ParetoChart} from "../charts/pareto.js";
import {card, h, show} from "../dom.js";
import {number, percent} from "../format.js";
import {againstDense} from "../savings.js";

// name: of SimulateRequest; factor: from what people type to what the API takes.
const fields = [
  {
    name: "model_parameters",
    label: "Model parameters",
    unit: "million",
    factor: 1e6,
    value: 124,
    min: 0.000001,
    max: 1e7
  },
  {name: "world", label: "Ranks", unit: "", factor: 1, value: 8, min: 1, max: 4096, whole: true},
  {
    name: "latency_s",
    label: "One-way latency",
    unit: "ms",
    factor: 1e-3,
    value: 1,
    min: 0,
    max: 10000
  },
  {
    name: "bandwidth_bytes_per_s",
    label: "Bandwidth of the slowest link",
    unit: "Mb/s",
    factor: 1e6 / 8,
    value: 1000,
    min: 0.000001,
    max: 1e7
  },
  {
    name: "compute_s",
    label: "Computing per step",
    unit: "ms",
    factor: 1e-3,
    value: 200,
    min: 0,
    max: 1e7
  },
  {
    name: "sync_every_max",
    label: "Steps between synchronisations, at most (0: as the policy says)",
    unit: "",
    factor: 1,
    value: 0,
    min: 0,
    max: 65536,
    whole: true
  },
  {
    name: "buckets",
    label: "Buckets",
    unit: "",
    factor: 1,
    value: 8,
    min: 1,
    max: 1024,
    whole: true
  },
];

export default class WhatIfView {
  constructor({api}) {
    this.api = api;
    this.title = "What if";
    this.inputs = new Map(fields.map((field) => [field.name, h("input", {
      id: `if-${field.name}`,
      type: "number",
      required: true,
      value: field.value,
      min: field.min,
      max: field.max,
      step: field.whole ? 1 : "any"
    })]));
    this.policy = h("select", {id: "if-policy"}, h("option", {value: ""}, "default"));
    this.job = h("select", {id: "if-job"});
    this.take = h("button", {type: "button", id: "if-take"}, "Take its figures");
    this.answer = h("div", {id: "if-answer", "aria-live": "polite"});
    this.pareto = new ParetoChart();
    this.pareto.element.hidden = true;
    this.form = h("form", {id: "what-if", class: "card grid"}, h("h3", {}, "A model and a network"),
        fields.map(
            (field) => h("label", {}, `${field.label}${field.unit ? ` (${field.unit})` : ""} `,
                this.inputs.get(field.name))),
        h("label", {}, "Policy ", this.policy),
        h("div", {class: "controls"}, h("label", {}, "A running job ", this.job), this.take),
        h("button", {type: "submit"}, "What would be chosen?"));
    this.element = h("div", {}, this.form, this.answer, this.pareto.element);
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.ask();
    });
    this.take.addEventListener("click", () => this.takeFigures());
  }

  // The form is a person's: only the choices are kept up to date.
  async load() {
    const [policies, jobs] =
        await Promise.all(["policies", "jobs"].map((kind) => this.api.getList(`/v1/${kind}`, kind)));
    this.policies = policies.filter((policy) => policy.source);
    this.jobs = jobs;
    show(this.policy, h("option", {value: ""}, "default"),
        this.policies.map((policy) => h("option", {value: policy.name}, policy.name)));
    show(this.job, this.jobs.map((job) => h("option", {value: job.name}, job.name)));
    this.take.disabled = this.jobs.length === 0;
  }

  async takeFigures() {
    const job = this.jobs.find((each) => each.name === this.job.value);
    if (!job) return;
    try {
      const explanation = await this.api.get(`/v1/jobs/${encodeURIComponent(job.name)}:explain`);
      const buckets = job.buckets || [];
      this.fill({
        model_parameters: buckets.reduce((sum, bucket) => sum + number(bucket.elements), 0),
        world: number(job.world),
        buckets: Math.max(1, buckets.length),
        compute_s: number(explanation.compute_s),
        latency_s: number((explanation.latency_s || {}).value),
        bandwidth_bytes_per_s: number((explanation.bandwidth_bytes_per_s || {}).value),
      });
    } catch (error) {
      this.refuse(error);
    }
  }

  fill(values) {
    for (const {name, factor, whole} of fields) {
      if (values[name] === undefined) continue;
      if (!(values[name] > 0) && !whole && name === "bandwidth_bytes_per_s") continue;
      this.inputs.get(name).value =
          String(Number((values[name] / factor).toPrecision(whole ? 12 : 6)));
    }
  }

  request() {
    const chosen = (this.policies || []).find((policy) => policy.name === this.policy.value);
    const body = {policy_source: chosen ? chosen.source : ""};
    for (const {name, factor, whole} of fields) {
      const value = Number(this.inputs.get(name).value) * factor;
      body[name] = name === "model_parameters" ? String(Math.round(value)) :
          whole                                ? Math.round(value) :
                                                 value;
    }
    return {body, bounds: chosen && chosen.bounds};
  }

  async ask() {
    const {body, bounds} = this.request();
    for (const input of this.inputs.values()) input.removeAttribute("aria-invalid");
    try {
      const answer = await this.api.send("POST", "/v1:simulate", body);
      this.showAnswer(answer, bounds);
    } catch (error) {
      this.refuse(error);
    }
  }

  showAnswer(answer, bounds) {
    const candidates = answer.candidates || [];
    const chosen = candidates.find((candidate) => candidate.chosen) || {};
    const dense = denseOf(candidates);
    show(this.answer,
        card("What would be chosen", {},
            h("p", {class: "headline"}, h("b", {}, chosen.label || "nothing"),
                ` · ${againstDense(number(chosen.step_s), dense)} of dense's time, as predicted`,
                ` · keeps ${percent(number(chosen.gain))}`),
            h("p", {class: "reason"}, answer.reason || ""),
            candidateTable("Candidates of the what-if question", candidates, dense)));
    const bare = candidates.filter((candidate) => candidate.feasible);
    this.pareto.element.hidden = candidates.length === 0;
    this.pareto.draw(candidates, undominated(bare), bounds);
  }

  // The controller names the field that it refuses.
  refuse(error) {
    const name = String(error.message).split(":")[0];
    const input = this.inputs.get(name);
    if (input) {
      input.setAttribute("aria-invalid", "true");
      input.focus();
    }
    this.pareto.element.hidden = true;
    show(this.answer, h("p", {class: "error", role: "alert"}, error.message));
  }
}

// Those that no other beats in both time and gain.
export function undominated(candidates) {
  return candidates.filter(
      (one) => !candidates.some((other) => number(other.step_s) <= number(one.step_s) &&
              number(other.gain) >= number(one.gain) &&
              (number(other.step_s) < number(one.step_s) ||
                  number(other.gain) > number(one.gain))));
}
