// SPDX-License-Identifier: Apache-2.0
// One job: is it faster than dense and by how much, what was chosen and why, how it went, what
// failed.

import {candidateTable} from "../candidates.js";
import {ParetoChart} from "../charts/pareto.js";
import {recolour} from "../charts/series.js";
import {card, h, show, table, tile} from "../dom.js";
import {decisionFailed, eventTable, isTrouble} from "../events.js";
import {age, bitsPerSecond, bytes, clock, number, percent, seconds, significant, withDeviation} from "../format.js";
import {JobHistory} from "../job_history.js";
import {address} from "../router.js";
import {savings} from "../savings.js";

import {jobCharts} from "./job_charts.js";
import {protection, running} from "./jobs.js";
import {PinPanel} from "./pin.js";

const rowsMax = 100;
const axes = [["step", "steps"], ["time", "time"]];
const spans = [["0", "all"], ["500", "last 500 steps"], ["100", "last 100 steps"]];

const select = (id, options) =>
    h("select", {id}, options.map(([value, text]) => h("option", {value}, text)));

// As late_ranks.h of controller/messages.
const takenWaitRatio = 0.3, takenStealRatio = 0.1;
const slower = (rank) => Math.round(10 * number(rank.slower)) / 10;
const coresTaken = ({cores = {}, starved}) => starved ||
    number(cores.wait_ratio) >= takenWaitRatio || number(cores.steal_ratio) >= takenStealRatio;
const isLate = (rank) => number(rank.slower) > 1 || coresTaken(rank);
const paceText = (rank) =>
    (number(rank.slower) > 1 ? `▲ ${slower(rank)} times slower` : rank.slower ? "as the others" : "-");

function coresText(rank) {
  if (!rank.cores) return "-";
  const steal = number(rank.cores.steal_ratio);
  return `${coresTaken(rank) ? "▲ taken, waits " : "waits "}${percent(number(rank.cores.wait_ratio))}` +
      (steal > 0 ? `, steal ${percent(steal)}` : "");
}

const probeText = (probes) =>
    `in ${seconds(number(probes.seconds))}; at most ${percent(number(probes.budget_ratio))} of what training sends`;

export default class JobView {
  constructor(context, name) {
    const {api, store} = context;
    this.api = api;
    this.store = store;
    this.name = name;
    this.title = `Job ${name}`;
    this.history = new JobHistory(api, name);
    this.headline = h("p", {id: "headline", class: "headline"});
    this.summary = h("p", {id: "summary", class: "reason"});
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
    this.filter = select("decision-filter", [
      ["switches", "that changed the plan"], ["all", "all"],
      ["failed", "that failed: refused, withdrawn, rolled back"]
    ]);
    this.filter.addEventListener("change", () => this.showDecisions());
    this.axis = select("chart-axis", axes);
    this.span = select("chart-span", spans);
    for (const each of [this.axis, this.span]) {
      each.addEventListener("change", () => this.showCharts());
    }
    this.pin = new PinPanel(context, name, () => this.load().catch(() => {}));
    this.ranks = h("div", {id: "ranks"});
    this.events = h("div", {id: "job-events"});
    const {time, ratio, prediction, bandwidth, latency, gain, loss} = this.charts;
    this.element = h("div", {}, this.headline, this.summary, this.tiles,
        h("div", {class: "controls", id: "chart-controls"}, h("label", {}, "Charts over ", this.axis),
            h("label", {}, "Show ", this.span),
            h("span", {class: "muted"}, "Drag in a chart to zoom in all of them; a double click shows everything.")),
        time.element, h("div", {class: "charts"}, ratio.element, bandwidth.element, prediction.element,
            latency.element, gain.element, loss.element),
        card("Why this choice", {id: "why"}, this.why),
        h("div", {class: "charts"}, this.pareto.element, card("Pin", {id: "pin-card"}, this.pin.element)),
        card("Decisions", {},
            h("p", {class: "muted"}, h("label", {}, "Show decisions ", this.filter)), this.rows),
        card("What happened, troubles first", {id: "job-trouble"}, this.events),
        card("Ranks", {}, this.ranks));
  }

  async load() {
    const path = `/v1/jobs/${encodeURIComponent(this.name)}`;
    const [job, explanation, policies] = await Promise.all([
      this.api.get(path), this.explain(path), this.api.getList("/v1/policies", "policies"),
      this.history.load()
    ]);
    const decision = explanation.decision || {};
    this.showHeadline(job, decision);
    this.showTiles(job, explanation);
    this.showCharts();
    this.showWhy(explanation);
    this.pareto.draw(decision.candidates || [], explanation.front || [],
        (policies.find((policy) => policy.name === job.policy) || {}).bounds);
    this.pin.draw(job, decision.candidates || []);
    this.showDecisions();
    this.showRanks(job);
    this.onEvents();
    this.loadOlder();
  }

