// SPDX-License-Identifier: Apache-2.0
// Policies in force, and an editor: check, see what would change in the text and for running jobs,
// then apply or delete. Both need the role admin; the controller decides that, the page only says so
// beforehand.

import {diffLines} from "../diff.js";
import {card, h, show, table} from "../dom.js";
import {clock, number} from "../format.js";
import {effectTable, refused} from "../policy_effects.js";
import {address} from "../router.js";

const aborted = 10;  // google.rpc.Code
const noText =
    "cbf29ce484222325";  // the etag of an empty text: there is no such policy, or the built-in one
const template = "name: default\njobs: [\"*\"]\nobjective:\n  name: time_to_accuracy\n";
// Edits that were not applied, by policy: a look at a job must not lose them.
const drafts = new Map();
const signs = {
  same: " ",
  removed: "-",
  added: "+"
};

export default class PoliciesView {
  constructor({api, store}, name) {
    this.api = api;
    this.store = store;
    this.title = "Policies";
    this.wanted = name;
    this.checked = null;  // the text that the controller found valid
    this.list = h("div", {id: "policies"});
    this.text = h("textarea",
        {id: "policy-text", rows: "18", spellcheck: "false", "aria-describedby": "policy-verdict"});
    this.actor = h("input", {id: "policy-actor", autocomplete: "off", maxlength: "100"});
    this.check = h("button", {type: "button", id: "policy-check"}, "Check and compare");
    this.apply = h("button", {type: "button", id: "policy-apply", disabled: true}, "Apply");
    this.verdict = h("p", {id: "policy-verdict", role: "status"});
    this.diff = h("div", {id: "policy-diff"});
    this.why = h("span", {class: "muted", id: "policy-role"});
    this.remove = h("button", {type: "button", id: "policy-delete"}, "Delete…");
    this.confirm = h("div", {id: "policy-confirm"});
    this.discard = h("button", {type: "button", id: "policy-discard"}, "Back to what is in force");
    this.heading = h("h3", {}, "Editor");
    this.element =
        h("div", {}, card("Policies, the first that matches a job rules it", {}, this.list),
            h("section", {class: "card", id: "editor"}, this.heading, this.text,
                h("div", {class: "controls"}, this.check,
                    h("label", {}, "Your name, where the controller does not know it ", this.actor), this.apply,
                    this.discard, this.remove, this.why),
                this.verdict, this.diff, this.confirm));
    this.text.addEventListener("input", () => {
      drafts.set(this.name, this.text.value);
      this.changed();
    });
    this.discard.addEventListener("click", () => this.begin());
    this.check.addEventListener("click", () => this.validate());
    this.apply.addEventListener("click", () => this.install());
    this.remove.addEventListener("click", () => this.askToDelete());
    // The buttons within come and go.
    this.confirm.addEventListener("click", ({target}) => {
      if (target.id === "policy-delete-now") this.deletePolicy();
      if (target.id === "policy-keep") this.changed();
    });
  }

  async load() {
    this.policies = await this.api.getList("/v1/policies", "policies");
    show(this.list,
        table("Policies",
            [
              {
                name: "policy",
                of: (policy) => h("a", {href: address("policies", policy.name)}, policy.name)
              },
              {name: "jobs", of: (policy) => (policy.jobs || []).join(", ")},
              {name: "rules now", of: (policy) => (policy.ruled_jobs || []).join(", ") || "-"},
              {name: "objective", of: (policy) => policy.objective || ""},
              {name: "from", of: (policy) => policy.origin || ""},
              {
                name: "loaded",
                of: (policy) =>
                    (number(policy.loaded_unix_s) ? clock(number(policy.loaded_unix_s)) : "-")
              },
              {name: "error", of: (policy) => (policy.error ? `▲ ${policy.error}` : "")},
            ],
            this.policies, (policy) => ({class: policy.error ? "trouble" : null})));
    if (this.base === undefined) this.begin();
    this.showRole();
  }

  begin() {
    const policy = this.policies.find((each) => each.name === this.wanted) || this.policies[0];
    const draft = this.base === undefined && policy ? drafts.get(policy.name) : undefined;
    this.take(policy);
    if (draft !== undefined && draft !== this.text.value) {
      this.text.value = draft;
      drafts.set(this.name, draft);
      this.verdict.textContent = "This is your text from before; it is not in force.";
    }
  }

  // Begins to edit what is in force.
  take(policy) {
    this.base = policy ? policy.source || "" : "";
    this.etag = policy ? policy.etag : noText;
    this.name = policy ? policy.name : "";
    this.origin = policy ? policy.origin || "" : "";
    this.text.value = this.base || template;
    drafts.delete(this.name);
    this.heading.textContent = policy ? `Editor: ${policy.name} (${policy.origin})` : "Editor";
    this.changed();
  }

  onState() {
    this.showRole();
  }

  showRole() {
    const may = this.store.state.role === "admin";
    this.apply.disabled = !may || this.checked === null || this.checked !== this.text.value;
    this.remove.disabled = !may || this.origin !== "api";
    this.remove.title = this.origin === "api" ? "" : "Only what was applied can be deleted here; a policy of a file ends with its file.";
    this.why.textContent = !may ?
        `Applying and deleting need the role admin; you have ${this.store.state.role || "none"}.` :
        this.apply.disabled ? "Check first: what was compared is what gets applied." :
                              "";
  }

