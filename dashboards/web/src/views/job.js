// SPDX-License-Identifier: Apache-2.0
// One job: is it faster than dense and by how much, what was chosen and why, how it went, what
// failed.

import {candidateTable} from "../candidates.js";
import {ParetoChart} from "../charts/pareto.js";
import {card, h, show, table, tile} from "../dom.js";
import {decisionFailed, eventTable, isTrouble} from "../events.js";
import {age, bitsPerSecond, bytes, choiceLabel, clock, number, percent, seconds, significant} from "../format.js";
import {JobHistory} from "../job_history.js";
import {address} from "../router.js";

import {jobCharts} from "./job_charts.js";
import {largestChoice, protection, savings} from "./jobs.js";

const rowsMax = 100;

export default class JobView {
  constructor({api, store}, name) {
    this.api = api;
    this.store = store;
    this.name = name;
    this.title = `Job ${name}`;
    this.history = new JobHistory(api, name);
    this.headline = h("p", {id: "headline", class: "headline"});
    this.tiles = h("div", {class: "tiles", id: "tiles", "aria-label": "current state"});
    this.why = h("div", {});
    this.pareto = new ParetoChart();
    this.charts = jobCharts();
    this.marks = h("div", {
      class: "marks",
      id: "marks",
      tabindex: "0",
      role: "region",
      "aria-label": "Reasons of the changes"
    });
    this.charts.ratio.readout.after(this.marks);
    this.rows = h("div", {id: "decisions"});
    this.filter = h("select", {id: "decision-filter"}, [
      ["switches", "that changed the plan"], ["all", "all"],
      ["failed", "that failed: refused, withdrawn, rolled back"]
    ].map(([value, text]) => h("option", {value}, text)));
    this.filter.addEventListener("change", () => this.showDecisions());
    this.ranks = h("div", {id: "ranks"});
    this.events = h("div", {id: "job-events"});
    this.element = h("div", {}, this.headline, this.tiles,
        card("Why this choice", {id: "why"}, this.why),
        h("div", {class: "charts"}, this.charts.ratio.element, this.charts.time.element,
            this.pareto.element, this.charts.prediction.element, this.charts.bandwidth.element,
            this.charts.latency.element, this.charts.gain.element, this.charts.loss.element),
        card("Decisions", {},
            h("p", {class: "muted"}, h("label", {}, "Show decisions ", this.filter)), this.rows),
        card("What happened, troubles first", {id: "job-trouble"}, this.events),
        card("Ranks", {}, this.ranks));
  }

  async load() {
    const job = await this.api.get(`/v1/jobs/${encodeURIComponent(this.name)}`);
    await this.history.load();
    // Without a decision there is nothing to explain, and the answer would be an error.
    const explanation = this.history.decisions.size > 0 ? await this.explain() : {};
    const policies = await this.api.getList("/v1/policies", "policies");
    this.showHeadline(job, explanation.decision || {});
    this.showTiles(job, explanation);
    this.showWhy(explanation);
    this.pareto.draw((explanation.decision || {}).candidates || [], explanation.front || [],
        (policies.find((policy) => policy.name === job.policy) || {}).bounds);
    const marks = this.history.switches().map((decision, index) => ({
      number: index + 1,
      step: number(decision.activation_step) || number(decision.step),
      text: `${decision.from || "start"} → ${decision.to || ""}. ${decision.reason || ""}`
    }));
    for (const chart of Object.values(this.charts)) chart.draw(this.history.points, marks);
    this.showMarks(marks);
    this.showDecisions();
    this.showRanks(job);
    this.onEvents();
  }

  // A restarted controller knows the decisions, but can explain nothing before its own first
  // decision.
  async explain() {
    try {
      return await this.api.get(`/v1/jobs/${encodeURIComponent(this.name)}:explain`);
    } catch (error) {
      if (error instanceof this.api.Refused) return {};
      throw error;
    }
  }

  showHeadline(job, decision) {
    const step = number(job.step_s);
    const dense = number(decision.dense_step_s);
    if (!(dense > 0 && step > 0)) {
      show(this.headline, h("b", {}, "Not compared with dense yet"),
          " · the first steps are being measured");
      return;
    }
    const ratio = dense / step;
    const words = ratio >= 1.02 ? `${significant(ratio, 3)}× faster than dense` :
        ratio > 0.98 ? "as fast as dense" :
                       `${significant(1 / ratio, 3)}× slower than dense would be`;
    const saved = savings(job);
    show(this.headline, h("b", {}, words),
        ` · ${saved.text} · gain ${significant(number(job.gain))} · `,
        h("span", {}, choiceLabel(largestChoice(job))));
    this.headline.setAttribute(
        "title", "Dense is predicted from measurements, the rest is measured");
  }

