// SPDX-License-Identifier: Apache-2.0
// Steps and decisions of one job as they come, each asked for once.

import {newDecisions} from "./api.js";
import {number} from "./format.js";

const pointsMax = 2000;
const decisionPagesMax = 20;
const decisionsMax = 2000;

export class JobHistory {
  constructor(api, job) {
    this.api = api;
    this.job = job;
    this.points = [];
    this.decisions = new Map();
  }

  async load() {
    const last = this.points.length ? number(this.points.at(-1).step) : 0;
    const [series, decisions] = await Promise.all([
      this.api.get(`/v1/jobs/${encodeURIComponent(this.job)}/series?since_step=${last}`),
      newDecisions(this.job, this.decisions, decisionPagesMax)
    ]);
    this.addPoints(series.points || [], last);
    for (const decision of decisions) this.decisions.set(decision.id, decision);
    for (const id of this.decisions.keys()) {
      if (this.decisions.size <= decisionsMax) break;
      this.decisions.delete(id);
    }
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
