// SPDX-License-Identifier: Apache-2.0
// The audit trail: who changed what, and what was refused. Only admins may see it.

import {h, show, table} from "../dom.js";
import {clock, number} from "../format.js";

const shown = 200;

export default class AuditView {
  constructor({api, store}) {
    this.api = api;
    this.store = store;
    this.title = "Audit";
    this.element = h("div", {id: "audit"});
  }

  async load() {
    await this.api.get("/v1/jobs?page_size=1");  // says the role
    if (this.store.state.role !== "admin") {
      show(this.element, h("p", {class: "muted"}, "The audit trail needs the role admin."));
      return;
    }
    const records = (await this.api.get(`/v1/audit?page_size=${shown}`)).records || [];
    show(this.element, records.length === 0 ?
        h("p", {class: "muted"}, "Nobody has changed anything yet, or tried to.") :
        table(`The newest ${records.length} records`, [
          {name: "when", class: "short", of: (record) => clock(number(record.unix_s))},
          {name: "who", of: (record) => record.principal || "nobody known"},
          {name: "by", class: "short", of: (record) => record.proof || "-"},
          {name: "from", of: (record) => record.peer || ""},
          {name: "method", class: "short", of: (record) => record.method || ""},
          {name: "of", of: (record) => record.target || ""},
          {name: "outcome", class: "short", of: (record) =>
            (record.refused ? `▲ ${record.outcome}` : record.outcome || "")},
          {name: "reason", of: (record) => record.reason || ""},
        ], records, (record) => ({class: record.refused ? "trouble" : null})));
  }
}
