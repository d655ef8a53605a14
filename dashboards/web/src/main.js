// SPDX-License-Identifier: Apache-2.0
// The controller's page: one view at a time by its address, kept up to date by polling and by
// events.

import * as api from "./api.js";
import {h, show} from "./dom.js";
import {number} from "./format.js";
import * as router from "./router.js";
import {Store, withEvent} from "./store.js";
import * as theme from "./theme.js";
import AuditView from "./views/audit.js";
import FleetView from "./views/fleet.js";
import JobView from "./views/job.js";
import JobsView from "./views/jobs.js";
import PoliciesView from "./views/policies.js";
import WhatIfView from "./views/what_if.js";

const pollMs = 3000;
const soonMs = 500;
const eventsPath = "/v1/watch?kinds=node,job,decision,policy,rank&replay=true";
const navigation =
    [["jobs", "Jobs"], ["fleet", "Fleet"], ["what-if", "What if"], ["policies", "Policies"],
     ["audit", "Audit"]];

const element = (id) => document.getElementById(id);
const store = new Store({events: [], role: "", since: Date.now() / 1000});
const context = {
  api,
  store
};
let current = {view: "", argument: ""};
let view = null;
let loading = false;
let again = false;
let following = false;
let answered = 0;

function make({view: name, argument}) {
  if (name === "fleet") return new FleetView(context);
  if (name === "what-if") return new WhatIfView(context);
  if (name === "audit") return new AuditView(context);
  if (name === "policies") return new PoliciesView(context, argument);
  return argument ? new JobView(context, argument) : new JobsView(context);
}

function showNavigation() {
  show(element("nav"),
      h("ul", {},
          navigation.map(([name, text]) => h("li", {},
                             h("a", {
                               href: router.address(name),
                               "aria-current": name === current.view ? "page" : null
                             },
                                 text)))));
}

// Where nothing is named: the only job that runs, or the list of all.
async function landing() {
  const jobs = await api.getList("/v1/jobs", "jobs");
  const running = jobs.filter((job) => job.state === "running");
  return running.length === 1 ? {view: "jobs", argument: running[0].name} :
                                {view: "jobs", argument: ""};
}

async function route(wanted, byPerson) {
  const known = navigation.some(([name]) => name === wanted.view);
  let target = wanted;
  if (!known) {
    target = {view: "jobs", argument: ""};
    try {
      if (!wanted.view) target = await landing();
    } catch (error) {
      if (error instanceof api.TokenNeeded) return askForToken(error);
      // Otherwise the list of jobs will say what is wrong.
    }
    window.history.replaceState(null, "", router.address(target.view, target.argument));
  }
  current = target;
  view = make(target);
  document.title = `${view.title} – Weir`;
  // An empty view would say that there is nothing; nobody knows before the first answer.
  view.element.hidden = true;
  element("main").replaceChildren(h("h2", {tabindex: "-1"}, view.title),
      h("p", {id: "loading", class: "muted", role: "status"}, "Loading…"), view.element);
  showNavigation();
  if (byPerson) element("main").querySelector("h2").focus();
  return refresh();
}

function setConnection(className, words) {
  element("connection").className = `badge ${className}`;
  if (element("connection").textContent !== words) element("connection").textContent = words;
  element("forget-token").hidden = !api.hasToken() && !api.hasSession();
}

function showError(error) {
  element("error").hidden = !error;
  const words = error ? String(error.message || error) : "";
  if (element("error").textContent !== words) element("error").textContent = words;
}

function reveal() {
  element("loading")?.remove();
  view.element.hidden = false;
}

// Marks the view, in words and by its look, as older than the controller's last answer.
function setStale(stale) {
  element("main").classList.toggle("outdated", stale);
  if (stale && element("loading")) element("loading").textContent = "No answer yet; trying again.";
}

async function refresh() {
  if (loading) {
    again = true;
    return;
  }
  if (!view || !element("token-form").hidden) return;
  loading = true;
  const shown = view;
  try {
    await shown.load();
    answered = Date.now();
    if (shown === view) reveal();
    showError(null);
    setStale(false);
    setConnection("live", "live");
    followEvents();
  } catch (error) {
    if (error instanceof api.TokenNeeded) {
      askForToken(error);
    } else if (error instanceof api.Refused) {
      setConnection("live", "live");
      element("loading")?.remove();
      showError(error);
    } else if (!(error instanceof api.NoAnswer)) {
      setConnection("live", "live");
      setStale(true);
      showError(`This page failed: ${error.message}`);
      console.error(error);
    } else {
      const age =
          answered ? `; what you see is ${Math.round((Date.now() - answered) / 1000)} s old` : "";
      setConnection("lost", "no answer");
      setStale(true);
      showError(`The controller does not answer; trying again${age}. (${error.message})`);
    }
  } finally {
    loading = false;
    if (again || shown !== view) {
      again = false;
      refreshSoon();
    }
  }
}

// Nothing is asked of the controller while the form is shown.
function askForToken(error) {
  element("token-note").textContent = api.hasToken() ?
      `The controller refused the token: ${error.message}.` :
      "This controller wants a token.";
  api.forgetToken();
  element("token-form").hidden = false;
  element("main").hidden = true;
  showError(null);
  setConnection("lost", "token needed");
  element("token").focus();
}

element("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const problem = api.keepToken(element("token").value);
  element("token").value = "";
  element("token-note").textContent = problem;
  if (problem) return;
  element("token-form").hidden = true;
  element("main").hidden = false;
  route(router.parse(window.location.hash), true);
});

element("forget-token").addEventListener("click", async () => {
  api.forgetToken();
  if (api.hasSession()) await api.endSession().catch(() => {});
  window.location.reload();
});

// Events say that something changed; what, is read. At most one refresh each half second.
let pending = null;
function refreshSoon() {
  pending ??= setTimeout(() => {
    pending = null;
    if (!document.hidden) refresh();
  }, soonMs);
}

async function followEvents() {
  if (following) return;
  following = true;
  await api.followEvents(eventsPath, (event) => {
    store.set({
      events: withEvent(store.state.events, event),
      since: Math.min(store.state.since, number(event.unix_s))
    });
    if (view && view.onEvents) view.onEvents();
    refreshSoon();
  });
  following = false;
}

api.onRole((role) => {
  store.set({role});
  element("role").hidden = false;
  element("role").textContent = `role: ${role}`;
});
store.subscribe(() => {
  if (view && view.onState) view.onState();
});
theme.start(element("theme"), () => {
  if (view && view.onTheme) view.onTheme();
});
setInterval(() => {
  if (!document.hidden) refresh();
}, pollMs);
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) refresh();
});

// An address of weirctl page begins a session with the rights of the person who asked for it.
const codeMark = "#code=";
async function start() {
  if (window.location.hash.startsWith(codeMark)) {
    const code = window.location.hash.slice(codeMark.length);
    window.history.replaceState(null, "", window.location.pathname);
    try {
      await api.beginSession(code);
    } catch (error) {
      showError(error);
    }
  }
  router.follow(route);
}
start();
