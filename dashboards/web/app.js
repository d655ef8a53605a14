// The controller's page: reads the REST API, follows the event stream, shows one job at a time.
// Read-only: operators change things with weirctl or the API.

import { follow, forgetToken, get, hasToken, keepToken, newDecisions, TokenNeeded } from "./api.js";
import { Charts } from "./charts.js";
import { age, bitsPerSecond, bytes, choiceLabel, number, seconds, significant } from "./format.js";

const pointsMax = 2000;
const decisionPagesMax = 20;
const rowsMax = 100;
const state = { job: null, points: [], decisions: new Map(), refreshing: false, following: false };
const charts = new Charts();
const element = (id) => document.getElementById(id);

function showError(error) {
  element("error").hidden = !error;
  element("error").textContent = error ? String(error.message || error) : "";
}

// All text from the API goes through textContent: names are not trusted as markup.
function row(cells, className) {
  const line = document.createElement("tr");
  if (className) line.className = className;
  for (const cell of cells) {
    const td = document.createElement(cell.head ? "th" : "td");
    td.textContent = cell.text;
    if (cell.className) td.className = cell.className;
    line.append(td);
  }
  return line;
}

const text = (value) => ({ text: value });
const figure = (value) => ({ text: value, className: "number" });
const short = (value) => ({ text: value, className: "short" });
const heads = (...names) => row(names.map((name) => ({
  text: name.replace(/^#/, ""), head: true, className: name.startsWith("#") ? "number" : "" })));

function fill(id, header, rows) {
  element(id).replaceChildren(header, ...rows);
}

function tile(label, value, note, wide) {
  const box = document.createElement("div");
  box.className = wide ? "tile wide" : "tile";
  const strong = document.createElement("b");
  strong.textContent = value;
  const caption = document.createElement("span");
  caption.textContent = note ? `${label} · ${note}` : label;
  box.append(strong, caption);
  return box;
}

function largestChoice(job) {
  const plan = job.active_plan || {};
  const buckets = [...(job.buckets || [])].sort((a, b) => number(b.elements) - number(a.elements));
  for (const bucket of buckets) {
    const entry = (plan.buckets || []).find((candidate) => candidate.bucket === bucket.key);
    if (entry) return entry.choice;
  }
  return plan.fallback;
}

function drawTiles(job, explanation) {
  const decision = explanation.decision || {};
  const step = number(job.step_s);
  const dense = number(decision.dense_step_s);
  const saved = dense > 0 && step > 0 ? `${significant(dense / step, 2)}×` : "–";
  const bandwidth = explanation.bandwidth_bytes_per_s || {};
  const latency = explanation.latency_s || {};
  element("tiles").replaceChildren(
    tile("running now", choiceLabel(largestChoice(job)), job.pinned ? `pinned: ${job.pinned}` : `policy ${job.policy}`, true),
    tile("step time", seconds(step), `dense would take ${seconds(dense)}`),
    tile("faster than dense", saved, "predicted dense over measured"),
    tile("gradient gain", significant(number(job.gain)), "share of gradient energy sent"),
    tile("bandwidth", bitsPerSecond(number(bandwidth.value)), `${bandwidth.method || ""} ${age(number(bandwidth.age_s))}`),
    tile("one-way latency", seconds(number(latency.value)), `${latency.method || ""} ${age(number(latency.age_s))}`),
    tile("step", String(number(job.step)), `loss ${significant(number(job.loss))}`),
    tile("sent", bytes(number(job.bytes_sent)), `${job.state || ""}, ${number(job.world)} ranks, ${job.rollout_state || ""}`),
  );
}

function drawExplanation(explanation) {
  const decision = explanation.decision || {};
  element("reason").textContent = decision.reason || "No decision yet: the first steps are being measured.";
  const candidates = decision.candidates || [];
  fill("candidates", heads("candidate", "#step", "#±", "#communication", "#gain", "#objective", "note"),
    candidates.map((candidate) => row([
      text(candidate.label), figure(seconds(number(candidate.step_s))),
      figure(seconds(number(candidate.step_deviation_s))),
      figure(seconds(number(candidate.communication_s))), figure(significant(number(candidate.gain))),
      figure(significant(number(candidate.objective))),
      text([candidate.chosen ? "chosen" : "", candidate.dense ? "dense" : "",
        candidate.excluded_by ? `excluded: ${candidate.excluded_by}` : ""]
        .filter(Boolean).join(", ")),
    ], candidate.chosen ? "chosen" : candidate.feasible ? "" : "infeasible")));
}

// Newest first.
function knownDecisions() {
  return [...state.decisions.values()].sort((a, b) => number(b.id) - number(a.id));
}

// Switches that took effect or are about to, oldest first: the marks of the charts.
function switches() {
  return knownDecisions().filter((decision) => decision.switched).reverse();
}

const stepOf = (decision) => number(decision.activation_step) || number(decision.step);

function drawDecisions() {
  const all = knownDecisions();
  const shown = element("all-decisions").checked ? all : all.filter((decision) => decision.switched);
  fill("decisions", heads("#step", "when", "trigger", "from", "to", "outcome", "reason"),
    shown.slice(0, rowsMax).map((decision) => row([
      figure(String(number(decision.step))),
      short(age(Date.now() / 1000 - number(decision.unix_s))), short(decision.trigger || ""),
      text(decision.from || ""), text(decision.switched ? decision.to || "" : "(kept)"),
      short(decision.outcome || ""), text(decision.reason || ""),
    ])));
  const kept = all.length - all.filter((decision) => decision.switched).length;
  element("kept-count").textContent = `also the ${kept} that kept the plan`;
  const marks = switches();
  element("marks").start = marks.length;
  element("marks").replaceChildren(...marks.reverse().map((decision) => {
    const item = document.createElement("li");
    const change = document.createElement("b");
    change.textContent = `step ${stepOf(decision)}: ${decision.from || "start"} → ${decision.to || ""}. `;
    item.append(change, decision.reason || "");
    return item;
  }));
}

function estimateText(estimate, format) {
  if (!estimate || !number(estimate.value)) return "–";
  return `${format(number(estimate.value))} (${estimate.method || "?"}, ${age(number(estimate.age_s))})`;
}

function drawLinks(links) {
  fill("links", heads("from", "to", "round trip", "bandwidth", "#hops"),
    links.map((link) => row([
      text(link.source), text(link.target), text(estimateText(link.rtt_s, seconds)),
      text(estimateText(link.bandwidth_bytes_per_s, bitsPerSecond)), figure(String(number(link.hops) || "–")),
    ])));
}

function drawNodes(nodes, job) {
  const ranks = job.ranks || [];
  fill("nodes", heads("node", "address", "agent", "last seen", "ranks of this job"),
    nodes.map((node) => row([
      text(node.name), text(node.address || ""), text(node.connected ? "connected" : "lost"),
      text(age(Date.now() / 1000 - number(node.last_seen_unix_s))),
      text(ranks.filter((rank) => rank.node === node.name)
        .map((rank) => `${number(rank.rank)} (step ${number(rank.step)}, plan ${number(rank.plan_version)})`).join(", ")),
    ])));
}

function forgetJob() {
  state.points = [];
  state.decisions.clear();
  charts.clear();
}

async function refreshJobs() {
  const jobs = (await get("/v1/jobs")).jobs || [];
  const select = element("job");
  const names = jobs.map((job) => job.name);
  const shown = [...select.options].map((option) => option.value);
  if (names.join("\n") !== shown.join("\n")) {
    select.replaceChildren(...names.map((name) => new Option(name, name)));
  }
  if (!names.includes(state.job)) {
    const running = jobs.filter((job) => job.state === "running");
    state.job = (running.at(-1) || jobs.at(-1) || {}).name || null;
    forgetJob();
  }
  if (state.job) select.value = state.job;
  element("job-label").hidden = names.length === 0;
  element("empty").hidden = names.length > 0;
  element("content").hidden = names.length === 0;
  return jobs.find((job) => job.name === state.job);
}

async function refreshJob(job) {
  const name = encodeURIComponent(job.name);
  const last = state.points.length ? number(state.points.at(-1).step) : 0;
  const [series, decisions, links, nodes] = await Promise.all([
    get(`/v1/jobs/${name}/series?since_step=${last}`),
    newDecisions(job.name, state.decisions, decisionPagesMax), get("/v1/links"), get("/v1/nodes"),
  ]);
  // Without a decision there is nothing to explain, and the answer would be an error.
  const explanation = decisions.length > 0 ? await get(`/v1/jobs/${name}:explain`).catch(() => ({})) : {};
  if (job.name !== state.job) return;
  const fresh = (series.points || []).filter((point) => number(point.step) > last);
  state.points = [...state.points, ...fresh].slice(-pointsMax);
  for (const decision of decisions) state.decisions.set(decision.id, decision);
  drawTiles(job, explanation);
  drawExplanation(explanation);
  drawDecisions();
  drawLinks(links.links || []);
  drawNodes(nodes.nodes || [], job);
  charts.draw(state.points, switches().map(stepOf));
}

async function refresh() {
  if (state.refreshing || !element("token-form").hidden) return;
  state.refreshing = true;
  try {
    const job = await refreshJobs();
    if (job) await refreshJob(job);
    showError(null);
    setConnection("live", `live, ${new Date().toLocaleTimeString()}`);
    followEvents();
  } catch (error) {
    if (error instanceof TokenNeeded) {
      askForToken(error);
    } else {
      showError(error);
      setConnection("lost", "controller does not answer; retrying");
    }
  } finally {
    state.refreshing = false;
  }
}

function setConnection(className, words) {
  element("connection").className = `badge ${className}`;
  element("connection").textContent = words;
  element("forget-token").hidden = !hasToken();
}

// Nothing is asked of the controller while the form is shown.
function askForToken(error) {
  element("token-note").textContent = hasToken() ? `The controller refused the token: ${error.message}.`
    : "This controller wants a token.";
  forgetToken();
  element("token-form").hidden = false;
  for (const id of ["job-label", "content", "empty"]) element(id).hidden = true;
  showError(null);
  setConnection("lost", "token needed");
  element("token").focus();
}

element("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const problem = keepToken(element("token").value);
  element("token").value = "";
  element("token-note").textContent = problem;
  if (problem) return;
  element("token-form").hidden = true;
  refresh();
});

element("forget-token").addEventListener("click", () => {
  forgetToken();
  window.location.reload();
});

element("job").addEventListener("change", (event) => {
  state.job = event.target.value;
  forgetJob();
  refresh();
});

element("all-decisions").addEventListener("change", drawDecisions);

// Events only say that something changed; the state itself is read. At most one refresh a second.
let pending = null;
function refreshSoon() {
  if (!pending) pending = setTimeout(() => { pending = null; refresh(); }, 1000);
}

async function followEvents() {
  if (state.following) return;
  state.following = true;
  await follow("/v1/watch", refreshSoon);
  state.following = false;
}

setInterval(refresh, 3000);
refresh();