  // Records older than the first page are loaded while the page is read; after a failure, at the next
  // refresh.
  async loadOlder() {
    if (this.filling) return;
    this.filling = true;
    try {
      let more = false;
      while (this.element.isConnected && await this.history.loadOlder()) {
        more = true;
        await new Promise((resolve) => setTimeout(resolve, 0));
      }
      if (more) {
        this.showCharts();
        this.showDecisions();
      }
    } catch {
      // The next refresh goes on.
    } finally {
      this.filling = false;
    }
  }

  // Before its first decision a job has nothing to explain, and the answer is an error.
  async explain(path) {
    try {
      return await this.api.get(`${path}:explain`);
    } catch (error) {
      if (error instanceof this.api.Refused) return {};
      throw error;
    }
  }

  showHeadline(job, decision) {
    const found = savings(job);
    show(this.headline, h("b", {class: found.tone}, found.text),
        Number.isNaN(found.share) ? " · the first steps are being measured" : "", " · ",
        h("span", {}, running(job)));
    this.headline.setAttribute(
        "title", "Dense is predicted from measurements, the rest is measured");
    const switched = this.history.switches().at(-1) || decision;
    this.summary.textContent = switched.summary || switched.reason || "";
  }

  showCharts() {
    const span = Number(this.span.value);
    const points = span > 0 ? this.history.points.slice(-span) : this.history.points;
    const axis = {time: this.axis.value === "time"};
    const switches = this.history.switches();
    const marks = switches.map((decision, index) => ({
      number: index + 1,
      step: number(decision.activation_step) || number(decision.step),
      unix_s: number(decision.unix_s),
      text: decision.summary || `${decision.to || ""}. ${decision.reason || ""}`
    }));
    for (const chart of Object.values(this.charts)) chart.draw(points, marks, axis);
    this.showMarks(marks);
  }

  onTheme() {
    recolour(Object.values(this.charts));
  }

  onState() {
    this.pin.showRole();
  }

  showTiles(job, explanation) {
    const dense = number((explanation.decision || {}).dense_step_s);
    const bandwidth = explanation.bandwidth_bytes_per_s || {};
    const latency = explanation.latency_s || {};
    const progress = job.progress || {};
    const present = (job.ranks || []).filter((rank) => rank.connected).length;
    const believed = (estimate, format) =>
        withDeviation(format(number(estimate.value)), number(estimate.value), number(estimate.deviation));
    show(
        this.tiles,
        tile("running now", running(job),
            job.pinned ? `pinned: ${job.pinned}` : `policy ${job.policy}`, true),
        tile("step time", seconds(number(job.step_s)),
            dense ? `dense would take ${seconds(dense)}` : ""),
        progress.sync_cost_deviation ?
            tile("local steps cost", `${significant(number(progress.sync_cost))} per e-fold`,
                progress.signal_share ?
                    `${percent(number(progress.signal_share))} of the ranks' mean movement is signal` :
                    "as the policy says, until losses say more") :
            null,
        tile("keeps of the gradient", percent(number(job.gain)), "share of its energy that is sent"),
        tile("bandwidth believed", believed(bandwidth, bitsPerSecond),
            bandwidth.method ? `${bandwidth.method} ${age(number(bandwidth.age_s))}` : ""),
        tile("one-way latency believed", believed(latency, seconds),
            latency.method ? `${latency.method} ${age(number(latency.age_s))}` : ""),
        tile("step", String(number(job.step)), `loss ${significant(number(job.loss))}`),
        tile("frames", protection(job).word, protection(job).detail),
        tile("bandwidth probes", bytes(number((job.probes || {}).bytes)), probeText(job.probes || {})),
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
    const shown = marks.slice(-rowsMax).reverse();
    show(this.marks,
        h("ol", {reversed: true},
            shown.map((mark) => h("li", {value: mark.number, "data-key": mark.number}, mark.text))),
        marks.length > shown.length ?
            h("p", {class: "muted"}, `The newest ${shown.length} of ${marks.length} changes.`) :
            null);
  }

  showDecisions() {
    const all = this.history.newestFirst();
    const shown = {
      all,
      switches: [...this.history.switches()].reverse(),
      failed: all.filter(decisionFailed)
    }[this.filter.value];
    show(this.rows,
        h("p", {class: "muted"}, `${Math.min(shown.length, rowsMax)} of ${all.length} decisions`,
            this.history.older ? "; older ones are being loaded" : ""),
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
                    (number(each.actual_step_s) ? seconds(number(each.actual_step_s)) : "-")
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
              {name: "state", of: (rank) => (rank.connected ? "● attached" : "▲ gone")},
              {name: "step", number: true, of: (rank) => String(number(rank.step))},
              {name: "plan", number: true, of: (rank) => String(number(rank.plan_version))},
              {name: "computes", class: "short", of: paceText},
              {name: "cores", class: "short", of: coresText},
            ],
            job.ranks || [],
            (rank) => ({class: rank.connected && !isLate(rank) ? null : "trouble"})),
        (job.sharing || []).length > 0 ?
            h("p", {id: "sharing", class: "muted"}, "Shares its links with ",
                job.sharing.map((other) => `job ${other.job} (${number(other.nodes)} nodes)`).join(", "), ".") :
            null);
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
