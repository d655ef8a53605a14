// SPDX-License-Identifier: Apache-2.0
// Nodes, what the network between them is like, and what happened lately.

import {card, h, show, table} from "../dom.js";
import {eventTable, isTrouble} from "../events.js";
import {age, bitsPerSecond, clock, estimate, number, seconds} from "../format.js";
import {Heatmap} from "../heatmap.js";
import {address} from "../router.js";

const eventsShown = 100;
const linksShown = 500;

const speeds = (node) => (node.interfaces || [])
                             .map((each) => `${each.name}${
                                      number(each.speed_bytes_per_s) ?
                                          ` ${bitsPerSecond(number(each.speed_bytes_per_s))}` :
                                          ""}`)
                             .join(", ");

export default class FleetView {
  constructor({api, store}) {
    this.api = api;
    this.store = store;
    this.title = "Fleet";
    this.heatmap = new Heatmap();
    this.summary = h("div", {class: "tiles", "aria-label": "summary"});
    this.nodes = h("div", {});
    this.links = h("div", {});
    this.events = h("div", {});
    this.onlyTrouble = h("input", {type: "checkbox", id: "only-trouble"});
    this.onlyTrouble.addEventListener("change", () => this.showEvents());
    this.element = h("div", {}, this.summary, card("Nodes", {id: "nodes"}, this.nodes),
        this.heatmap.element, card("Links as a table", {id: "links"}, this.links),
        card("Events", {id: "events"},
            h("p", {class: "muted"}, h("label", {}, this.onlyTrouble, " trouble only")),
            this.events));
  }

  async load() {
    const [nodes, links] = await Promise.all(
        [this.api.getList("/v1/nodes", "nodes"), this.api.getList("/v1/links", "links")]);
    this.showNodes(nodes);
    this.showLinks(links, nodes);
    this.showEvents();
  }

  onEvents() {
    this.showEvents();
  }

  showNodes(nodes) {
    const present = nodes.filter((node) => node.connected).length;
    const troubles = this.store.state.events.filter(isTrouble).length;
    show(this.summary,
        h("div", {class: "tile"}, h("b", {}, `${present} of ${nodes.length}`),
            h("span", {}, "nodes connected")),
        h("div", {class: "tile"}, h("b", {}, String(troubles)),
            h("span", {}, "troubles among the events below")));
    show(this.nodes, table("Nodes", [
      { name: "node", of: (node) => node.name },
      { name: "agent", of: (node) => (node.connected ? "● connected" : "▲ lost") },
      { name: "last seen", of: (node) => age(Date.now() / 1000 - number(node.last_seen_unix_s)) },
      { name: "address", of: (node) => node.address || "" },
      { name: "interfaces", of: speeds },
      { name: "jobs", of: (node) => h("span", {}, (node.jobs || []).map((job, index) =>
        [index ? ", " : "", h("a", { href: address("jobs", job) }, job)])) },
      { name: "version", of: (node) => node.agent_version || "" },
    ], nodes, (node) => ({ class: node.connected ? null : "trouble" })));
  }

  showLinks(links, nodes) {
    this.heatmap.draw(links, nodes.map((node) => node.name));
    show(this.links,
        table("Links",
            [
              {name: "from", of: (link) => link.source},
              {name: "to", of: (link) => link.target},
              {name: "round trip", of: (link) => estimate(link.rtt_s, seconds)},
              {
                name: "bandwidth",
                of: (link) => estimate(link.bandwidth_bytes_per_s, bitsPerSecond)
              },
              {name: "hops", number: true, of: (link) => String(number(link.hops) || "-")},
            ],
            links.slice(0, linksShown)),
        links.length > linksShown ?
            h("p", {class: "muted"},
                `The first ${linksShown} of ${links.length}; /v1/links has all.`) :
            null);
  }

  showEvents() {
    const all = this.store.state.events;
    const shown = this.onlyTrouble.checked ? all.filter(isTrouble) : all;
    show(this.events,
        shown.length > 0 ?
            eventTable("Events", shown.slice(0, eventsShown)) :
            h("p", {class: "muted"}, `Nothing since ${clock(this.store.state.since)}.`));
  }
}