  changed() {
    this.checked = null;
    show(this.diff);
    show(this.confirm);
    this.verdict.textContent = "";
    this.verdict.className = "";
    this.text.removeAttribute("aria-invalid");
    this.showRole();
  }

  say(text, bad) {
    this.verdict.textContent = text;
    this.verdict.className = bad ? "error" : "good";
    this.text.setAttribute("aria-invalid", bad ? "true" : "false");
  }

  async validate() {
    const source = this.text.value;
    try {
      const answer = await this.api.send("POST", "/v1/policies:validate", {source});
      const policies = await this.api.getList("/v1/policies", "policies");
      if (source !== this.text.value) return;
      if (!answer.valid) {
        this.checked = null;
        show(this.diff);
        this.say(`▲ ${answer.error || "not valid"}`, true);
        this.toLine(answer.error || "");
        return;
      }
      this.compare(source, answer.name, policies.find((policy) => policy.name === answer.name));
      if (this.checked !== null && this.store.state.role === "admin") await this.foresee(source);
    } catch (error) {
      this.say(error.message, true);
    } finally {
      this.showRole();
    }
  }

  // With the text in force under that name, which may not be the one that the person began with.
  compare(source, name, present) {
    const tag = present ? present.etag : noText;
    const other = name === this.name && tag !== this.etag;
    Object.assign(this, {base: present ? present.source || "" : "", etag: tag, name});
    const lines = diffLines(this.base, source);
    const changes = lines.filter((line) => line.kind !== "same").length;
    this.checked = changes > 0 ? source : null;
    const differs = changes > 0 ? `${changes} lines differ from what is in force as ${name}` :
                                  `the same as what is in force as ${name}`;
    this.say(other ?
            `▲ Valid; ${
                differs}. Somebody changed that since you began: see below what would be undone.` :
            `Valid; ${differs}.`,
        other);
    this.showDiff(lines);
  }

  address() {
    return `/v1/policies/${encodeURIComponent(this.name)}`;
  }

  // Shows the effects of applying on running jobs. A text that leaves one nothing to choose stays unapplied.
  async foresee(source) {
    const checked = this.checked;
    this.checked = null;
    const {effects = []} =
        await this.api.send("PUT", this.address(), {source, dry_run: true});
    if (source !== this.text.value) return;
    show(this.confirm, h("h4", {}, "Effect on running jobs"), effectTable(effects));
    if (refused(effects))
      this.say("▲ Not to be applied: it leaves a running job nothing to choose.", true);
    else
      this.checked = checked;
  }

  // Deleting is confirmed with its effects in view.
  async askToDelete() {
    try {
      this.changed();
      const {effects = []} = await this.api.send("DELETE", `${this.address()}?dry_run=true`, {},
          {"If-Match": `"${this.etag}"`});
      show(this.confirm, h("h4", {}, `What deleting ${this.name} does to running jobs`),
          effectTable(effects),
          h("div", {class: "controls"},
              h("button", {type: "button", id: "policy-delete-now", disabled: refused(effects)},
                  `Delete ${this.name}`),
              h("button", {type: "button", id: "policy-keep"}, "Keep it")));
    } catch (error) {
      this.failed(error, "deleted");
    }
  }

  async deletePolicy() {
    const {name} = this;
    try {
      await this.api.send("DELETE",
          `${this.address()}?actor=${encodeURIComponent(this.actor.value || "web page")}`, {},
          {"If-Match": `"${this.etag}"`});
      drafts.delete(name);
      this.base = undefined;
      this.wanted = "";
      await this.load();
      this.say(`Deleted: ${name} is no longer in force.`, false);
    } catch (error) {
      show(this.confirm);
      this.failed(error, "deleted");
    }
  }

  // Somebody else was faster: the person's text stays, and is to be compared with theirs.
  failed(error, what) {
    this.say(error.code === aborted ?
            `▲ Not ${what}: somebody changed it since it was compared. Check again.` :
            error.message,
        true);
    this.showRole();
  }

  // "policy:3: bounds.ratio_min: ...": to the line, where the text names one.
  toLine(message) {
    const line = Number((message.match(/^[^:]*:(\d+):/) || [])[1]);
    if (!line) return;
    const before = this.text.value.split("\n").slice(0, line - 1).join("\n");
    const start = line > 1 ? before.length + 1 : 0;
    const end = this.text.value.indexOf("\n", start);
    this.text.focus();
    this.text.setSelectionRange(start, end < 0 ? this.text.value.length : end);
  }

  showDiff(lines) {
    const words = {same: "", removed: "removed: ", added: "added: "};
    show(this.diff,
        h("pre", {tabindex: "0", role: "region", "aria-label": "What would change"},
            lines.map((line) => h("span", {class: `line-${line.kind}`},
                          h("span", {class: "hidden"}, words[line.kind]),
                          `${signs[line.kind]} ${line.text}\n`))));
  }

  async install() {
    const source = this.checked;
    try {
      const answer = await this.api.send("PUT", this.address(),
          {source, actor: this.actor.value || "web page"}, {"If-Match": `"${this.etag}"`});
      this.take(answer.policy);
      this.say(`Applied: ${answer.policy.name} is in force.`, false);
      await this.load();
    } catch (error) {
      this.checked = null;
      this.failed(error, "applied");
    }
  }
}
