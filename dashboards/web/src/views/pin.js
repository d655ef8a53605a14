// SPDX-License-Identifier: Apache-2.0
// Pinning a job to one of the candidates, and ending a pin. Both want the role operator and are
// confirmed, because the controller stops deciding for the job, or begins to again.

import {h, show} from "../dom.js";
import {number} from "../format.js";

const roles = ["operator", "admin"];

export class PinPanel {
  constructor({api, store}, job, changed) {
    this.api = api;
    this.store = store;
    this.job = job;
    this.changed = changed;
    this.choices = new Map();
    this.pinned = "";
    this.state = h("p", {id: "pin-state"});
    this.choice = h("select", {id: "pin-choice"});
    this.reason = h("input", {id: "pin-reason", autocomplete: "off", maxlength: "200"});
    this.actor = h("input", {id: "pin-actor", autocomplete: "off", maxlength: "100"});
    this.pin = h("button", {type: "button", id: "pin"}, "Pin…");
    this.unpin = h("button", {type: "button", id: "unpin"}, "Unpin…");
    this.why = h("p", {class: "muted", id: "pin-role"});
    this.verdict = h("p", {id: "pin-verdict", role: "status"});
    this.question = h("p", {id: "pin-question"});
    this.yes = h("button", {type: "button", id: "pin-yes"}, "Yes");
    this.no = h("button", {type: "button", id: "pin-no"}, "No, leave it");
    this.dialog = h("dialog", {id: "pin-dialog", "aria-labelledby": "pin-question"}, this.question,
        h("div", {class: "controls"}, this.yes, this.no));
    this.element = h("div", {}, this.state,
        h("div", {class: "controls"}, h("label", {}, "Choice ", this.choice),
            h("label", {}, "Reason ", this.reason),
            h("label", {}, "Your name, where the controller does not know it ", this.actor), this.pin, this.unpin),
        this.why, this.verdict, this.dialog);
    this.pin.addEventListener("click", () => this.ask("pin"));
    this.unpin.addEventListener("click", () => this.ask("unpin"));
    this.no.addEventListener("click", () => this.dialog.close());
    this.yes.addEventListener("click", () => this.send());
    this.reason.addEventListener("input", () => this.showRole());
  }

  // job: Job. candidates: of its newest decision; those that are excluded can be pinned, too.
  draw(job, candidates) {
    this.pinned = job.pinned || "";
    this.state.textContent = this.pinned ? `Pinned by ${this.pinned}` : "The controller decides.";
    const single = candidates.filter((each) => each.choice && !/^mixed/.test(each.label || ""));
    this.choices = new Map(single.map((each) => [each.label, each.choice]));
    show(this.choice, [...this.choices.keys()].map((label) => h("option", {value: label}, label)));
    this.showRole();
  }

  showRole() {
    const role = this.store.state.role || "none";
    const may = roles.includes(role);
    this.unpin.hidden = !this.pinned;
    this.unpin.disabled = !may;
    this.pin.disabled = !may || this.choices.size === 0 || this.reason.value.trim() === "";
    this.why.textContent = !may ? `Pinning needs the role operator; you have ${role}.` :
        this.choices.size === 0 ? "There is nothing to pin before the first decision." :
        this.pin.disabled       ? "A pin wants a reason: whoever finds it later will ask." :
                                  "";
  }

  ask(verb) {
    this.verb = verb;
    this.question.textContent = verb === "pin" ?
        `Pin job ${this.job} to ${this.choice.value}? The controller decides nothing for it until it is unpinned.` :
        `Unpin job ${this.job}? The controller decides for it again.`;
    this.dialog.showModal();
    this.no.focus();
  }

  async send() {
    this.dialog.close();
    const choice = this.choices.get(this.choice.value) || {};
    const body = {actor: this.actor.value.trim(), reason: this.reason.value.trim()};
    if (this.verb === "pin") {
      body.choice = {...choice, ratio: number(choice.ratio), bits: number(choice.bits)};
    }
    try {
      await this.api.send("POST", `/v1/jobs/${encodeURIComponent(this.job)}:${this.verb}`, body);
      this.verdict.className = "good";
      this.verdict.textContent = this.verb === "pin" ? "Pinned." : "Unpinned.";
      this.reason.value = "";
    } catch (error) {
      this.verdict.className = "bad";
      this.verdict.textContent = `▲ ${error.message}`;
    }
    this.changed();
  }
}