  showTiles(job, explanation) {
    const dense = number((explanation.decision || {}).dense_step_s);
    const bandwidth = explanation.bandwidth_bytes_per_s || {};
    const latency = explanation.latency_s || {};
    const present = (job.ranks || []).filter((rank) => rank.connected).length;
    show(
        this.tiles,
        tile("running now", choiceLabel(largestChoice(job)),
            job.pinned ? `pinned: ${job.pinned}` : `policy ${job.policy}`, true),
        tile("step time", seconds(number(job.step_s)),
            dense ? `dense would take ${seconds(dense)}` : ""),
        tile("time saved", seconds(number(job.saved_s)),
            number(job.compared_s) > 0 ? `${percent(savings(job).share)} of dense's, in ${
                                             seconds(number(job.compared_s))} of steps` :
                                         ""),
        tile("gradient gain", significant(number(job.gain)), "share of gradient energy sent"),
        tile("bandwidth", bitsPerSecond(number(bandwidth.value)),
            bandwidth.method ? `${bandwidth.method} ${age(number(bandwidth.age_s))}` : ""),
        tile("one-way latency", seconds(number(latency.value)),
            latency.method ? `${latency.method} ${age(number(latency.age_s))}` : ""),
        tile("step", String(number(job.step)), `loss ${significant(number(job.loss))}`),
        tile("frames", protection(job).word, protection(job).detail),
        tile("sent", bytes(number(job.bytes_sent)),
            `${job.state || ""}, ${present} of ${number(job.world)} ranks, plan ${
                job.rollout_state || ""}`),
    );
  }

  showWhy(explanation) {
    const decision = explanation.decision || {};
    const candidates = decision.candidates || [];
    show(this.why,
        h("p", {id: "reason", class: "reason"},
            decision.reason || "No decision yet: the first steps are being measured."),
        decision.id ?
            h("p", {class: "muted"},
                `Asked by ${decision.trigger} at step ${
                    number(decision.trigger_step)}, decided at step `,
                `${number(decision.step)}, ${clock(number(decision.unix_s))}, policy `,
                h("a", {href: address("policies", decision.policy)}, decision.policy || ""),
                decision.binding_constraint ?
                    `; binding constraint: ${decision.binding_constraint}` :
                    "") :
            null,
        candidates.length > 0 ?
            h("div", {id: "candidates"},
                candidateTable("Candidates", candidates, number(decision.dense_step_s))) :
            null);
  }

  showMarks(marks) {
    show(this.marks,
        h("ol", {},
            [...marks].reverse().map(
                (mark) => h("li", {value: mark.number, "data-key": mark.number},
                    h("b", {}, `step ${mark.step}: `), mark.text))));
  }

  showDecisions() {
    const all = this.history.newestFirst();
    const shown = {
      all,
      switches: [...this.history.switches()].reverse(),
      failed: all.filter(decisionFailed)
    }[this.filter.value];
    show(this.rows,
        h("p", {class: "muted"}, `${Math.min(shown.length, rowsMax)} of ${all.length} decisions`),
        table("Decisions",
            [
              {name: "step", number: true, of: (each) => String(number(each.step))},
              {name: "when", class: "short", of: (each) => clock(number(each.unix_s))},
              {name: "trigger", class: "short", of: (each) => each.trigger || ""},
              {name: "from", of: (each) => each.from || ""},
              {name: "to", of: (each) => (each.switched ? each.to || "" : "(kept)")},
              {
                name: "outcome",
                class: "short",
                of: (each) => (decisionFailed(each) ? `▲ ${each.outcome}` : each.outcome || "")
              },
              {
                name: "predicted",
                number: true,
                of: (each) => seconds(number(each.predicted_step_s))
              },
              {
                name: "actual",
                number: true,
                of: (each) =>
                    (number(each.actual_step_s) ? seconds(number(each.actual_step_s)) : "–")
              },
              {name: "dense", number: true, of: (each) => seconds(number(each.dense_step_s))},
              {name: "reason", of: (each) => each.reason || ""},
            ],
            shown.slice(0, rowsMax), (each) => ({class: decisionFailed(each) ? "trouble" : null})));
  }

  showRanks(job) {
    show(this.ranks,
        table("Ranks",
            [
              {name: "rank", number: true, of: (rank) => String(number(rank.rank))},
              {name: "node", of: (rank) => rank.node || ""},
              {name: "", of: (rank) => (rank.connected ? "● attached" : "▲ gone")},
              {name: "step", number: true, of: (rank) => String(number(rank.step))},
              {name: "plan", number: true, of: (rank) => String(number(rank.plan_version))},
            ],
            job.ranks || [], (rank) => ({class: rank.connected ? null : "trouble"})));
  }

  onEvents() {
    const mine = this.store.state.events.filter((event) => event.job === this.name);
    const sorted =
        [...mine.filter(isTrouble), ...mine.filter((event) => !isTrouble(event))].slice(0, rowsMax);
    show(this.events,
        sorted.length > 0 ? eventTable("Events of the job", sorted) :
                            h("p", {class: "muted"}, "No event since the controller started."));
  }
}
