// The controller's page: reads the REST API, follows the event stream, shows one job at a time.
// Read-only: operators change things with weirctl or the API.

import { Charts } from "./charts.js";
import { age, bitsPerSecond, bytes, choiceLabel, number, seconds, significant } from "./format.js";

const pointsMax = 2000;
const state = { job: null, points: [], decisions: [], refreshing: false };
const charts = new Charts();
const element = (id) => document.getElementById(id);

async function api(path) {
  const response = await fetch(path, { headers: { Accept: "application/json" } });
  const body = await response.json();
  if (!response.ok) throw new Error(`${path}: ${body.message || response.status}`);
  return body;
}

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
    if (cell.number) td.className = "number";
    line.append(td);
  }
  return line;
}

const text = (value) => ({ text: value });
const figure = (value) => ({ text: value, number: true });
const heads = (...names) => row(names.map((name) => ({ text: name, head: true, number: name.startsWith("#") }))
  .map((cell) => ({ ...cell, text: cell.text.replace(/^#/, "") })));

function fill(id, header, rows) {
  element(id).replaceChildren(header, ...rows);
}

function tile(label, value, note) {
  const box = document.createElement("div");
  box.className = "tile";
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
    tile("running now", choiceLabel(largestChoice(job)), job.pinned ? `pinned: ${job.pinned}` : job.policy),
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
      text([candidate.chosen ? "chosen" : "", candidate.dense ? "dense" : "", candidate.excluded_by || ""]
        .filter(Boolean).join(", ")),
    ], candidate.chosen ? "chosen" : candidate.feasible ? "" : "infeasible")));
}

function drawDecisions() {
  fill("decisions", heads("#step", "when", "trigger", "from", "to", "outcome", "reason"),
    state.decisions.map((decision) => row([
      figure(String(number(decision.step))),
      text(age(Date.now() / 1000 - number(decision.unix_s))), text(decision.trigger || ""),
      text(decision.from || ""), text(decision.switched ? decision.to || "" : "(kept)"),
      text(decision.outcome || ""), text(decision.reason || ""),
    ])));
  const switches = state.decisions.filter((decision) => decision.switched);
  element("marks").replaceChildren(...switches.slice(0, 30).map((decision) => {
    const item = document.createElement("li");
    item.textContent = `step ${number(decision.activation_step) || number(decision.step)}: ` +
      `${decision.from || "start"} → ${decision.to || ""}. ${decision.reason || ""}`;
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

function drawCharts() {
  const marks = state.decisions.filter((decision) => decision.switched)
    .map((decision) => number(decision.activation_step) || number(decision.step));
  charts.draw(state.points, marks);
}

async function refreshJobs() {
  const jobs = (await api("/v1/jobs")).jobs || [];
  const select = element("job");
  const names = jobs.map((job) => job.name);
  const shown = [...select.options].map((option) => option.value);
  if (names.join("\n") !== shown.join("\n")) {
    select.replaceChildren(...names.map((name) => new Option(name, name)));
  }
  if (!names.includes(state.job)) {
    const running = jobs.filter((job) => job.state === "running");
    state.job = (running.at(-1) || jobs.at(-1) || {}).name || null;
    state.points = [];
    charts.clear();
  }
  if (state.job) select.value = state.job;
  element("empty").hidden = names.length > 0;
  element("content").hidden = names.length === 0;
  return jobs.find((job) => job.name === state.job);
}

async function refresh() {
  if (state.refreshing) return;
  state.refreshing = true;
  try {
    const job = await refreshJobs();
    if (job) {
      const name = encodeURIComponent(job.name);
      const last = state.points.length ? number(state.points.at(-1).step) : 0;
      const [explanation, series, decisions, links, nodes] = await Promise.all([
        api(`/v1/jobs/${name}:explain`).catch(() => ({})),
        api(`/v1/jobs/${name}/series?since_step=${last}`),
        api(`/v1/decisions?job=${name}&page_size=100`), api("/v1/links"), api("/v1/nodes"),
      ]);
      if (job.name !== state.job) return;
      const fresh = (series.points || []).filter((point) => number(point.step) > last);
      state.points = [...state.points, ...fresh].slice(-pointsMax);
      state.decisions = decisions.decisions || [];
      drawTiles(job, explanation);
      drawExplanation(explanation);
      drawDecisions();
      drawLinks(links.links || []);
      drawNodes(nodes.nodes || [], job);
      drawCharts();
    }
    showError(null);
    setConnection(true);
  } catch (error) {
    showError(error);
    setConnection(false);
  } finally {
    state.refreshing = false;
  }
}

function setConnection(live) {
  const badge = element("connection");
  badge.className = `badge ${live ? "live" : "lost"}`;
  badge.textContent = live ? `live, ${new Date().toLocaleTimeString()}` : "controller does not answer; retrying";
}

element("job").addEventListener("change", (event) => {
  state.job = event.target.value;
  state.points = [];
  charts.clear();
  refresh();
});

// Events only say that something changed; the state itself is read. At most two refreshes a second.
let pending = null;
function refreshSoon() {
  if (!pending) pending = setTimeout(() => { pending = null; refresh(); }, 500);
}

const events = new EventSource("/v1/watch");
events.onmessage = refreshSoon;
for (const kind of ["node", "link", "job", "decision", "policy", "step", "rank"]) {
  events.addEventListener(kind, refreshSoon);
}
setInterval(refresh, 3000);
refresh();
