// SPDX-License-Identifier: Apache-2.0
// Steps and decisions of one job as they come, each asked for once.

import {newDecisions, olderDecisions} from "./api.js";
import {number} from "./format.js";

const pointsMax = 2000;
const firstPoints = 300;  // more than fill a chart's width at first
const decisionsMax = 2000;

export class JobHistory {
  constructor(api, job) {
    this.api = api;
    this.job = job;
    this.points = [];
    this.decisions = new Map();
    this.partial = false;  // the controller has older steps
    this.older = "";  // token of the page of decisions that comes next
  }

  // Loads what is new since the last time. Older steps and decisions of a job that was not known before are
  // left to loadOlder(), so that a page with thousands of them opens at once.
  async load() {
    const last = this.points.length ? number(this.points.at(-1).step) : 0;
    const newest = last === 0 ? `&points_max=${firstPoints}` : "";
    const [series, {decisions, rest}] = await Promise.all([
      this.api.get(`/v1/jobs/${encodeURIComponent(this.job)}/series?since_step=${last}${newest}`),
      newDecisions(this.job, this.decisions)
    ]);
    this.addPoints(series.points || [], last);
    if (newest) this.partial = this.points.length === firstPoints;
    if (this.decisions.size === 0) this.older = rest;
    this.addDecisions(decisions);
  }

  // The older steps, then one page of older decisions at a time; whether there was something.
  async loadOlder() {
    if (this.partial) {
      const {points = []} = await this.api.get(`/v1/jobs/${encodeURIComponent(this.job)}/series`);
      const first = number(this.points[0]?.step);
      this.points = [...points.filter((point) => number(point.step) < first), ...this.points].slice(-pointsMax);
      this.partial = false;
      return true;
    }
    if (!this.older || this.decisions.size >= decisionsMax) return false;
    const {decisions, rest} = await olderDecisions(this.job, this.older);
    this.older = rest;
    this.addDecisions(decisions);
    return decisions.length > 0;
  }

  addDecisions(decisions) {
    for (const decision of decisions) this.decisions.set(decision.id, decision);
    if (this.decisions.size <= decisionsMax) return;
    for (const {id} of this.newestFirst().slice(decisionsMax)) this.decisions.delete(id);
  }

  // If the controller does not know the newest step that the page knows, the job has restarted.
  addPoints(points, last) {
    const again = last > 0 && !points.some((point) => number(point.step) === last);
    if (again) this.points = [];
    const from = again ? -1 : last;
    this.points =
        [...this.points, ...points.filter((point) => number(point.step) > from)].slice(-pointsMax);
  }

  newestFirst() {
    return [...this.decisions.values()].sort((a, b) => number(b.id) - number(a.id));
  }

  // Switches that took effect or are about to, oldest first: the marks of the charts.
  switches() {
    return this.newestFirst()
        .filter(
            (decision) => decision.switched && !["nacked", "withdrawn"].includes(decision.outcome))
        .reverse();
  }
}
